"""The metrics once more, sample by sample in plain Python: slow, obvious, and independent of
torch."""

import math


def softmax(row):
    weights = [math.exp(z - max(row)) for z in row]
    return [w / math.fsum(weights) for w in weights]


def predicted_order(row):
    """Classes from the most to the least likely; equal ones by number."""
    return sorted(range(len(row)), key=lambda k: (-row[k], k))


def ece(confidence, correct, num_bins):
    total = 0.0
    for m in range(num_bins):
        low, high = m / num_bins, (m + 1) / num_bins
        inside = [i for i, c in enumerate(confidence) if low < c <= high or (m == 0 and c == 0)]
        total += abs(math.fsum(confidence[i] - correct[i] for i in inside))
    return total / len(confidence)


def adaptive_ece(confidence, correct, num_bins):
    order = sorted(range(len(confidence)), key=lambda i: confidence[i])
    groups = {}
    for i in order:
        groups.setdefault(confidence[i], []).append(correct[i])
    n, total = len(order), 0.0
    for m in range(num_bins):
        inside = order[m * n // num_bins : (m + 1) * n // num_bins]
        right = [sum(groups[confidence[i]]) / len(groups[confidence[i]]) for i in inside]
        total += abs(math.fsum(confidence[i] for i in inside) - math.fsum(right))
    return total / n


def classwise_ece(probs, target, num_bins):
    """The mean over classes of the ECE of a yes-or-no forecast."""
    each = [
        ece(probs[:, k].tolist(), (target == k).tolist(), num_bins) for k in range(probs.shape[1])
    ]
    return math.fsum(each) / len(each)


def all_metrics(logits, target, num_bins):
    n, classes = logits.shape
    rows, target = logits.tolist(), target.tolist()
    probs = [softmax(row) for row in rows]
    places = [predicted_order(row).index(t) for row, t in zip(rows, target, strict=True)]
    confidence, correct = [max(p) for p in probs], [place == 0 for place in places]
    nll = brier = 0.0
    for row, p, t in zip(rows, probs, target, strict=True):
        nll += math.log(math.fsum(math.exp(z - max(row)) for z in row)) + max(row) - row[t]
        brier += math.fsum((p[k] - (k == t)) ** 2 for k in range(classes))
    return {
        "n": n,
        "top1": sum(correct) / n,
        "top5": sum(place < 5 for place in places) / n if classes >= 5 else math.nan,
        "nll": nll / n,
        "ece": ece(confidence, correct, num_bins),
        "brier": brier / n,
        "confidence": math.fsum(confidence) / n,
        "gap": (math.fsum(confidence) - sum(correct)) / n,
    }
