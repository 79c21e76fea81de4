"""The metrics once more, sample by sample in plain Python and numpy: slow, obvious, and independent
of torch."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    weights = [math.exp(z - top) for z in row]
    return [w / math.fsum(weights) for w in weights]


def predicted_order(row: Sequence[float]) -> list[int]:
    """Classes from the most to the least likely; equal ones by number."""
    return sorted(range(len(row)), key=lambda k: (-row[k], k))


def ece(confidence: Sequence[float], correct: Sequence[bool], num_bins: int) -> float:
    total = 0.0
    for m in range(num_bins):
        low, high = m / num_bins, (m + 1) / num_bins
        inside = [i for i, c in enumerate(confidence) if low < c <= high or (m == 0 and c == 0)]
        if inside:
            mean = math.fsum(confidence[i] for i in inside) / len(inside)
            accuracy = sum(correct[i] for i in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(mean - accuracy)
    return total


def adaptive_ece(confidence: Sequence[float], correct: Sequence[bool], num_bins: int) -> float:
    order = sorted(range(len(confidence)), key=lambda i: confidence[i])
    groups: dict[float, list[bool]] = {}
    for i in order:
        groups.setdefault(confidence[i], []).append(correct[i])
    n, total = len(order), 0.0
    for m in range(num_bins):
        inside = order[m * n // num_bins : (m + 1) * n // num_bins]
        claimed = math.fsum(confidence[i] for i in inside)
        right = math.fsum(sum(groups[confidence[i]]) / len(groups[confidence[i]]) for i in inside)
        total += abs(claimed - right)
    return total / n


def classwise_ece(probs: Floats, target: NDArray[np.int64], num_bins: int) -> float:
    """The mean over classes of the ECE of a yes-or-no forecast."""
    each = [
        ece(probs[:, k].tolist(), (target == k).tolist(), num_bins) for k in range(probs.shape[1])
    ]
    return math.fsum(each) / len(each)


def all_metrics(logits: Floats, target: NDArray[np.int64], num_bins: int) -> dict[str, float]:
    n, classes = logits.shape
    probs = [softmax(row) for row in logits.tolist()]
    places = [predicted_order(row).index(t) for row, t in zip(logits.tolist(), target, strict=True)]
    confidence = [max(p) for p in probs]
    correct = [place == 0 for place in places]
    nll = []
    for row, t in zip(logits.tolist(), target, strict=True):
        top = max(row)
        nll.append(math.log(math.fsum(math.exp(z - top) for z in row)) + (top - row[t]))
    brier = [
        math.fsum((p - (k == t)) ** 2 for k, p in enumerate(row))
        for row, t in zip(probs, target, strict=True)
    ]
    return {
        "n": n,
        "top1": sum(correct) / n,
        "top5": sum(place < 5 for place in places) / n if classes >= 5 else math.nan,
        "nll": math.fsum(nll) / n,
        "ece": ece(confidence, correct, num_bins),
        "brier": math.fsum(brier) / n,
        "confidence": math.fsum(confidence) / n,
        "gap": math.fsum(confidence) / n - sum(correct) / n,
    }
