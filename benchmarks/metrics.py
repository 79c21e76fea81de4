"""Metrics of ImageNet's validation set: ours against torchmetrics' calibration error."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from benchmarks.timing import Row, compare
from chaosgate.metrics import CalibrationError, CellMetrics

SAMPLES, CLASSES, BATCH = 50_000, 1_000, 500


def run(repeats: int = 5) -> list[Row]:
    """Update and compute over 50,000 samples of 1,000 classes.

    The calibration error alone, from probabilities, is like against like. From logits,
    :class:`~chaosgate.metrics.CellMetrics` does more (NLL and Brier score, in float64) than either
    peer: torchmetrics' calibration error alone, and the same with its top-1 and top-5 accuracy. All
    check their inputs, as is the default.
    """
    generator = torch.Generator().manual_seed(0)
    # ten batches, again and again: what is timed is the metric, not 200 MB of logits
    logits = 3 * torch.randn(10, BATCH, CLASSES, generator=generator)
    target = torch.randint(0, CLASSES, (10, BATCH), generator=generator)

    def evaluate(make: Callable[[], Any], inputs: Tensor) -> None:
        metric = make()
        for number in range(SAMPLES // BATCH):
            metric.update(inputs[number % 10], target[number % 10])
        metric.compute()

    peer = partial(MulticlassCalibrationError, CLASSES, n_bins=15)

    def collection() -> MetricCollection:
        tops = {f"top{k}": MulticlassAccuracy(CLASSES, k, average="micro") for k in (1, 5)}
        return MetricCollection({"ece": peer(), **tops})

    contests: dict[str, tuple[Callable[[], Any], Callable[[], Any], Tensor]] = {
        "calibration error from probabilities": (CalibrationError, peer, logits.softmax(2)),
        "CellMetrics against calibration error": (CellMetrics, peer, logits),
        "CellMetrics against calibration error, top-1 and top-5": (CellMetrics, collection, logits),
    }
    rows = []
    for what, (*pair, inputs) in contests.items():
        ours, theirs = (partial(evaluate, make, inputs) for make in pair)
        rows.append(compare(what, ours, theirs, repeats))
    return rows
