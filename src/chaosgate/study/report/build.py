"""Build the tables of a study from its finished runs, and select strengths by validation NLL."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

from chaosgate.metrics.aggregate import Cell, aggregate_cells, collapsed
from chaosgate.metrics.names import is_scaled, with_scaled
from chaosgate.run.outputs import CLEAN_CELL
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import STRENGTH, Ensemble, Study
from chaosgate.study.report.collect import Finished, ensemble_name
from chaosgate.study.report.inference import (
    Floats,
    Groups,
    ece_floor,
    is_biased,
    require_same_images,
    resample,
    resample_auroc,
)
from chaosgate.study.report.packed import kept_ensembles
from chaosgate.study.report.table import CLEAN, CORRUPTED, Column, Entry, Row, Table, reference_variant


def build_table(study: Study, runs: Sequence[Run], finished: Sequence[Finished]) -> Table:
    """One row per variant; what is not finished counts as missing."""
    of_variant: dict[str, list[Finished]] = {run.variant: [] for run in runs}
    for one in finished:
        of_variant[one.run.variant].append(one)
    require_same_images(one.samples for one in finished if one.samples is not None)
    shown = with_scaled(study.metrics)
    wanted = list(dict.fromkeys([*shown, "top1", "confidence"]))
    whole = {variant: _entries(ones, wanted) for variant, ones in of_variant.items()}
    found = {column for entries in whole.values() for column in entries}
    columns = tuple((part, metric) for part in (CLEAN, CORRUPTED) for metric in shown if (part, metric) in found)

    def row(run: Run) -> Row:
        reference = reference_variant(study, run.levels)
        mine, theirs = whole[run.variant], whole[reference]
        ones = of_variant[run.variant]
        entries = {
            column: replace(mine.get(column, Entry(column[1], {})), reference=theirs.get(column)) for column in columns
        }
        if run.variant == reference:
            entries = {column: replace(entry, reference=None) for column, entry in entries.items()}
        return Row(
            run.variant,
            run.method,
            run.levels,
            run.variant == reference,
            tuple(one.run.seed for one in ones),
            entries,
            Entry("energy", {one.run.seed: one.energy for one in ones}),
            Entry("nll", {one.run.seed: one.validation_nll for one in ones}),
            _collapsed(mine, theirs, ones),
            Entry("temperature", {one.run.seed: one.temperature for one in ones if one.temperature is not None}),
            any(one.fitted_on_test for one in ones),
            run.checkpoint,
        )

    first = {run.variant: run for run in reversed(runs)}
    rows = [row(first[variant]) for variant in of_variant]
    rows += [_ensemble_row(study, one, finished, columns, whole) for one in study.ensemble]
    return Table(study, study.name, columns, tuple(rows), _facts(finished))


def _ensemble_row(
    study: Study,
    ensemble: Ensemble,
    finished: Sequence[Finished],
    columns: Sequence[Column],
    whole: Mapping[str, Mapping[Column, Entry]],
) -> Row:
    """A row from kept logits. Its keys are not seeds, so that it is paired with nothing."""
    found = {-1 - k: one for k, one in enumerate(kept_ensembles(study, ensemble, finished))}
    entries = {}
    asked = [(part, metric) for part, _ in columns for metric in ("top1", "confidence")]  # has it collapsed?
    for part, metric in dict.fromkeys([*columns, *asked]):
        values, floors = {}, {}
        for key, one in found.items():
            groups = cell_groups(one.samples.cells)
            by_cell = one.by_cell.get(metric, {})
            if not by_cell or (part == CORRUPTED and len(by_cell) < len(one.samples.cells)):
                continue
            values[key] = by_cell[CLEAN_CELL] if part == CLEAN else aggregate_cells(by_cell)
            confidence = {"ece": one.samples.confidence, "ece_T": one.scaled_confidence}.get(metric)
            if confidence is not None:
                floors[key] = ece_floor(confidence, one.samples.cells, groups[part], finished[0].bins)
        entries[part, metric] = Entry(metric, values, {}, floors)
    members = [one for one in finished if one.run.method == ensemble.of]
    theirs = whole[reference_variant(study, members[0].run.levels)] if members else {}
    return Row(
        ensemble_name(ensemble),
        ensemble.of,
        {},
        False,
        tuple(found),
        {column: entries[column] for column in columns},
        Entry("energy", {one.run.seed: one.energy for one in members if found}),
        Entry("nll", {}),
        _collapsed(entries, theirs, members),
        Entry("temperature", {key: one.temperature for key, one in found.items() if not isnan(one.temperature)}),
        any(one.fitted_on_test for one in members),
        study.checkpoints[0],
        ensemble.size,
    )


def summarise(one: Finished, metrics: Sequence[str]) -> dict[Column, float]:
    """Clean metrics, and corrupted ones as mean over corruptions of the mean over severities."""
    summary: dict[Column, float] = {}
    for metric in metrics:
        by_cell = one.by_cell(metric)
        if (CLEAN, 0) in by_cell:
            summary[CLEAN, metric] = by_cell[CLEAN, 0]
        if any(corruption != CLEAN for corruption, _ in by_cell) and len(by_cell) == len(one.by_cell("n")):
            summary[CORRUPTED, metric] = aggregate_cells(by_cell)
    return summary


def _entries(ones: Sequence[Finished], metrics: Sequence[str]) -> dict[Column, Entry]:
    """The entries of a row, compared to nothing yet."""
    values: dict[Column, dict[int, float]] = {}
    drawn: dict[Column, dict[int, Floats]] = {}
    floors: dict[Column, dict[int, tuple[float, float]]] = {}
    for one in ones:
        seed = one.run.seed
        for column, value in summarise(one, metrics).items():
            values.setdefault(column, {})[seed] = value
        if one.samples is None:
            continue
        groups = cell_groups(one.by_cell("top1"))
        for column, draws in resample(one.samples, groups, metrics, one.bins).items():
            drawn.setdefault(column, {})[seed] = draws
            if is_biased(column[1]):
                source = one.samples.scaled if is_scaled(column[1]) else one.samples
                assert source is not None
                floor = ece_floor(source.confidence, one.samples.cells, groups[column[0]], one.bins)
                floors.setdefault(column, {})[seed] = floor
        if (CLEAN, "ood_auroc") in values and one.ood_confidence is not None:
            inside = one.samples.confidence[one.samples.cells.index(CLEAN_CELL)]
            drawn.setdefault((CLEAN, "ood_auroc"), {})[seed] = resample_auroc(inside, one.ood_confidence)
    return {
        column: Entry(column[1], by_seed, drawn.get(column, {}), floors.get(column, {}))
        for column, by_seed in values.items()
    }


def cell_groups(cells: Iterable[Cell]) -> Groups:
    """The cells of the columns, by corruption."""
    corruptions: dict[str, list[tuple[str, int]]] = {}
    for name, severity in cells:
        corruptions.setdefault(name, []).append((name, severity))
    clean = corruptions.pop(CLEAN, None)
    groups = {CLEAN: [clean]} if clean else {}
    return {**groups, CORRUPTED: list(corruptions.values())} if corruptions else groups


def _collapsed(
    mine: Mapping[Column, Entry], theirs: Mapping[Column, Entry], ones: Sequence[Finished]
) -> frozenset[str]:
    found = set()
    for part in (CLEAN, CORRUPTED):
        asked = ((mine, "top1"), (mine, "confidence"), (theirs, "top1"))
        if any((part, name) not in entries for entries, name in asked):
            continue
        top1, confidence, reference = (entries[part, name].mean for entries, name in asked)
        if isnan(top1 + confidence + reference):
            continue
        if collapsed(top1, confidence, reference, num_classes=ones[0].config["model"]["num_classes"]):
            found.add(part)
    return frozenset(found)


def _same_bins(finished: Sequence[Finished]) -> int:
    """Bins of the ECE of all runs; those with others cannot be compared."""
    found = sorted({one.bins for one in finished})
    if len(found) > 1:
        raise ValueError(
            f"runs of this study have an ECE of {' and '.join(map(str, found))} bins, which cannot be compared. Set "
            "model.num_bins under 'overrides:' of the study, not in a method."
        )
    return found[0]


def _facts(finished: Sequence[Finished]) -> dict[str, Any]:
    if not finished:
        return {}
    rows = finished[0].rows
    corruptions = dict.fromkeys(row["corruption"] for row in rows if row["corruption"] != CLEAN)
    data = rows[0]["data"] or {}
    measured = [site for one in finished for site in one.rows[0]["noise_measured"]]
    images: dict[str, set[int]] = {}  # settings of a grid may differ in them, and in the backbone
    for one in finished:
        for part, many in ((one.rows[0]["data"] or {}).get("images") or {}).items():
            images.setdefault(part, set()).add(many)
    return {
        "backbone": " and ".join(dict.fromkeys(str(one.rows[0]["backbone"]) for one in finished)),
        "data": data.get("name"),
        "images": {part: sorted(many) for part, many in images.items()},
        "subset": data.get("subset"),
        "made": sorted({(row["data"] or {}).get("corruptions") or "" for row in rows if row["corruption"] != CLEAN}),
        "corruptions": list(corruptions),
        "severities": sorted({row["severity"] for row in rows if row["corruption"] != CLEAN}),
        "n": rows[0]["n"],
        "bins": _same_bins(finished),
        "energy_images": max((site.get("images", 0) for site in measured), default=0),
        "versions": rows[0]["versions"],
        "commits": sorted({str(one.rows[0]["commit"]) for one in finished}),
        "processors": sorted({one.rows[0].get("processor") or "not recorded" for one in finished}),
    }


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

    The test set is not used. None where a strength or a seed is missing: a selection among what happens to be finished
    is not one.
    """
    return {
        name: smallest_validation_nll(rows, len(table.study.seeds)) for name, rows in rows_by_strength(table).items()
    }


def rows_by_strength(table: Table) -> dict[str, list[Row]]:
    """Rows that differ in strength alone."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        if STRENGTH in row.levels:
            rest = "-".join([row.method, *(level for axis, level in row.levels.items() if axis != STRENGTH)])
            groups.setdefault(rest, []).append(row)
    return groups


def smallest_validation_nll(rows: Sequence[Row], seeds: int) -> str | None:
    if any(len(row.seeds) < seeds or isnan(row.validation_nll.mean) for row in rows):
        return None
    return min(rows, key=lambda row: row.validation_nll.mean).variant


def _strength(row: Row) -> float:
    return float(row.levels[STRENGTH])
