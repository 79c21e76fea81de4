"""The input of a report: the networks of a study with their rows, and the errors of their tests.

The errors come from resampling the test images. :mod:`~chaosgate.study.report.packed` keeps both in
two files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import fsum, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chaosgate.metrics import NUM_BINS
from chaosgate.metrics.aggregate import Cell
from chaosgate.run.files import config_hash
from chaosgate.run.outputs import Samples, load_samples
from chaosgate.study.execute.run import measure, rows_of
from chaosgate.study.execute.state import record_of, state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study
from chaosgate.study.report import inference
from chaosgate.study.report.names import (
    MAIN,
    PLUS_T,
    columns_of,
    is_scaled,
    parts_of,
    scaled,
)

Array = NDArray[Any]
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

    def by_cell(self, metric: str) -> dict[Cell, float]:
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
    def fitted_on_test(self) -> bool:
        """Whether the temperature was fitted on the test images."""
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
        return int(self.config["model"].get("num_bins", NUM_BINS))


Name = tuple[str, int]  # variant and seed of a network


@dataclass(frozen=True)
class ImageErrors:
    """Results of resampling the test images; ``nan`` or missing where no outputs were kept.

    Args:
        networks: The networks. ``VARIANT+T`` of the reference stands for its metrics after
            temperature scaling, to compare others without a temperature with it.
        bias: By column: mean over resamplings minus the measured value, (networks,).
        covariance: By column: between networks over resamplings, (networks, networks).
        floors: ECE of a perfectly calibrated network with these confidences: mean and 95th
            percentile, by network and column.
    """

    networks: list[Name]
    bias: dict[Column, Array]
    covariance: dict[Column, Array]
    floors: dict[tuple[Name, Column], Array]

    @classmethod
    def of_draws(
        cls,
        networks: list[Name],
        draws: Mapping[tuple[Name, Column], Array],
        floors: dict[tuple[Name, Column], Array],
    ) -> "ImageErrors":
        """Bias and covariance of draws: the measured value, then one for every resampling."""
        bias, covariance, nothing = {}, {}, np.full(1 + inference.RESAMPLES, nan)
        for column in dict.fromkeys(column for _, column in draws):
            stars = np.array([draws.get((name, column), nothing) for name in networks])
            bias[column] = stars[:, 1:].mean(1) - stars[:, 0]
            covariance[column] = np.atleast_2d(np.cov(stars[:, 1:]))
        return cls(networks, bias, covariance, floors)

    def of_differences(
        self, column: Column, mine: str, theirs: str, seeds: Sequence[int]
    ) -> tuple[Array | None, float]:
        """Covariance of paired differences over seeds, and their mean bias; None if unknown."""
        if column not in self.bias:
            return None, 0.0
        a, b = ([self.networks.index((one, seed)) for seed in seeds] for one in (mine, theirs))
        whole, bias = self.covariance[column], self.bias[column]
        covariance = whole[np.ix_(a, a)] + whole[np.ix_(b, b)]
        covariance -= whole[np.ix_(a, b)] + whole[np.ix_(b, a)]
        known = bool(np.isfinite(covariance).all())
        return (covariance, float((bias[a] - bias[b]).mean())) if known else (None, 0.0)


Evidence = tuple[list[Network], ImageErrors]


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell that a row is about."""
    return Cell(row["corruption"], int(row["severity"]))


def collect(study: Study, runs: Sequence[Run]) -> Evidence:
    """The finished ones among the runs, in order, then their ensembles."""
    metrics = list(dict.fromkeys([*columns_of(study.metrics), *PLUS_T, *map(scaled, PLUS_T)]))
    found: list[Network] = []
    draws: dict[Any, Array] = {}
    floors: dict[Any, Array] = {}
    names, tested = list[Name](), dict[str, str]()
    for run in [run for run in runs if state_of(run).condition == "done"]:
        record = record_of(run.directory, next(iter(run.test_outputs)))
        about = (run.name, run.variant, run.method, run.levels, run.seed, 1, run.checkpoint)
        one = Network(*about, record["config"], record["curves"], rows_of(run))
        found.append(one)
        names.append((one.variant, one.seed))
        if (samples := load_samples(run.directory, *run.test_outputs.values())) is not None:
            own = resampled(samples, names[-1], metrics, one.bins)
            draws, floors = draws | own[0], floors | own[1]
            tested[config_hash(samples.index.tolist(), 16)] = run.name
        if one.method == study.reference:
            names.append((f"{one.variant}+T", one.seed))
    if len(tested) > 1:
        raise ValueError(
            f"{' and '.join(tested.values())} were tested on different images, so they cannot be "
            "paired. Remove their `outputs` and `tested` folders and run the study again."
        )
    ensembles = _ensembles(study, {run.name: run for run in runs}, found)
    return [*found, *ensembles], ImageErrors.of_draws(names, draws, floors)


def resampled(
    samples: Samples, name: Name, metrics: Sequence[str], bins: int
) -> tuple[dict[Any, Array], dict[Any, Array]]:
    """Draws and noise floors by network and column."""
    groups, floors = parts_of(samples.cells), {}
    draws = {
        (name, one): v for one, v in inference.resample(samples, groups, metrics, bins).items()
    }
    after = (f"{name[0]}+T", name[1])
    draws |= {
        (after, (part, metric.removesuffix("_T"))): values
        for (_, (part, metric)), values in draws.items()
        if is_scaled(metric)
    }
    scores = {"ece": samples.confidence}
    scores |= {} if samples.scaled is None else {"ece_T": samples.scaled.per_image[0]}
    for part, (metric, claimed) in product(MAIN, scores.items()):
        if part in groups:
            floor = inference.ece_floor(claimed, samples.cells, groups[part], bins)
            floors[name, (part, metric)] = np.array(floor)
    return draws, floors


# -- deep ensembles of existing runs ---------------------------------------------------------------


def _ensembles(
    study: Study, runs: Mapping[str, Run], networks: Sequence[Network]
) -> Iterator[Network]:
    """As many ensembles as the finished seeds of their method allow, in the order of seeds."""
    if (one := study.ensemble) is None:
        return
    ready = [network for network in networks if network.method == one.of]
    ready.sort(key=lambda network: study.seeds.index(network.seed))
    for k in range(0, len(ready) - one.size + 1, one.size):
        first, group = ready[k], [runs[network.run] for network in ready[k : k + one.size]]
        kept = [load_samples(run.directory, *run.test_outputs.values()) for run in group]
        members = [own for own in kept if own is not None and own.logits is not None]
        if len(members) == one.size:
            own = _together(members, first.bins)
            rows = [row | own[cell_of(row)] for row in first.rows if cell_of(row) in own]
            name, seed = f"{one.of} ensemble x{one.size}", -1 - k // one.size
            about = (seed, one.size, first.checkpoint, first.config)
            yield Network("", name, one.of, {}, *about, [], rows)


def _together(members: Sequence[Samples], bins: int) -> dict[Cell, dict[str, Any]]:
    """The mean of the members' probabilities as one network, with its own temperature."""
    first, mean, truth = members[0], None, None
    held = [member.validation for member in members if member.validation is not None]
    if len(held) == len(members):
        mean = _mean_log_probability(one[0] for one in held)
        truth = torch.from_numpy(held[0][1]).long()
    logits = _mean_log_probability(member.logits for member in members)
    found = measure(logits, torch.from_numpy(first.target).long(), mean, truth, bins)
    own = dict.fromkeys((*map(scaled, PLUS_T), "temperature"))  # not those of the first member
    return {cell: own | {m: found[m][k] for m in found} for k, cell in enumerate(first.cells)}


def _mean_log_probability(logits: Iterable[Array]) -> Tensor:
    """The logarithm of the mean probability over members plus a constant, in float64."""
    each = torch.stack([torch.from_numpy(one).double().log_softmax(-1) for one in logits])
    return each.logsumexp(0)
