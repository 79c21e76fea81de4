"""What a report is made of: the networks of a study with their rows, and the errors of their tests.

The errors come from resampling the test images. :mod:`~chaosgate.study.report.packed` keeps both in
two files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import fsum, log, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chaosgate.metrics import (
    CellMetrics,
    area_under_roc,
    temperature_scaling,
)
from chaosgate.metrics.aggregate import CLEAN as CLEAN_CELL
from chaosgate.metrics.aggregate import Cell
from chaosgate.metrics.functional import calibration_bins, effective_counts
from chaosgate.run.directory import RunDirectory, read_lines
from chaosgate.run.outputs import Logits, Samples, load_logits, load_samples
from chaosgate.study.execute.state import record_of, rows_of, state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study
from chaosgate.study.report import inference
from chaosgate.study.report.names import (
    MAIN,
    OOD,
    PLUS_T,
    columns_of,
    is_scaled,
    parts_of,
    scaled,
)

Array = NDArray[Any]
ByCell = dict[Cell, float]
Column = tuple[str, str]  # part and metric


@dataclass(frozen=True)
class Network:
    """A trained network with its test rows, or an ensemble of several.

    Args:
        run: Its name; empty for an ensemble.
        variant: Method and levels: the row of the table.
        method: The method.
        levels: Level of every further axis.
        seed: The seed; negative for an ensemble, which is paired with nothing.
        members: How many networks answer together.
        checkpoint: Which network of the training was tested.
        config: The configuration of the training.
        curves: One entry per epoch.
        rows: One per test cell, with all metrics of the study.
    """

    run: str
    variant: str
    method: str
    levels: Mapping[str, str]
    seed: int
    members: int
    checkpoint: str
    config: dict[str, Any]
    curves: list[dict[str, float]]
    rows: list[dict[str, Any]]

    def by_cell(self, metric: str) -> ByCell:
        """A metric of every cell that has it; a row may have no ``nll_T``."""
        found = {cell_of(row): row.get(metric) for row in self.rows}
        return {cell: float(value) for cell, value in found.items() if value is not None}

    @property
    def energy(self) -> float:
        """Injected energy relative to that of the features at the end of training, over all sites.

        0 without a gate; nan for a gate that was not measured.
        """
        first = self.rows[0]
        if first["noise"]["gate"] is not None and not first["noise_measured"]:
            return nan
        return fsum(float(site["energy"]) for site in first["noise_measured"])

    @property
    def temperature(self) -> float | None:
        """What the logits were divided by for the columns +T; None where none was fitted."""
        return next(iter(self.by_cell("temperature").values()), None)

    @property
    def fitted_on_test(self) -> bool:
        """Whether that temperature was fitted on the test images."""
        return any(row.get("temperature_split") == "test" for row in self.rows)

    @property
    def validation_nll(self) -> float:
        """Of the tested checkpoint: the last, the smallest, or that of the first largest Top-1."""
        lines = [line for line in self.curves if "val/nll" in line] or [{"val/nll": nan}]
        if self.checkpoint == "top1":
            return max(lines, key=lambda line: line.get("val/top1", nan))["val/nll"]
        nll = [line["val/nll"] for line in lines]
        return nll[-1] if self.checkpoint == "last" else min(nll)

    @property
    def bins(self) -> int:
        """Bins of the ECE."""
        return int(self.config["model"].get("num_bins", inference.NUM_BINS))


@dataclass(frozen=True)
class ImageErrors:
    """What resampling the test images gave; ``nan`` where a network has no kept outputs.

    Args:
        networks: Variant and seed of every network. ``VARIANT+T`` of the reference stands for its
            metrics after temperature scaling, to compare others without a temperature with it.
        columns: Part and metric.
        bias: Mean over resamplings minus the measured value, (columns, networks).
        covariance: Between networks over resamplings, (columns, networks, networks).
        floors: ECE of a perfectly calibrated network with these confidences: mean and 95th
            percentile, (columns, networks, 2).
        reliability: Count, summed confidence, summed correctness and worth in independent images
            of every bin, clean and corrupted, (2, networks, 4, bins).
    """

    networks: list[tuple[str, int]]
    columns: list[Column]
    bias: Array
    covariance: Array
    floors: Array
    reliability: Array

    def of_differences(
        self, column: Column, mine: str, theirs: str, seeds: Sequence[int]
    ) -> tuple[Array | None, float]:
        """Covariance of paired differences over seeds, and their mean bias; None if unknown."""
        if column not in self.columns:
            return None, 0.0
        a, b = ([self.networks.index((one, seed)) for seed in seeds] for one in (mine, theirs))
        k = self.columns.index(column)
        whole, bias = self.covariance[k], float((self.bias[k, a] - self.bias[k, b]).mean())
        covariance = whole[np.ix_(a, a)] + whole[np.ix_(b, b)]
        covariance -= whole[np.ix_(a, b)] + whole[np.ix_(b, a)]
        return (covariance, bias) if np.isfinite(covariance).all() else (None, 0.0)

    def of_row(self, values: Array, variant: str) -> Array:
        """Those of the networks of a row that have some."""
        rows = [k for k, (one, _) in enumerate(self.networks) if one == variant]
        return np.array([values[k] for k in rows if np.isfinite(values[k]).all()])


Evidence = tuple[list[Network], ImageErrors]
Tested = tuple[Network, Samples | None]


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell that a row is about."""
    return Cell(row["corruption"], int(row["severity"]))


def collect(study: Study, runs: Sequence[Run]) -> Evidence:
    """The finished ones among the runs, in order, then their ensembles."""
    tested = [_read(study, run) for run in runs if state_of(run).condition == "done"]
    indices = [samples.index for _, samples in tested if samples is not None]
    for index in indices:
        if not np.array_equal(index, indices[0]):
            raise ValueError(
                f"two runs of this study were tested on different images ({len(indices[0])} and "
                f"{len(index)} of them, or with other indices), so they cannot be paired. Remove "
                "their `outputs` and `tested` folders and run the study again."
            )
    if len(bins := {network.bins for network, _ in tested}) > 1:
        raise ValueError(
            f"runs of this study have an ECE of {' and '.join(map(str, sorted(bins)))} bins, which "
            "cannot be compared. Set model.num_bins under 'overrides:' of the study, not in a "
            "method."
        )
    networks = [network for network, _ in tested]
    ensembles = _ensembles(study, {run.name: run for run in runs}, networks)
    return [*networks, *ensembles], _image_errors(study, tested)


def _read(study: Study, run: Run) -> Tested:
    records = [record_of(run.directory, test) for test in run.test_outputs]
    rows = [dict(row) for row in rows_of(run.directory, records) if not row.get("ood")]
    directory = RunDirectory(run.directory)
    lines, _ = read_lines(directory.curves)  # if an epoch was started twice, the last one counts
    curves = list({line["epoch"]: line for line in lines}.values())
    samples = load_samples(run.directory, *run.outputs_of(ood=False))
    others = load_samples(run.directory, *run.outputs_of(ood=True))
    if samples is not None and others is not None:
        inside = samples.confidence[samples.cells.index(CLEAN_CELL)]
        area = area_under_roc(*map(torch.from_numpy, (inside, others.confidence[0])))
        for row in (row for row in rows if cell_of(row) == CLEAN_CELL):
            row[OOD] = float(area)
    about = (run.name, run.variant, run.method, run.levels, run.seed, 1, run.checkpoint)
    return Network(*about, directory.settings(), curves, rows), samples


def _image_errors(study: Study, tested: Sequence[Tested]) -> ImageErrors:
    metrics = list(dict.fromkeys([*columns_of(study.metrics), *PLUS_T, *map(scaled, PLUS_T)]))
    names: list[tuple[str, int]] = []
    drawn: dict[Any, Array] = {}  # by name of the network and column
    floors: dict[Any, tuple[float, float]] = {}
    pooled: dict[Any, Array] = {}
    bins = tested[0][0].bins if tested else 0
    for network, samples in tested:
        name, after = (network.variant, network.seed), (f"{network.variant}+T", network.seed)
        names += [name, after] if network.method == study.reference else [name]
        if samples is None:
            continue
        groups = parts_of(samples.cells)
        for (part, metric), values in inference.resample(samples, groups, metrics, bins).items():
            drawn[name, (part, metric)] = values
            if is_scaled(metric):
                drawn[after, (part, metric.removesuffix("_T"))] = values
        scores = {"ece": samples.confidence}
        scores |= {} if samples.scaled is None else {"ece_T": samples.scaled.confidence}
        for part in (part for part in MAIN if part in groups):
            pooled[name, part] = _pooled(samples.of(sum(map(list, groups[part]), [])), bins)
            for metric, confidence in scores.items():
                floor = inference.ece_floor(confidence, samples.cells, groups[part], bins)
                floors[name, (part, metric)] = floor
    columns = list(dict.fromkeys(column for _, column in drawn))

    def table(found: Mapping[Any, Any], keys: Sequence[Any], *shape: int) -> Array:
        rows = [[found.get((name, key), np.full(shape, nan)) for name in names] for key in keys]
        return np.array(rows).reshape(len(keys), len(names), *shape)

    stars = table(drawn, columns, 1 + inference.RESAMPLES)
    return ImageErrors(
        names,
        columns,
        stars[..., 1:].mean(-1) - stars[..., 0],
        np.array([np.cov(column[:, 1:]) for column in stars]),
        table(floors, columns, 2),
        table(pooled, MAIN, 4, bins),
    )


def _pooled(samples: Samples, bins: int) -> Array:
    """All cells pooled; an image in several cells is worth less than as many images."""
    confidence, correct = map(torch.from_numpy, (samples.confidence, samples.correct))
    sums = calibration_bins(confidence.ravel().double(), correct.ravel(), bins)
    return np.stack([*sums[:3], effective_counts(confidence, correct, bins)])


# -- deep ensembles of existing runs ---------------------------------------------------------------


def _ensembles(
    study: Study, runs: Mapping[str, Run], networks: Sequence[Network]
) -> Iterator[Network]:
    """As many ensembles as the finished seeds of their methods allow, in the order of seeds."""
    for of, size in ((one.of, one.size) for one in study.ensemble):
        ready = [one for one in networks if one.method == of]
        ready.sort(key=lambda network: study.seeds.index(network.seed))
        for k in range(0, len(ready) - size + 1, size):
            group, first = [runs[network.run] for network in ready[k : k + size]], ready[k]
            kept = [load_logits(run.directory, run.outputs_of(ood=False)) for run in group]
            members = [one for one in kept if one is not None]
            if len(members) == size:
                own = _together(members, first.bins)
                rows = [row | own[cell_of(row)] for row in first.rows if cell_of(row) in own]
                more: dict[str, Any] = {
                    "run": "",
                    "variant": f"{of} ensemble x{size}",
                    "levels": {},
                }
                more |= {"seed": -1 - k // size, "members": size, "curves": [], "rows": rows}
                yield replace(first, **more)


def _together(members: Sequence[Logits], bins: int) -> dict[Cell, dict[str, Any]]:
    """The mean of the members' probabilities as one network, with a temperature of its own."""
    first = members[0]
    logits = _mean_log_probability(member.logits for member in members)
    cells, images, classes = logits.shape
    target = torch.from_numpy(first.target).long().reshape(-1)

    def metrics_of(values: Tensor) -> dict[str, list[Any]]:
        metrics = CellMetrics(cells, bins, adaptive_bins=bins)
        cell = torch.arange(cells).repeat_interleave(images)
        metrics.update(values.view(-1, classes), target, cell)
        return {name: column.reshape(-1).tolist() for name, column in metrics.compute().items()}

    found = metrics_of(logits)
    held = [member.validation for member in members if member.validation is not None]
    if len(held) == len(members) and all(np.array_equal(one[2], held[0][2]) for one in held):
        mean, truth = _mean_log_probability(one[0] for one in held), torch.from_numpy(held[0][1])
        with suppress(ValueError):  # no temperature is best
            temperature = temperature_scaling(mean, truth.long()).temperature
            after = metrics_of(logits / temperature)
            found |= {scaled(name): after[name] for name in PLUS_T}
            found["temperature"] = [temperature] * cells
    own = dict.fromkeys((*map(scaled, PLUS_T), "temperature"))  # not those of the first member
    return {cell: own | {m: found[m][k] for m in found} for k, cell in enumerate(first.cells)}


def _mean_log_probability(logits: Iterable[Array]) -> Tensor:
    """The logarithm of the mean probability over members, in float64."""
    each = torch.stack([torch.from_numpy(one).double().log_softmax(-1) for one in logits])
    return each.logsumexp(0) - log(len(each))
