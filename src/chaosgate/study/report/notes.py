"""The text around the tables: verdict, strengths at the edge of a grid, at most eight notes."""

from chaosgate.study.plan.study import STRENGTH, Sweep
from chaosgate.study.report.frame import Results
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
    groups = own[own.p.notna()].groupby("mark").variant
    found = "; ".join(f"{mark or UNCLEAR}: {', '.join(names)}" for mark, names in groups)
    return [f"Clean {title(metric)} against {results.study.reference}: {found}."] if found else []


def edges(results: Results) -> list[str]:
    """Selected strengths that are the smallest or largest of their grid, and which value to add."""
    found = []
    for name, variant in results.selected.items():
        if variant is None or (row := results.rows[variant]).method not in results.swept:
            continue
        value = float(row.levels[STRENGTH])
        if (more := value_to_add(results.study.strength[row.method], value)) is not None:
            found.append(
                f"{name}: the selected strength {value:g} is at the edge of its grid. "
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
    """Explanations of the numbers, in at most seven lines; an eighth is about the plan."""
    frame, rows, study = results.frame, list(results.rows.values()), results.study
    tested = frame[frame.part.isin(MAIN) & frame.p.notna() & frame.metric.map(better).ne("")]
    short = [row for row in rows if row.members == 1 and len(row.seeds) < len(study.seeds)]
    first_rows = [network.rows[0] for network in results.networks]
    single = [part for part in results.parts if part not in MAIN]
    severities = [part.removeprefix("severity ") for part in single if part[:9] == "severity "]
    text = render(
        "notes.txt",
        study=study,
        rows=rows,
        first=results.networks[0] if results.networks else None,
        values_of=lambda key: list(dict.fromkeys(str(row.get(key)) for row in first_rows)),
        unfinished=[row.variant for row in short],
        over=list(dict.fromkeys(one for one in frame.over if one)),
        compared=(tested.kind == ("mean" if study.planned is None else "planned")).sum(),
        corruptions=len(single) - len(severities),
        severities=severities,
        scaled=any(map(is_scaled, results.metrics)),
        collapsed=any(part in MAIN for _, part in results.collapsed),
        swept=results.swept,
        unselected=[name for name, chosen in results.selected.items() if chosen is None],
    )
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
