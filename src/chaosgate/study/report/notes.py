"""The marks of a table and the sentences beneath it that say what its numbers are."""

from math import isnan

from chaosgate.metrics.names import is_scaled
from chaosgate.study.report.table import Row, Table

ON_TEST = "†"  # beside a number whose temperature has seen the test images
FLAG = "‡"  # beside a collapsed network, where there is no room for the word


def count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    """Three decimals; missing numbers are said to be missing."""
    return "missing" if isnan(value) else f"{value:.3f}"


def has_temperature(table: Table) -> bool:
    """Whether the table has columns +T."""
    return any(is_scaled(metric) for _, metric in table.columns)


def on_test(row: Row) -> str:
    """The mark of numbers whose temperature has seen the test images; empty for others."""
    return ON_TEST if row.fitted_on_test else ""


COLLAPSED = (
    f"{FLAG} collapsed: accuracy and confidence were lost together, half of the reference's lead over chance or more; "
    "a small ECE is no success there."
)


def temperature_notes(table: Table) -> list[str]:
    """What +T is, on which images it was fitted, and which rows do without."""
    if not has_temperature(table):
        return ["+T is missing: no run was tested with temperature scaling."]
    notes = ["+T: the same network, its logits divided by one temperature T that minimises the validation NLL."]
    if any(row.fitted_on_test for row in table.rows):
        notes.append(
            f"{ON_TEST}: T was fitted on the test images themselves, which are this protocol's validation images; "
            "+T looks better than it is."
        )
    if absent := [row.variant for row in table.rows if row.seeds and len(row.temperature.by_seed) < len(row.seeds)]:
        notes.append(f"No temperature for every seed of {', '.join(absent)}: the result rows say why, or are older.")
    return notes


def footnotes(table: Table, mark: str = "*") -> list[str]:
    """What the numbers are, in sentences; ``mark`` is how a difference looks whose interval excludes zero."""
    facts = table.facts
    if not facts:
        return ["No run has finished yet."]
    data = f"{facts['data']}{' (subset)' if facts['subset'] else ''}"
    notes = [] if table.study.size is None else [table.study.size.warning]
    notes += [
        f"{facts['backbone']} on {data}: {table.study.checkpoint} checkpoint, {facts['n']:g} test images per cell. "
        f"Signed: difference to {table.study.reference}."
    ]
    if any(metric == "gap" for _, metric in table.columns):
        notes.append("conf-acc: mean confidence minus accuracy; above 0 is over-confident.")
    if facts["corruptions"]:
        made = "generated" if facts["generated"] else "released"
        notes.append(
            f"corrupted: mean over {count(len(facts['corruptions']), made + ' corruption')} of the mean over "
            f"severities {', '.join(map(str, facts['severities']))} of each cell's metric."
        )
    over = {entry.interval.over for row in table.rows for entry in row.entries.values() if entry.interval is not None}
    if any(len(row.seeds) > 1 for row in table.rows):
        notes.append("±: sample standard deviation over seeds (n - 1). Differences are paired by seed.")
    if "seeds" in over:
        notes.append(f"{mark}: the 95 % t interval of the paired differences over seeds excludes 0.")
    if "images" in over:
        notes.append(
            f"{mark}: the 95 % bootstrap interval over test images excludes 0. One seed: training varies beyond it."
        )
    notes += temperature_notes(table)
    if any(row.collapsed for row in table.rows):
        notes.append(COLLAPSED)
    notes.append("energy: E|h~ - h|^2 / E|h|^2 at the gate, measured at the end of training.")
    if absent := [row.variant for row in table.rows if len(row.seeds) < len(table.study.seeds)]:
        notes.append(f"Not finished: {', '.join(absent)}; their numbers are missing or rest on fewer seeds.")
    return notes
