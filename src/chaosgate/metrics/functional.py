r"""Per-sample scores and calibration bins, as pure functions.

For logits :math:`z \in \mathbb{R}^K`, probabilities :math:`p = \mathrm{softmax}(z)` and the true class :math:`t`:

.. math::
    \text{confidence} = \max_k p_k, \qquad \text{NLL} = \log\sum_k e^{z_k} - z_t, \qquad
    \text{Brier} = \sum_k (p_k - [k = t])^2.

The expected calibration error groups samples by confidence into :math:`M` bins of equal width (the paper uses 15),

.. math:: \text{ECE} = \sum_{m=1}^M \frac{n_m}{n}\,\bigl|\overline{\text{confidence}}_m - \text{accuracy}_m\bigr|.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Norm = Literal["l1", "l2", "max"]


class Scores(NamedTuple):
    """What one batch of logits says about each sample; every field is ``(B,)``."""

    confidence: Tensor
    nll: Tensor
    brier: Tensor
    rank: Tensor
    """How many classes come before the true one: 0 is a top-1 hit, below 5 a top-5 hit."""
    defined: Tensor
    """False where the logits have a nan, a plus infinity, or nothing but minus infinity: no softmax exists."""


def working_precision(values: Tensor) -> Tensor:
    """The same numbers in float64, or in float32 on a device that has no float64 (MPS)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def target_rank(values: Tensor, target: Tensor) -> Tensor:
    """Number of classes ``(B,)`` that come before ``target (B,)`` when ``values (B, K)`` are sorted downwards.

    Among equal values the lower class number comes first, as in :func:`torch.argmax`. So a network that gives every
    class the same logit gets the accuracy of always answering class 0, and not a hit for each sample.
    """
    at_target = values.gather(1, target[:, None])
    earlier = torch.arange(values.shape[1], device=values.device) < target[:, None]
    return ((values > at_target) | ((values == at_target) & earlier)).sum(1)


def classification_scores(logits: Tensor, target: Tensor) -> Scores:
    """Scores of ``logits (B, K)`` of any float type against ``target (B,)``, computed in float64.

    The largest logit is subtracted before exponentiating, so logits of size 1e4 and more are harmless; minus infinity
    is a class of probability zero, and gives an infinite NLL where it is the true one.
    """
    z = working_precision(logits)
    top = z.amax(1, keepdim=True)
    z_target = z.gather(1, target[:, None])
    exponentials = (z - top).exp()
    total = exponentials.sum(1)
    p_target = (z_target - top).exp().squeeze(1) / total
    return Scores(
        confidence=1 / total,
        nll=total.log() + (top - z_target).squeeze(1),
        brier=torch.linalg.vecdot(exponentials, exponentials) / total**2 - 2 * p_target + 1,
        rank=target_rank(logits, target),
        defined=total.isfinite(),
    )


class Reliability(NamedTuple):
    """Sums per confidence bin, ``(..., num_bins)`` in float64: all that a reliability diagram or an ECE needs."""

    count: Tensor  # type: ignore[assignment]  # the field hides tuple.count, which nobody needs here
    confidence_sum: Tensor
    correct_sum: Tensor
    edges: Tensor
    """Bin borders ``(num_bins + 1,)``; bin ``m`` is ``(edges[m], edges[m + 1]]``, and bin 0 contains 0 too."""

    def of_cell(self, cell: int) -> "Reliability":
        """The sums ``(num_bins,)`` of one cell."""
        return Reliability(self.count[cell], self.confidence_sum[cell], self.correct_sum[cell], self.edges)


def bin_edges(num_bins: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Tensor:
    """The numbers ``k / num_bins`` for ``k = 0 .. num_bins``, rounded to ``dtype``."""
    if num_bins < 1:
        raise ValueError(f"asked for {num_bins} calibration bins; at least 1 is needed. Set num_bins, e.g. 15.")
    return torch.tensor([k / num_bins for k in range(num_bins + 1)], dtype=dtype, device=device)


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Bin of each confidence in [0, 1]: bins are open below and closed above, the first contains 0.

    Borders are rounded to the type of ``confidence``: a float32 confidence of ``1 / 15`` is above the float64 number
    1/15, yet it lies on the border and belongs to the lower bin.

    >>> bin_index(torch.tensor([0.0, 0.2, 0.20001, 1.0]), num_bins=5)
    tensor([0, 0, 1, 4])
    """
    inner = bin_edges(num_bins, confidence.dtype, confidence.device)[1:-1]
    return torch.bucketize(confidence.contiguous(), inner)


def calibration_bins(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Reliability:
    """Reliability sums of ``confidence (N,)`` in [0, 1] and ``correct (N,)`` in {0, 1}."""
    index = bin_index(confidence, num_bins)
    columns = torch.stack((torch.ones_like(index), confidence, correct), dim=1)
    sums = working_precision(columns.new_zeros(num_bins, 3)).index_add_(0, index, working_precision(columns))
    return Reliability(sums[:, 0], sums[:, 1], sums[:, 2], bin_edges(num_bins))


def calibration_error(reliability: Reliability, norm: Norm = "l1") -> Tensor:
    r"""Calibration error over the last axis: the ECE (``l1``), its root mean square (``l2``), or the largest gap.

    With :math:`g_m` the difference between mean confidence and accuracy in bin :math:`m` and :math:`w_m = n_m / n`:
    :math:`\sum_m w_m |g_m|`, :math:`(\sum_m w_m g_m^2)^{1/2}`, or :math:`\max_m |g_m|` over the bins that are not
    empty. Without any sample it is nan.
    """
    total = reliability.count.sum(-1)
    difference = (reliability.confidence_sum - reliability.correct_sum).abs()
    if norm == "l1":
        return difference.sum(-1) / total
    gap = torch.where(reliability.count > 0, difference / reliability.count, 0.0)
    if norm == "l2":
        return ((reliability.count * gap**2).sum(-1) / total).sqrt()
    if norm == "max":
        return torch.where(total > 0, gap.amax(-1), torch.nan)
    raise ValueError(f"no calibration norm {norm!r}; there are 'l1' (the ECE), 'l2' and 'max'.")
