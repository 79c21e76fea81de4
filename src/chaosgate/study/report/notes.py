"""What stands around the tables: verdict, strengths at the edge of a grid, at most eight notes."""

from collections import Counter
from collections.abc import Iterator

from chaosgate.study.plan.study import STRENGTH, Sweep
from chaosgate.study.report.frame import MOST_PAIRS, Results
from chaosgate.study.report.names import CLEAN, MAIN, PRIMARY, better, is_scaled, title
from chaosgate.study.report.render import render
from chaosgate.study.report.views import change

UNCLEAR = "not distinguishable"


def verdict(results: Results) -> list[str]:
    """The answer: a line per planned contrast, or one about all methods on the primary metric."""
    if results.study.planned is not None:
        return [
            f"{line.variant}, {line.part} {title(line.metric)}: "
            f"{', '.join(change(line)) or 'not finished'}: {line.mark or UNCLEAR}."
            for line in results.lines("planned").itertuples()
        ]
    metric = PRIMARY if PRIMARY in results.metrics else "nll"
    variants = list(results.tables.values())[:2][-1]  # at their selected strengths
    own = results.lines(variants=variants, part=CLEAN, metric=metric)
    groups = own[own.p.notna()].replace({"mark": {"": UNCLEAR}}).groupby("mark").variant
    found = "; ".join(f"{mark}: {', '.join(names)}" for mark, names in groups)
    return [f"Clean {title(metric)} against {_reference(results)}: {found}."] if found else []


def edges(results: Results) -> list[str]:
    """Selected strengths that are the smallest or largest of their grid, and which value to add."""
    found = []
    for name, variant in results.selected.items():
        method = results.by_strength[name][0].method
        if variant is None or method not in results.swept:
            continue
        value = float(results.rows[variant].levels[STRENGTH])
        if (more := value_to_add(results.study.strength[method], value)) is not None:
            found.append(
                f"{name}: the selected strength {value:g} is the "
                f"{'largest' if more > value else 'smallest'} that was tried. "
                f"Add {more:g} to strength.{method}.values and run the study again."
            )
    return found


def value_to_add(sweep: Sweep, chosen: float) -> float | None:
    """The next value beyond the edge of a grid; None inside it, or if there is nothing beyond.

    Steps are those of the grid: a factor between positive values. A probability goes at most half
    of the way to 1.

    >>> value_to_add(Sweep(key="noise.log_std", values=(0.5, 1.0, 2.0)), 2.0)
    4.0
    >>> value_to_add(Sweep(key="noise.p", values=(0.1, 0.5)), 0.5)
    0.75
    """
    values = sorted(sweep.values)
    if len(values) < 2 or chosen not in (values[0], values[-1]) or chosen == 0:
        return None
    neighbor = values[-2] if chosen == values[-1] else values[1]
    more = chosen * chosen / neighbor if values[0] > 0 else 2 * chosen - neighbor
    if sweep.key.endswith(".p"):
        more = min(more, (chosen + 1) / 2)
    return float(f"{more:.3g}")


def notes(results: Results) -> list[str]:
    """What the numbers are, in at most seven lines; an eighth is about the plan."""
    frame, rows = results.frame, results.rows.values()
    tested = frame[frame.part.isin(MAIN) & frame.p.notna() & frame.metric.map(better).ne("")]
    kind = "mean" if results.study.planned is None else "planned"
    found = {
        key: list(dict.fromkeys(str(one.rows[0].get(key)) for one in results.networks))
        for key in ("backbone", "commit", "processor")
    }
    text = render(
        "notes.txt",
        **{"study": results.study, "results": results, "found": found, "rows": list(rows)},
        first=results.networks[0] if results.networks else None,
        reference=_reference(results),
        unfinished=[
            row.variant
            for row in rows
            if row.members == 1 and len(row.seeds) < len(results.study.seeds)
        ],
        over=list(dict.fromkeys(one for one in frame.over if one)),
        compared=len(tested) and (tested.kind == kind).sum(),
        too_many=any(len(results.pairs(one)) > MOST_PAIRS for one in results.tables.values()),
        scaled=any(map(is_scaled, results.metrics)),
        collapsed=any(part in MAIN for _, part in results.collapsed),
        selections=list(_selections(results)),
    )
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _reference(results: Results) -> str:
    axes = " and ".join(results.study.axes_of(results.study.reference))
    return f"{results.study.reference} at the same {axes}" if axes else results.study.reference


def _selections(results: Results) -> Iterator[tuple[str, str | None, str]]:
    """What was selected among strengths, and what each seed alone would have selected."""
    for name, rows in results.by_strength.items():
        if rows[0].method in results.swept and len(rows) > 1:
            own = results.lines("seed", [row.variant for row in rows], metric="validation_nll")
            best = own.loc[own.groupby("seed").value.idxmin(), STRENGTH]
            votes = [f"{level} ({many})" for level, many in Counter(best).most_common()]
            yield name, results.selected[name], ", ".join(votes)
