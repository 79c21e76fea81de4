"""Metrics of ImageNet's validation set: ours against torchmetrics' calibration error, in time and
in memory.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from benchmarks.timing import on_threads
from chaosgate.metrics import CalibrationError, CellMetrics

SAMPLES, CLASSES, BATCH = 50_000, 1_000, 500


def _state_bytes(metric: Metric | MetricCollection) -> int:
    """Bytes held after the updates, which is what is sent between processes."""
    members: list[Any] = list(metric.values()) if isinstance(metric, MetricCollection) else [metric]
    states = [state for member in members for state in member.metric_state.values()]
    tensors = [x for state in states for x in (state if isinstance(state, list) else [state])]
    return sum(x.numel() * x.element_size() for x in tensors)


def _timed(
    make: Callable[[], Metric | MetricCollection], inputs: Tensor, target: Tensor
) -> tuple[float, int]:
    metric = make()
    start = perf_counter()
    # Ten batches, again and again: what is timed is the metric, not the memory that 200 MB of
    # logits come from.
    for i in range(SAMPLES // BATCH):
        rows = slice(i * BATCH % len(inputs), i * BATCH % len(inputs) + BATCH)
        metric.update(inputs[rows], target[rows])
    metric.compute()
    return perf_counter() - start, _state_bytes(metric)


def run(threads: int = 1, repeats: int = 5) -> list[dict[str, Any]]:
    """Update and compute over 50,000 samples of 1,000 classes, ours and torchmetrics taking turns;
    medians.

    The calibration error alone, from probabilities, is like against like. From logits,
    :class:`~chaosgate.metrics.CellMetrics` does more (NLL and Brier score, in float64) than either
    peer: torchmetrics' calibration error alone, and the same with its top-1 and top-5 accuracy. All
    check their inputs, as is the default.
    """
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(10 * BATCH, CLASSES, generator=generator)
    target = torch.randint(0, CLASSES, (10 * BATCH,), generator=generator)
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
        "CellMetrics against calibration error": (CellMetrics, theirs, logits),
        "CellMetrics against calibration error, top-1 and top-5": (
            CellMetrics,
            their_collection,
            logits,
        ),
    }
    rows = []
    with on_threads(threads):
        for name, (ours, peer, inputs) in contests.items():
            pairs = [
                (_timed(ours, inputs, target), _timed(peer, inputs, target)) for _ in range(repeats)
            ]
            our_time, peer_time = (median(pair[side][0] for pair in pairs) for side in (0, 1))
            rows.append(
                {
                    "metric": name,
                    "ours_ms": 1e3 * our_time,
                    "reference_ms": 1e3 * peer_time,
                    "ratio": peer_time / our_time,
                    "ours_state_bytes": pairs[0][0][1],
                    "reference_state_bytes": pairs[0][1][1],
                }
            )
    return rows
