"""What stands around the tables: verdict, strengths at the edge of a grid, at most eight notes."""

from collections import Counter

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
        if variant is None or (row := results.rows[variant]).method not in results.swept:
            continue
        value = float(row.levels[STRENGTH])
        if (more := value_to_add(results.study.strength[row.method], value)) is not None:
            found.append(
                f"{name}: the selected strength {value:g} is the "
                f"{'largest' if more > value else 'smallest'} that was tried. "
                f"Add {more:g} to strength.{row.method}.values and run the study again."
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
    frame, rows, study = results.frame, list(results.rows.values()), results.study
    tested = frame[frame.part.isin(MAIN) & frame.p.notna() & frame.metric.map(better).ne("")]
    short = [row for row in rows if row.members == 1 and len(row.seeds) < len(study.seeds)]
    first_rows = [network.rows[0] for network in results.networks]
    text = render(
        "notes.txt",
        study=study,
        results=results,
        rows=rows,
        first=results.networks[0] if results.networks else None,
        values_of=lambda key: list(dict.fromkeys(str(row.get(key)) for row in first_rows)),
        reference=_reference(results),
        unfinished=[row.variant for row in short],
        over=list(dict.fromkeys(one for one in frame.over if one)),
        compared=(tested.kind == ("mean" if study.planned is None else "planned")).sum(),
        too_many=any(len(results.pairs(one)) > MOST_PAIRS for one in results.tables.values()),
        scaled=any(map(is_scaled, results.metrics)),
        collapsed=any(part in MAIN for _, part in results.collapsed),
        votes=_votes(results),
    )
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _reference(results: Results) -> str:
    axes = " and ".join(results.study.axes_of(results.study.reference))
    return f"{results.study.reference} at the same {axes}" if axes else results.study.reference


def _votes(results: Results) -> dict[str, str]:
    """What each seed alone would have selected among strengths."""
    found = {}
    for name, rows in results.by_strength.items():
        if rows[0].method in results.swept and len(rows) > 1:
            own = results.lines("seed", [row.variant for row in rows], metric="validation_nll")
            best = own.loc[own.groupby("seed").value.idxmin(), STRENGTH]
            found[name] = ", ".join(f"{one} ({many})" for one, many in Counter(best).most_common())
    return found
