"""What every metric checks about its input. Looking at values costs a device synchronisation, so it can be left out."""

import torch
from torch import Tensor


def check_num_bins(num_bins: int) -> None:
    """Raise if there is not at least one bin."""
    if num_bins < 1:
        raise ValueError(
            f"asked for {num_bins} calibration bins; at least 1 is needed. Set num_bins, e.g. 15."
        )


def check_shapes(name: str, scores: Tensor, **per_sample: Tensor) -> None:
    """Raise unless shapes are floating-point ``scores (B, K)`` and ``(B,)`` for the others."""
    if (
        scores.ndim == 2
        and scores.shape[1] > 0
        and scores.is_floating_point()
        and all(x.shape == scores.shape[:1] for x in per_sample.values())
    ):
        return
    found = ", ".join(f"{key} {tuple(x.shape)}" for key, x in {name: scores, **per_sample}.items())
    raise ValueError(
        f"{name} must be floating-point (B, K) with at least one class, and {', '.join(per_sample)} (B,); "
        f"found {found}, {name} of {scores.dtype}."
    )


def check_range(name: str, index: Tensor, size: int, counted: Tensor | None = None) -> None:
    """Raise for an index ``(B,)`` outside ``0 .. size - 1``, except where ``counted`` is False."""
    outside = (index < 0) | (index >= size)
    if counted is not None:
        outside &= counted
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"sample {row} has {name} {int(index[row])}, but {name}s run from 0 to {size - 1}. Check the data set; "
            "padding is marked by weight=False where a metric takes a weight."
        )


def check_probabilities(probs: Tensor) -> None:
    """Raise unless the rows of ``probs (B, K)`` are non-negative and sum to one.

    Logits that happen to lie in [0, 1] look like probabilities, so nothing is guessed. A row may miss one by 1e-4, or
    by 1e-2 in half precision, where each entry is rounded to 2 or 3 digits.
    """
    tolerance = 1e-2 if probs.dtype in (torch.float16, torch.bfloat16) else 1e-4
    total = probs.sum(1, dtype=torch.promote_types(probs.dtype, torch.float32))
    fine = (probs.amin(1) >= 0) & ((total - 1).abs() <= tolerance)  # False for a nan
    if not bool(fine.all()):
        row = int((~fine).nonzero()[0])
        raise ValueError(
            f"row {row} is not a probability distribution: it sums to {float(total[row]):.6g} and its smallest entry "
            f"is {float(probs[row].amin()):.6g}. Apply softmax: metric.update(logits.softmax(dim=1), target)."
        )
