"""Fair strength: every method at the paper's strength, and at the one that validation NLL selects for it."""

from collections import Counter
from collections.abc import Sequence
from math import isnan

from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report.table import Row, Table


def strength_tables(table: Table) -> list[Table]:
    """The tables of a study whose methods have swept strengths; the table itself if none has.

    First all at the paper's strength, then each at its own selected strength, then every strength. A sweep without a
    strength of the paper is shown as it is; nothing is selected.
    """
    sweeps = {method: sweep for method, sweep in table.study.strength.items() if sweep.paper is not None}
    if not sweeps:
        return [table]
    paper = [row for row in table.rows if row.method not in sweeps or _strength(row) == sweeps[row.method].paper]
    chosen = set(select_strengths(table).values())
    selected = [row for row in table.rows if row.method not in sweeps or row.variant in chosen]
    return [
        table.only(f"{table.title}: strength of the paper", paper),
        table.only(f"{table.title}: strength with the smallest validation NLL", selected),
        table.only(f"{table.title}: every strength", table.rows),
    ]


def select_strengths(table: Table) -> dict[str, str | None]:
    """The variant with the smallest validation NLL among those that differ in strength alone, keyed by the rest.

    The test set has no say. None where a strength or a seed is missing: a selection among what happens to be finished
    is not one.
    """
    return {name: _smallest(rows, len(table.study.seeds)) for name, rows in _groups(table).items()}


def selection_notes(table: Table) -> list[str]:
    """How the strengths were selected, what each seed alone would have selected, and whether the test images helped."""
    notes = []
    swept = {method for method, sweep in table.study.strength.items() if sweep.paper is not None}
    for name, rows in _groups(table).items():
        chosen = _smallest(rows, len(table.study.seeds))
        if chosen is None or rows[0].method not in swept or len(rows) < 2:
            continue
        alone = Counter(
            min(rows, key=lambda row, seed=seed: row.validation_nll.by_seed[seed]).levels[STRENGTH]  # type: ignore[misc]
            for seed in rows[0].seeds
        )
        votes = ", ".join(f"{level} for {times} of {len(rows[0].seeds)} seeds" for level, times in alone.most_common())
        saw = " on the test images, which are the validation images here: it looks better than it is"
        notes.append(
            f"{name}: strength selected by the mean validation NLL{saw if rows[0].fitted_on_test else ''}; each seed "
            f"alone would select {votes}."
        )
    return notes


def _groups(table: Table) -> dict[str, list[Row]]:
    """Rows that differ in strength alone."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        if STRENGTH in row.levels:
            rest = "-".join([row.method, *(level for axis, level in row.levels.items() if axis != STRENGTH)])
            groups.setdefault(rest, []).append(row)
    return groups


def _smallest(rows: Sequence[Row], seeds: int) -> str | None:
    if any(len(row.seeds) < seeds or isnan(row.validation_nll.mean) for row in rows):
        return None
    return min(rows, key=lambda row: row.validation_nll.mean).variant


def _strength(row: Row) -> float:
    return float(row.levels[STRENGTH])
