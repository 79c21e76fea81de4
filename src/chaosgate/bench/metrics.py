"""Metrics of ImageNet's validation set: ours against torchmetrics' calibration error, in time and in memory."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from chaosgate.metrics import CalibrationError, CellMetrics

SAMPLES, CLASSES, BATCH = 50_000, 1_000, 250


def _state_bytes(metric: Metric | MetricCollection) -> int:
    """Bytes held after the updates, which is what is sent between processes."""
    members: list[Any] = list(metric.values()) if isinstance(metric, MetricCollection) else [metric]
    states = [state for member in members for state in member.metric_state.values()]
    tensors = [x for state in states for x in (state if isinstance(state, list) else [state])]
    return sum(x.numel() * x.element_size() for x in tensors)


def _timed(make: Callable[[], Metric | MetricCollection], inputs: Tensor, target: Tensor) -> tuple[float, int]:
    metric = make()
    start = perf_counter()
    # The same batches are given again and again: 200 MB of logits would measure the machine's memory instead.
    for i in range(SAMPLES // BATCH):
        rows = slice(i * BATCH % len(inputs), i * BATCH % len(inputs) + BATCH)
        metric.update(inputs[rows], target[rows])
    metric.compute()
    return perf_counter() - start, _state_bytes(metric)


def run(threads: int = 1, repeats: int = 5) -> list[dict[str, Any]]:
    """Update and compute over 50,000 samples of 1,000 classes; medians of interleaved runs.

    Two pairs: the calibration error alone, from probabilities; and from logits, all of
    :class:`~chaosgate.metrics.CellMetrics` (NLL and Brier score included) against torchmetrics' calibration error with
    its top-1 and top-5 accuracy. Ours checks its inputs in both, as theirs does by default.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20 * BATCH, CLASSES, generator=generator)
    target = torch.randint(0, CLASSES, (20 * BATCH,), generator=generator)
    probs = logits.softmax(1)

    def theirs() -> MulticlassCalibrationError:
        return MulticlassCalibrationError(CLASSES, n_bins=15)

    def their_collection() -> MetricCollection:
        return MetricCollection(
            {
                "ece": theirs(),
                "top1": MulticlassAccuracy(CLASSES, average="micro"),
                "top5": MulticlassAccuracy(CLASSES, top_k=5, average="micro"),
            }
        )

    contests: dict[str, tuple[Callable[[], Any], Callable[[], Any], Tensor]] = {
        "calibration error from probabilities": (CalibrationError, theirs, probs),
        "all cell metrics against calibration error from logits": (CellMetrics, theirs, logits),
        "all cell metrics against calibration error, top-1 and top-5": (CellMetrics, their_collection, logits),
    }
    rows = []
    try:
        for name, (ours, peer, inputs) in contests.items():
            pairs = [(_timed(ours, inputs, target), _timed(peer, inputs, target)) for _ in range(repeats)]
            our_time, peer_time = (median(pair[side][0] for pair in pairs) for side in (0, 1))
            rows.append(
                {
                    "name": name,
                    "peer": "torchmetrics",
                    "ours_seconds": our_time,
                    "peer_seconds": peer_time,
                    "speedup": peer_time / our_time,
                    "ours_state_bytes": pairs[0][0][1],
                    "peer_state_bytes": pairs[0][1][1],
                    "threads": threads,
                }
            )
    finally:
        torch.set_num_threads(before)
    return rows
