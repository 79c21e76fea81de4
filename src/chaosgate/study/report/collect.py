"""What a report reads of finished runs: rows, curves, outputs; and deep ensembles of these runs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import fsum, isnan, log, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import CLEAN as CLEAN_CELL
from chaosgate.metrics.aggregate import Cell
from chaosgate.run.directory import RunDirectory, read_lines
from chaosgate.run.outputs import Logits, Samples, load_logits, load_samples
from chaosgate.study.execute.state import record_of, rows_of, state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Ensemble, Study
from chaosgate.study.report.inference import NUM_BINS
from chaosgate.study.report.names import FROM_LOGITS, FROM_OUTPUTS, PLUS_T, scaled

if TYPE_CHECKING:
    import torch

ByCell = dict[Cell, float]


@dataclass(frozen=True)
class Finished:
    """A finished run: its rows, its outputs for every image, its curves.

    Args:
        run: The run.
        rows: One per cell that the study asks for.
    """

    run: Run
    rows: Sequence[dict[str, Any]]

    def by_cell(self, metric: str) -> dict[Cell, float]:
        """A metric of every cell that has it; a row may have no ``nll_T``."""
        if metric in FROM_OUTPUTS:
            return (self._class_metrics if metric in FROM_LOGITS else self._confidence_metrics).get(
                metric, {}
            )
        return {
            Cell(row["corruption"], int(row["severity"])): float(row[metric])
            for row in self.rows
            if row.get(metric) is not None
        }

    @property
    def energy(self) -> float:
        """Injected energy relative to that of the features at the end of training, over all sites.

        0 without a gate; nan for a gate that was not measured.
        """
        if self.rows[0]["noise"]["gate"] is not None and not self.rows[0]["noise_measured"]:
            return nan
        return fsum(float(site["energy"]) for site in self.rows[0]["noise_measured"])

    @cached_property
    def samples(self) -> Samples | None:
        """Per image; None for a test that did not keep them."""
        return load_samples(self.run.directory, *self.run.outputs_of(ood=False))

    @cached_property
    def ood_confidence(self) -> NDArray[np.float32] | None:
        """Confidence in images that belong to none of the classes; None without such a test."""
        names = self.run.outputs_of(ood=True)
        outside = load_samples(self.run.directory, names[0]) if names else None
        return None if outside is None else outside.confidence[0]

    @cached_property
    def _confidence_metrics(self) -> dict[str, ByCell]:
        return {} if self.samples is None else confidence_metrics(self.samples, self.ood_confidence)

    @cached_property
    def _class_metrics(self) -> dict[str, ByCell]:
        kept = load_logits(self.run.directory, self.run.outputs_of(ood=False))
        if kept is None:
            return {}
        import torch

        logits = (torch.from_numpy(one) for one in kept.logits)
        return class_metrics(kept.cells, logits, torch.from_numpy(kept.target).long())

    @cached_property
    def curves(self) -> list[dict[str, float]]:
        """One entry per epoch; of an epoch that was begun twice, the last."""
        lines, _ = read_lines(RunDirectory(self.run.directory).curves)
        return list({line["epoch"]: line for line in lines}.values())

    @property
    def temperature(self) -> float | None:
        """What the logits were divided by for the columns +T; None where none was fitted."""
        return next(
            (float(row["temperature"]) for row in self.rows if row.get("temperature") is not None),
            None,
        )

    @property
    def fitted_on_test(self) -> bool:
        """Whether that temperature was fitted on the test images."""
        return any(row.get("temperature_split") == "test" for row in self.rows)

    @property
    def validation_nll(self) -> float:
        """Of the tested checkpoint: the last, the smallest, or that of the first largest Top-1."""
        lines = [line for line in self.curves if "val/nll" in line]
        if not lines:
            return nan
        if self.run.checkpoint == "top1":
            return max(lines, key=lambda line: line.get("val/top1", nan))["val/nll"]
        last = lines[-1]["val/nll"]
        return last if self.run.checkpoint == "last" else min(line["val/nll"] for line in lines)

    @cached_property
    def config(self) -> dict[str, Any]:
        return RunDirectory(self.run.directory).settings()

    @property
    def bins(self) -> int:
        """Bins of the ECE; rows of before have the default."""
        return int(self.config["model"].get("num_bins", NUM_BINS))


def collect(runs: Sequence[Run]) -> list[Finished]:
    """The finished ones among the runs, in order."""
    found: list[Finished] = []
    for run in runs:
        if state_of(run).condition == "done":
            records = [record_of(run.directory, test) for test in run.test_outputs]
            rows = [row for row in rows_of(run.directory, records) if not row.get("ood")]
            found.append(Finished(run, rows))
    return found


# -- metrics that are made of kept outputs ---------------------------------------------------------


def confidence_metrics(samples: Samples, ood: NDArray[np.float32] | None) -> dict[str, ByCell]:
    """AURC of every cell, and AUROC of clean images against others.

    Args:
        samples: Outputs of the network for every image.
        ood: Confidences of images that belong to none of its classes, if there was such a test.
    """
    import torch

    from chaosgate.metrics import area_under_risk_coverage, area_under_roc

    confidence, correct = torch.from_numpy(samples.confidence), torch.from_numpy(samples.correct)
    pairs = zip(samples.cells, confidence, correct, strict=True)
    found = {"aurc": {cell: float(area_under_risk_coverage(c, right)) for cell, c, right in pairs}}
    if ood is not None and CLEAN_CELL in samples.cells:
        inside = confidence[samples.cells.index(CLEAN_CELL)]
        found["ood_auroc"] = {CLEAN_CELL: float(area_under_roc(inside, torch.from_numpy(ood)))}
    return found


def class_metrics(
    cells: Sequence[Cell], logits: "Iterable[torch.Tensor]", target: "torch.Tensor"
) -> dict[str, ByCell]:
    """Classwise ECE and two terms of the Brier score, which need the probabilities of all classes.

    Args:
        cells: The cells.
        logits: Logits (images, classes) of each of them.
        target: True classes, (cells, images).
    """
    from chaosgate.metrics import BrierScore, classwise_calibration_error

    found: dict[str, ByCell] = {name: {} for name in FROM_LOGITS}
    for cell, own, truth in zip(cells, logits, target, strict=True):
        probs = own.double().softmax(-1)
        brier = BrierScore(probs.shape[1])
        brier.update(probs, truth)
        terms = brier.decomposition()
        found["classwise_ece"][cell] = float(classwise_calibration_error(probs, truth))
        found["brier_reliability"][cell] = float(terms.reliability)
        found["brier_resolution"][cell] = float(terms.resolution)
    return found


# -- deep ensembles of existing runs ---------------------------------------------------------------


@dataclass(frozen=True)
class EnsembleResult:
    """Outputs of an ensemble for every image, and its metrics.

    Args:
        members: The seeds of its members.
        by_cell: Metrics, each with its value in every cell.
        samples: Confidence, correctness and NLL of every image.
        scaled_confidence: Confidence after temperature scaling, (cells, images), if there is one.
        temperature: Fitted on the mean probabilities of validation images; nan if there is none.
    """

    members: tuple[int, ...]
    by_cell: Mapping[str, Mapping[Cell, float]]
    samples: Samples
    scaled_confidence: NDArray[np.float32] | None
    temperature: float


def ensemble_name(ensemble: Ensemble) -> str:
    """The name of its row: the method and how many runs it costs."""
    return f"{ensemble.of} ensemble x{ensemble.size}"


def ensembles(
    study: Study, ensemble: Ensemble, finished: Sequence[Finished]
) -> list[EnsembleResult]:
    """As many ensembles as the finished seeds of the method allow, in the order of seeds."""

    def logits_of(group: Sequence[Finished], ood: bool) -> list[Logits]:
        kept = [load_logits(one.run.directory, one.run.outputs_of(ood=ood)) for one in group]
        return [one for one in kept if one is not None]

    by_seed = {one.run.seed: one for one in finished if one.run.method == ensemble.of}
    ready, size = [by_seed[seed] for seed in study.seeds if seed in by_seed], ensemble.size
    found = []
    for k in range(0, len(ready) - size + 1, size):
        group = ready[k : k + size]
        members, outside = logits_of(group, ood=False), logits_of(group, ood=True)
        if len(members) == size:
            ood = None
            if len(outside) == size:
                ood = _mean_log_probability([one.logits[0] for one in outside])
            seeds = tuple(one.run.seed for one in group)
            found.append(_together(seeds, members, ood, group[0].bins))
    return found


def _together(
    seeds: tuple[int, ...], members: Sequence[Logits], ood: "torch.Tensor | None", bins: int
) -> EnsembleResult:
    """The mean of the members' probabilities as one network, with a temperature of its own."""
    import torch

    from chaosgate.metrics import CellMetrics, classification_scores, temperature_scaling

    first = members[0]
    for member in members[1:]:
        if member.cells != first.cells or not np.array_equal(member.index, first.index):
            raise ValueError(
                f"the runs of seeds {seeds} were tested on different images; they cannot form an "
                "ensemble."
            )
    logits = _mean_log_probability([member.logits for member in members])
    target = torch.from_numpy(first.target).long()
    cells, images, classes = logits.shape
    flat, targets = logits.view(-1, classes), target.reshape(-1)

    def columns(values: "torch.Tensor") -> dict[str, "torch.Tensor"]:
        metrics = CellMetrics(cells, bins, adaptive_bins=bins)
        metrics.update(values, targets, torch.arange(cells).repeat_interleave(images))
        return metrics.compute()

    found, temperature, scaled_confidence = dict(columns(flat)), nan, None
    validations = [member.validation for member in members if member.validation is not None]
    same = all(np.array_equal(one[2], validations[0][2]) for one in validations)
    if same and len(validations) == len(members):
        mean, on = _mean_log_probability([one[0] for one in validations]), validations[0][1]
        with suppress(ValueError):  # no temperature is best
            temperature = temperature_scaling(mean, torch.from_numpy(on).long()).temperature
    if not isnan(temperature):
        scaled_confidence = (logits / temperature).softmax(-1).amax(-1).float().numpy()
        after = columns(flat / temperature)
        found |= {scaled(name): after[name] for name in PLUS_T}
    scores = classification_scores(flat, targets)
    one_each = (scores.confidence.float(), scores.rank < 1, scores.nll.float())
    confidence, correct, nll = (one.view(cells, images).numpy() for one in one_each)
    samples = Samples(first.cells, confidence, correct, nll, first.index)
    outside = None if ood is None else ood.amax(-1).exp().float().numpy()
    by_cell = confidence_metrics(samples, outside) | class_metrics(first.cells, logits, target)
    for name, column in found.items():
        by_cell[name] = dict(zip(first.cells, map(float, column), strict=True))
    return EnsembleResult(seeds, by_cell, samples, scaled_confidence, temperature)


def _mean_log_probability(logits: Sequence[NDArray[np.float16]]) -> "torch.Tensor":
    """The logarithm of the mean probability over members, in float64."""
    import torch

    each = torch.stack([torch.from_numpy(one).double().log_softmax(-1) for one in logits])
    return each.logsumexp(0) - log(len(logits))
