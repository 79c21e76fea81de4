"""From finished runs to the entries of a table: cells to aggregates, seeds to mean, spread and difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isnan, nan
from statistics import stdev
from typing import Any

import numpy as np

from chaosgate.metrics.names import with_scaled
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study
from chaosgate.study.report.collect import Finished
from chaosgate.study.report.inference import Interval, image_intervals, seed_interval

CLEAN, CORRUPTED = "clean", "corrupted"
Column = tuple[str, str]  # (clean or corrupted, metric)
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Args:
        by_seed: The metric of every finished seed.
        reference: The same of the reference row; differences are taken seed by seed.
        interval: 95 % interval of the difference, where there is one.
    """

    by_seed: BySeed
    reference: BySeed
    interval: Interval | None = None

    @property
    def mean(self) -> float:
        """Mean over seeds; nan where no seed has finished."""
        return _mean(list(self.by_seed.values()))

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds (n - 1 in the denominator); nan below two seeds."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else nan

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
        method: The method.
        levels: The level of every axis that the method is varied over.
        is_reference: Whether others are compared to it.
        seeds: Seeds that have finished.
        entries: The numbers.
        energy: Realised injected energy relative to that of the features.
        validation_nll: Of the tested checkpoints; what strengths are selected by.
        collapsed: Parts (clean, corrupted) in which the network lost its accuracy and its confidence together: a small
            ECE there is no success.
        temperature: What the logits were divided by for the columns +T.
        fitted_on_test: Whether that temperature has seen the test images.
    """

    variant: str
    method: str
    levels: Mapping[str, str]
    is_reference: bool
    seeds: tuple[int, ...]
    entries: Mapping[Column, Entry]
    energy: Entry
    validation_nll: Entry
    collapsed: frozenset[str]
    temperature: Entry
    fitted_on_test: bool


@dataclass(frozen=True)
class Table:
    """Results of a study, or a part of them.

    Args:
        study: The study.
        title: What this table shows.
        columns: In order; the corrupted ones only if corrupted cells were tested.
        rows: In the order of the study; a row without finished seeds is there, with nan.
        facts: What the rows of all runs agree on: data, backbone, cells, images per cell, commit, versions.
    """

    study: Study
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    facts: Mapping[str, Any]

    def only(self, title: str, rows: Sequence[Row]) -> "Table":
        """The same study, fewer rows."""
        return replace(self, title=title, rows=tuple(rows))


def build_table(study: Study, runs: Sequence[Run], finished: Sequence[Finished]) -> Table:
    """One row per variant; what is not finished counts as missing."""
    of_variant: dict[str, list[Finished]] = {run.variant: [] for run in runs}
    for one in finished:
        of_variant[one.run.variant].append(one)
    shown = with_scaled(study.metrics)
    wanted = dict.fromkeys([*shown, "top1", "confidence"])
    values = {variant: _values(ones, list(wanted)) for variant, ones in of_variant.items()}
    found = {column for by_column in values.values() for column in by_column}
    columns = tuple((part, metric) for part in (CLEAN, CORRUPTED) for metric in shown if (part, metric) in found)

    def row(run: Run) -> Row:
        reference = reference_variant(study, run)
        mine, theirs = values[run.variant], values[reference]
        ones = of_variant[run.variant]
        entries = {column: Entry(mine.get(column, {}), theirs.get(column, {})) for column in columns}
        if run.variant != reference:
            entries = _with_intervals(entries, ones, of_variant[reference])
        return Row(
            run.variant,
            run.method,
            run.levels,
            run.variant == reference,
            tuple(one.run.seed for one in ones),
            entries,
            Entry({one.run.seed: one.energy for one in ones}, {}),
            Entry({one.run.seed: one.validation_nll for one in ones}, {}),
            _collapsed(mine, theirs, ones),
            Entry({one.run.seed: one.temperature for one in ones if one.temperature is not None}, {}),
            any(one.fitted_on_test for one in ones),
        )

    first = {run.variant: run for run in reversed(runs)}
    rows = tuple(row(first[variant]) for variant in of_variant)
    return Table(study, study.name, columns, rows, _facts(finished))


def reference_variant(study: Study, run: Run) -> str:
    """The row that a run is compared to: the reference at the same levels, as far as it has them."""
    axes = study.axes_of(study.reference)
    return "-".join([study.reference, *(level for axis, level in run.levels.items() if axis in axes)])


def summarise(one: Finished, metrics: Sequence[str]) -> dict[Column, float]:
    """Clean metrics, and corrupted ones as mean over corruptions of the mean over severities."""
    from chaosgate.metrics import aggregate_cells  # imports torch; reading a study does not need it

    summary: dict[Column, float] = {}
    for metric in metrics:
        by_cell = one.by_cell(metric)
        if (CLEAN, 0) in by_cell:
            summary[CLEAN, metric] = by_cell[CLEAN, 0]
        if any(corruption != CLEAN for corruption, _ in by_cell) and len(by_cell) == len(one.by_cell("n")):
            summary[CORRUPTED, metric] = aggregate_cells(by_cell)
    return summary


def _values(ones: Sequence[Finished], metrics: Sequence[str]) -> dict[Column, dict[int, float]]:
    values: dict[Column, dict[int, float]] = {}
    for one in ones:
        for column, value in summarise(one, metrics).items():
            values.setdefault(column, {})[one.run.seed] = value
    return values


def _with_intervals(
    entries: Mapping[Column, Entry], mine: Sequence[Finished], reference: Sequence[Finished]
) -> dict[Column, Entry]:
    """Over seeds where there are several, over test images where there is one."""
    if len(mine) == 1 and len(reference) == 1 and mine[0].run.seed == reference[0].run.seed:
        samples, theirs = mine[0].samples, reference[0].samples
        if samples is not None and theirs is not None:
            corruptions: dict[str, list[tuple[str, int]]] = {}
            for name, severity in mine[0].by_cell("top1"):
                corruptions.setdefault(name, []).append((name, severity))
            clean = corruptions.pop(CLEAN, None)
            groups = {CLEAN: [clean]} if clean else {}
            if corruptions:
                groups[CORRUPTED] = list(corruptions.values())
            metrics = list(dict.fromkeys(metric for _, metric in entries))
            found = image_intervals(samples, theirs, groups, metrics, np.random.default_rng(0))
            return {column: replace(entry, interval=found.get(column)) for column, entry in entries.items()}
    return {column: replace(entry, interval=seed_interval(entry.differences)) for column, entry in entries.items()}


def _collapsed(
    mine: Mapping[Column, BySeed], theirs: Mapping[Column, BySeed], ones: Sequence[Finished]
) -> frozenset[str]:
    from chaosgate.metrics import collapsed

    found = set()
    for part in (CLEAN, CORRUPTED):
        asked = ((mine, "top1"), (mine, "confidence"), (theirs, "top1"))
        top1, confidence, reference = (_mean(list(values.get((part, name), {}).values())) for values, name in asked)
        if isnan(top1 + confidence + reference):
            continue
        if collapsed(top1, confidence, reference, num_classes=ones[0].config["model"]["num_classes"]):
            found.add(part)
    return frozenset(found)


def _facts(finished: Sequence[Finished]) -> dict[str, Any]:
    if not finished:
        return {}
    rows = finished[0].rows
    corruptions = dict.fromkeys(row["corruption"] for row in rows if row["corruption"] != CLEAN)
    data = rows[0]["data"] or {}
    return {
        "backbone": rows[0]["backbone"],
        "data": data.get("name"),
        "images": data.get("images", {}),
        "subset": data.get("subset"),
        "generated": any((row["data"] or {}).get("corruptions") == "generated" for row in rows),
        "corruptions": list(corruptions),
        "severities": sorted({row["severity"] for row in rows if row["corruption"] != CLEAN}),
        "n": rows[0]["n"],
        "versions": rows[0]["versions"],
        "commits": sorted({str(one.rows[0]["commit"]) for one in finished}),
    }


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else nan
