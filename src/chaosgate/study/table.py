"""From result rows to the entries of a table: cells to aggregates, seeds to mean and standard deviation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, nan, sqrt
from typing import Any

from chaosgate.study.runs import Run
from chaosgate.study.specification import Study
from chaosgate.study.state import result_rows, state_of

CLEAN, CORRUPTED = "clean", "corrupted"
Column = tuple[str, str]  # (clean or corrupted, metric)
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Args:
        by_seed: The metric of every finished seed.
        reference: The same of the reference row; differences are taken seed by seed.
    """

    by_seed: BySeed
    reference: BySeed

    @property
    def mean(self) -> float:
        """Mean over seeds; nan where no seed has finished."""
        return _mean(list(self.by_seed.values()))

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds (n - 1 in the denominator); nan below two seeds."""
        return _std(list(self.by_seed.values()))

    @property
    def differences(self) -> list[float]:
        """Value minus reference at every seed that both have."""
        return [value - self.reference[seed] for seed, value in self.by_seed.items() if seed in self.reference]

    @property
    def difference(self) -> float:
        """Mean paired difference to the reference."""
        return _mean(self.differences)


@dataclass(frozen=True)
class Row:
    """A method at one level of every axis.

    Args:
        variant: Method and levels.
        is_reference: Whether others are compared to it.
        seeds: Seeds that have finished.
        entries: The numbers.
        energy: Realised injected energy relative to that of the features, summed over sites; 0 without a gate.
    """

    variant: str
    is_reference: bool
    seeds: tuple[int, ...]
    entries: Mapping[Column, Entry]
    energy: Entry


@dataclass(frozen=True)
class Table:
    """A study's results.

    Args:
        study: The study.
        columns: In order; the corrupted ones only if corrupted cells were tested.
        rows: In the order of the study; a row without finished seeds is there, with nan.
        facts: What the rows of all runs agree on: data, backbone, cells, images per cell, commit, versions.
    """

    study: Study
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    facts: Mapping[str, Any]


def build_table(study: Study, runs: Sequence[Run]) -> Table:
    """Read the finished runs; the others count as missing."""
    rows_of = {run.name: rows for run in runs if (rows := finished_rows(run))}
    values: dict[str, dict[Column, dict[int, float]]] = {run.variant: {} for run in runs}
    energy: dict[str, dict[int, float]] = {run.variant: {} for run in runs}
    for run in runs:
        if run.name in rows_of:
            energy[run.variant][run.seed] = injected_energy(rows_of[run.name])
            for column, value in summarise(rows_of[run.name], study.metrics).items():
                values[run.variant].setdefault(column, {})[run.seed] = value
    found = {column for by_column in values.values() for column in by_column}
    columns = tuple(
        (part, metric) for part in (CLEAN, CORRUPTED) for metric in study.metrics if (part, metric) in found
    )
    reference = {run.variant: "-".join([study.reference, *run.levels.values()]) for run in runs}

    def row(variant: str) -> Row:
        mine, theirs = values[variant], values[reference[variant]]
        entries = {column: Entry(mine.get(column, {}), theirs.get(column, {})) for column in columns}
        is_reference = variant == reference[variant]
        return Row(variant, is_reference, tuple(energy[variant]), entries, Entry(energy[variant], {}))

    return Table(study, columns, tuple(row(variant) for variant in values), _facts(list(rows_of.values())))


def finished_rows(run: Run) -> list[dict[str, Any]]:
    """The rows of a finished run that its study asked for; none if it is not finished."""
    state = state_of(run)
    if state.condition != "done":
        return []
    cells = {tuple(cell) for cell in state.record["cells"]}
    return [
        row
        for row in result_rows(run.directory)
        if row["checkpoint"] == state.record["checkpoint"] and (row["corruption"], row["severity"]) in cells
    ]


def summarise(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[Column, float]:
    """Clean metrics, and corrupted ones as mean over corruptions of the mean over severities."""
    from chaosgate.metrics import aggregate_cells  # imports torch; reading a study does not need it

    summary: dict[Column, float] = {}
    for metric in metrics:
        by_cell = {(row["corruption"], int(row["severity"])): float(row[metric]) for row in rows}
        if (CLEAN, 0) in by_cell:
            summary[CLEAN, metric] = by_cell[CLEAN, 0]
        if any(corruption != CLEAN for corruption, _ in by_cell):
            summary[CORRUPTED, metric] = aggregate_cells(by_cell)
    return summary


def injected_energy(rows: Sequence[Mapping[str, Any]]) -> float:
    """Relative energy measured at the end of training, over all sites of the gate."""
    return fsum(float(site["energy"]) for site in rows[0]["noise_measured"])


def _facts(runs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    if not runs:
        return {}
    first = runs[0][0]
    corruptions = dict.fromkeys(row["corruption"] for row in runs[0] if row["corruption"] != CLEAN)
    severities = sorted({row["severity"] for row in runs[0] if row["corruption"] != CLEAN})
    data = first["data"] or {}
    return {
        "backbone": first["backbone"],
        "data": data.get("name"),
        "images": data.get("images", {}),
        "subset": data.get("subset"),
        "generated": data.get("corruptions") == "generated",
        "corruptions": list(corruptions),
        "severities": severities,
        "n": first["n"],
        "versions": first["versions"],
        "commits": sorted({str(row["commit"]) for rows in runs for row in rows}),
    }


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else nan


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return nan
    mean = _mean(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
