"""Deep ensembles: rows made from the kept logits of runs that exist anyway."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isnan, log, nan
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.names import PLUS_T, scaled
from chaosgate.run.outputs import Cell, Logits, Samples, load_logits
from chaosgate.study.plan.study import Ensemble, Study
from chaosgate.study.report.collect import Finished

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class EnsembleResult:
    """What an ensemble says about every image, and its metrics.

    Args:
        members: The seeds of its members.
        rows: Metrics by cell.
        samples: Confidence, correctness and NLL of every image.
        temperature: Fitted on the mean probabilities of the validation images; nan if there is none.
    """

    members: tuple[int, ...]
    rows: Mapping[Cell, Mapping[str, float]]
    samples: Samples
    temperature: float


def ensemble_name(ensemble: Ensemble) -> str:
    """The name of its row: the method and how many runs it costs."""
    return f"{ensemble.of} ensemble (cost x{ensemble.size})"


def ensembles(study: Study, ensemble: Ensemble, finished: Sequence[Finished]) -> list[EnsembleResult]:
    """As many ensembles as the finished seeds of the method allow, members in the order of the seeds."""
    by_seed = {one.run.seed: one for one in finished if one.run.method == ensemble.of}
    ready = [by_seed[seed] for seed in study.seeds if seed in by_seed]
    groups = [ready[k : k + ensemble.size] for k in range(0, len(ready) - ensemble.size + 1, ensemble.size)]
    found = []
    for group in groups:
        kept = [load_logits(one.run.directory, list(one.run.test_outputs.values())) for one in group]
        members = [member for member in kept if member is not None]
        if len(members) == ensemble.size:
            found.append(_together(tuple(one.run.seed for one in group), members))
    return found


def _together(seeds: tuple[int, ...], members: Sequence[Logits]) -> EnsembleResult:
    """The mean of the members' probabilities as one network; its temperature is fitted as that of a single one."""
    import torch

    from chaosgate.metrics import CellMetrics, classification_scores, temperature_scaling

    first = members[0]
    for member in members[1:]:
        if member.cells != first.cells or not np.array_equal(member.index, first.index):
            raise ValueError(f"the runs of seeds {seeds} were tested on different images; they make no ensemble.")
    logits = _mean_log_probability([member.logits for member in members])
    target = torch.from_numpy(first.target).long()
    cells, images, classes = logits.shape
    flat, targets = logits.view(-1, classes), target.reshape(-1)
    number = torch.arange(cells).repeat_interleave(images)

    def columns(values: "torch.Tensor") -> dict[str, "torch.Tensor"]:
        metrics = CellMetrics(cells, adaptive_bins=15)
        metrics.update(values, targets, number)
        return metrics.compute()

    found = dict(columns(flat))
    validations = [member.validation for member in members if member.validation is not None]
    temperature = nan
    if len(validations) == len(members) and all(np.array_equal(one[2], validations[0][2]) for one in validations):
        on = torch.from_numpy(validations[0][1]).long()
        with suppress(ValueError):  # no temperature is best
            temperature = temperature_scaling(_mean_log_probability([one[0] for one in validations]), on).temperature
    if not isnan(temperature):
        found |= {scaled(name): column for name, column in columns(flat / temperature).items() if name in PLUS_T}
    rows = {cell: {name: float(column[k]) for name, column in found.items()} for k, cell in enumerate(first.cells)}
    scores = classification_scores(flat, targets)
    confidence, nll = (one.float().view(cells, images).numpy() for one in (scores.confidence, scores.nll))
    correct = (scores.rank < 1).view(cells, images).numpy()
    return EnsembleResult(seeds, rows, Samples(first.cells, confidence, correct, nll, first.index), temperature)


def _mean_log_probability(logits: Sequence[NDArray[np.float16]]) -> "torch.Tensor":
    """The logarithm of the mean probability over members, in float64."""
    import torch

    each = torch.stack([torch.from_numpy(one).double().log_softmax(-1) for one in logits])
    return each.logsumexp(0) - log(len(logits))
