"""What a report is made of: the networks of a study with their rows, and the errors of their tests.

The errors come from resampling the test images. :mod:`~chaosgate.study.report.packed` keeps both in
two files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from chaosgate.run.directory import RunDirectory, config_hash, read_lines
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
        tests: Keys of ``Run.test_outputs``; a packed run counts for a study with the same tests.
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
    tests: list[str] = field(default_factory=list)

    def by_cell(self, metric: str) -> ByCell:
        """A metric of every cell that has it; a row may have no ``nll_T``."""
        found = {cell_of(row): row.get(metric) for row in self.rows}
        return {cell: float(value) for cell, value in found.items() if value is not None}

    @property
    def numbers(self) -> dict[Cell, dict[str, float]]:
        """The measured values of every cell."""
        return {
            cell_of(row): {key: v for key, v in row.items() if isinstance(v, float)}
            for row in self.rows
        }

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
        draws: What they were made from; None where the study was finished when it was packed.
    """

    networks: list[tuple[str, int]]
    columns: list[Column]
    bias: Array
    covariance: Array
    floors: Array
    reliability: Array
    draws: "Draws | None" = None

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


@dataclass(frozen=True)
class Draws:
    """What resampling gave, by network and column; parts of a study are joined by it.

    Args:
        networks: Variant and seed, as in :class:`ImageErrors`.
        values: As measured, then for every resampling, (1 + resamples,).
        floors: Mean and 95th percentile.
        reliability: By network and clean or corrupted, (4, bins).
        index: Hash of the numbers of the images; empty if no outputs were kept.
    """

    networks: list[tuple[str, int]]
    values: dict[Any, Array]
    floors: dict[Any, Array]
    reliability: dict[Any, Array]
    index: str = ""

    @property
    def columns(self) -> list[Column]:
        return list(dict.fromkeys(column for _, column in self.values))

    def errors(self) -> ImageErrors:
        bins = max((one.shape[-1] for one in self.reliability.values()), default=1)
        stars = self.table(self.values, self.columns, 1 + inference.RESAMPLES)
        return ImageErrors(
            self.networks,
            self.columns,
            stars[..., 1:].mean(-1) - stars[..., 0],
            np.array([np.cov(column[:, 1:]) for column in stars]),
            self.table(self.floors, self.columns, 2),
            self.table(self.reliability, MAIN, 4, bins),
            self,
        )

    def joined(self, more: "Draws | None", networks: Iterable[Network]) -> "Draws":
        """Those of these networks, wherever they were run."""
        if more is None:
            raise ValueError(
                "A study that was finished when it was packed cannot be joined with other runs."
            )
        if self.index and more.index and self.index != more.index:
            raise ValueError("The packed runs were tested on other images; they cannot be paired.")
        known = {(f"{one.variant}{end}", one.seed) for one in networks for end in ("", "+T")}
        return Draws(
            [name for name in dict.fromkeys([*self.networks, *more.networks]) if name in known],
            {**more.values, **self.values},
            {**more.floors, **self.floors},
            {**more.reliability, **self.reliability},
            self.index or more.index,
        )

    def table(self, found: Mapping[Any, Array], keys: Sequence[Any], *shape: int) -> Array:
        """An array (keys, networks, ...)."""
        nothing = np.full(shape, nan)
        rows = [[found.get((name, key), nothing) for name in self.networks] for key in keys]
        return np.array(rows).reshape(len(keys), len(self.networks), *shape)


Evidence = tuple[list[Network], ImageErrors]
Tested = tuple[Network, Samples | None]


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell that a row is about."""
    return Cell(row["corruption"], int(row["severity"]))


def collect(study: Study, runs: Sequence[Run], packed: Sequence[Evidence] = ()) -> Evidence:
    """The finished ones among the runs, in order, then their ensembles.

    Args:
        study: The study.
        runs: Its runs.
        packed: Parts of it (:func:`chaosgate.study.report.packed.load_parts`).
    """
    tested = [_read(study, run) for run in runs if state_of(run).condition == "done"]
    indices = [samples.index for _, samples in tested if samples is not None]
    for index in indices:
        if not np.array_equal(index, indices[0]):
            raise ValueError(
                f"two runs of this study were tested on different images ({len(indices[0])} and "
                f"{len(index)} of them, or with other indices), so they cannot be paired. Remove "
                "their `outputs` and `tested` folders and run the study again."
            )
    networks, draws = [network for network, _ in tested], _draws(study, tested)
    for others, errors in packed:
        networks = _joined(networks, others)
        draws = draws.joined(errors.draws, networks)
    if len(bins := {network.bins for network in networks}) > 1:
        raise ValueError(
            f"runs of this study have an ECE of {' and '.join(map(str, sorted(bins)))} bins, which "
            "cannot be compared. Set model.num_bins under 'overrides:' of the study, not in a "
            "method."
        )
    order = [run.name for run in runs]
    networks.sort(key=lambda network: order.index(network.run))
    ensembles = _ensembles(study, {run.name: run for run in runs}, networks)
    return [*networks, *ensembles], draws.errors()


def _joined(networks: list[Network], more: Sequence[Network]) -> list[Network]:
    have = {one.run: one for one in networks}
    for one in more:
        if one.run in have and one.numbers != have[one.run].numbers:
            raise ValueError(f"{one.run} was run twice with different numbers; leave out one part.")
    return [*networks, *(one for one in more if one.run not in have)]


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
    return Network(*about, directory.settings(), curves, rows, [*run.test_outputs]), samples


def _draws(study: Study, tested: Sequence[Tested]) -> Draws:
    metrics = list(dict.fromkeys([*columns_of(study.metrics), *PLUS_T, *map(scaled, PLUS_T)]))
    found = Draws([], {}, {}, {})
    for network, samples in tested:
        name, after = (network.variant, network.seed), (f"{network.variant}+T", network.seed)
        found.networks.extend([name, after] if network.method == study.reference else [name])
        if samples is None:
            continue
        found = replace(found, index=found.index or config_hash(samples.index.tolist(), 16))
        groups, bins = parts_of(samples.cells), network.bins
        for (part, metric), values in inference.resample(samples, groups, metrics, bins).items():
            found.values[name, (part, metric)] = values
            if is_scaled(metric):
                found.values[after, (part, metric.removesuffix("_T"))] = values
        scores = {"ece": samples.confidence}
        scores |= {} if samples.scaled is None else {"ece_T": samples.scaled.confidence}
        for part in (part for part in MAIN if part in groups):
            pooled = _pooled(samples.of(sum(map(list, groups[part]), [])), bins)
            found.reliability[name, part] = pooled
            for metric, confidence in scores.items():
                floor = inference.ece_floor(confidence, samples.cells, groups[part], bins)
                found.floors[name, (part, metric)] = np.array(floor)
    return found


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
