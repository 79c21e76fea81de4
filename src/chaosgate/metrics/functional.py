r"""Per-sample scores, calibration errors and exact sums, as pure functions.

For logits :math:`z \in \mathbb{R}^K`, probabilities :math:`p = \mathrm{softmax}(z)` and the true
class :math:`t`:

.. math::
    \text{confidence} = \max_k p_k, \qquad \text{NLL} = \log\sum_k e^{z_k} - z_t, \qquad
    \text{Brier} = \sum_k (p_k - [k = t])^2.

The expected calibration error groups samples by confidence into :math:`M` bins of equal width (the
paper uses 15),

.. math::
    \text{ECE} = \sum_{m=1}^M \frac{n_m}{n}\,
    \bigl|\overline{\text{confidence}}_m - \text{accuracy}_m\bigr|.

Sums are stored as integers (:func:`split`, :func:`join`), so they do not depend on batch size,
order of samples or number of processes, and casting a module to bfloat16 does not round them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from chaosgate.metrics import NUM_BINS

# Elements worked on at a time: float64 temporaries of 1 MB stay in the cache of a core, and a batch
# of 21,841-class logits does not need twice its own memory. An accelerator wants larger pieces.
BLOCK_CPU, BLOCK_DEVICE = 2**17, 2**25

PARTS = 4
"""Integers per sum: coarse, fine, number of infinities, number of NaNs."""

LARGEST = 2.0**28
"""Larger summands count as infinite; a sum has room for half a million of this size."""

_COARSE, _FINE_BITS = 2.0**16, 36


def split(values: Tensor) -> Tensor:
    r"""Integer parts ``(..., 4)`` of non-negative values ``(...)`` in float32 or float64.

    A value is :math:`2^{-16} a + 2^{-52} b` with integers a and :math:`b \le 2^{36}`. Scaling by a
    power of two, ``floor`` and the difference are exact; only bits below :math:`2^{-52}` are
    rounded. Parts are summed as int64, which has room for :math:`2^{27}` summands.
    """
    scaled = torch.where(values <= LARGEST, values, 0.0) * _COARSE  # also zero for a NaN
    coarse = scaled.floor()
    fine = scaled.sub_(coarse).mul_(2.0**_FINE_BITS).round_()
    return torch.stack((coarse, fine, values > LARGEST, values.isnan()), dim=-1).long()


def join(parts: Tensor) -> Tensor:
    """Sums ``(...)`` in float64 of parts ``(..., 4)``; on the CPU for devices without float64."""
    parts = parts.cpu() if parts.device.type == "mps" else parts
    coarse, fine, infinite, undefined = parts.unbind(-1)
    surplus = fine >> _FINE_BITS
    small = (fine - (surplus << _FINE_BITS)).to(torch.float64) * 2.0**-_FINE_BITS
    total = ((coarse + surplus) + small) / _COARSE
    return torch.where(undefined > 0, torch.nan, torch.where(infinite > 0, torch.inf, total))


def sum_by_slot(values: Tensor, slot: Tensor, num_slots: int) -> Tensor:
    """Parts ``(num_slots, F, 4)`` of the sums of ``values (N, F)`` by ``slot (N,)``.

    >>> parts = sum_by_slot(torch.tensor([[0.25], [0.5], [4.0]]), torch.tensor([1, 1, 0]), 3)
    >>> join(parts).squeeze(1)
    tensor([4.0000, 0.7500, 0.0000], dtype=torch.float64)
    """
    zeros = torch.zeros(num_slots, values.shape[1], PARTS, dtype=torch.int64, device=values.device)
    return zeros.index_add_(0, slot, split(values))


def working_precision(values: Tensor) -> Tensor:
    """The same numbers in float64, or in float32 on a device that has no float64 (MPS)."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def row_blocks(values: Tensor) -> Iterator[slice]:
    """Slices over the rows of ``values (B, K)``; one empty slice for an empty batch."""
    block = BLOCK_CPU if values.device.type == "cpu" else BLOCK_DEVICE
    step = max(1, block // values.shape[1])
    for start in range(0, max(1, len(values)), step):
        yield slice(start, start + step)


def check_shapes(name: str, scores: Tensor, **per_sample: Tensor) -> None:
    """Raise an error unless shapes are floating-point ``scores (B, K)`` and ``(B,)`` for the
    others.
    """
    right = scores.ndim == 2 and scores.shape[1] > 0 and scores.is_floating_point()
    if right and all(x.shape == scores.shape[:1] for x in per_sample.values()):
        return
    found = ", ".join(f"{key} {tuple(x.shape)}" for key, x in {name: scores, **per_sample}.items())
    raise ValueError(
        f"{name} must be floating-point (B, K) with at least one class, and "
        f"{', '.join(per_sample)} (B,); found {found}, {name} of {scores.dtype}."
    )


def check_range(name: str, index: Tensor, size: int, counted: Tensor | bool = True) -> None:
    """Raise an error if a counted index ``(B,)`` is outside ``0 .. size - 1``."""
    outside = ((index < 0) | (index >= size)) & counted
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ValueError(
            f"sample {row} has {name} {int(index[row])}, but {name}s run from 0 to {size - 1}. "
            "Check the data set; mark padding by weight=False where a metric takes a weight."
        )


def check_probabilities(probs: Tensor) -> None:
    """Raise an error unless the rows of ``probs (B, K)`` are non-negative and sum to one.

    The sum may differ from one by 1e-4, or by 1e-2 in half precision, where each entry is rounded
    to 2 or 3 digits.
    """
    tolerance = 1e-2 if probs.dtype in (torch.float16, torch.bfloat16) else 1e-4
    total = probs.sum(1, dtype=torch.promote_types(probs.dtype, torch.float32))
    fine = (probs.amin(1) >= 0) & ((total - 1).abs() <= tolerance)  # False for a NaN
    if not bool(fine.all()):
        row = int((~fine).nonzero()[0])
        raise ValueError(
            f"row {row} is not a probability distribution: it sums to {float(total[row]):.6g} and "
            f"its smallest entry is {float(probs[row].amin()):.6g}. Apply softmax: "
            "metric.update(logits.softmax(dim=1), target)."
        )


class Scores(NamedTuple):
    """Scores of each sample in a batch of logits; every field is ``(B,)``.

    If the logits have a NaN or plus infinity, or are all minus infinity, there is no softmax: the
    first three fields are NaN, and the rank is undefined.

    Attributes:
        confidence: The largest probability.
        nll: Negative log-likelihood of the true class.
        brier: Squared distance of the probabilities to the one-hot label.
        rank: Number of classes before the true one: 0 is a top-1 hit, below 5 a top-5 hit.
    """

    confidence: Tensor
    nll: Tensor
    brier: Tensor
    rank: Tensor


def classification_scores(logits: Tensor, target: Tensor) -> Scores:
    """Scores of ``logits (B, K)`` of any float type against ``target (B,)``, computed in float64.

    The largest logit is subtracted before exponentiating, so large logits do not
    overflow. A logit of minus infinity is a class of probability zero; the NLL is infinite if this
    is the true class.
    """
    parts = []
    for rows in row_blocks(logits):
        z, at = working_precision(logits[rows]), target[rows]
        top = z.amax(1, keepdim=True)
        below_top = (top - z.gather(1, at[:, None])).squeeze(1)
        # exp and log give a number the same image wherever it stands in a tensor; exp2 does not,
        # and then a batch split would show, and break ties.
        exponentials = (z - top).exp_()
        total = exponentials.sum(1)
        brier = exponentials.square_().sum(1) / total**2 - 2 * (-below_top).exp() / total + 1
        parts.append((1 / total, total.log() + below_top, brier, target_rank(logits[rows], at)))
    return Scores(*(torch.cat(field) for field in zip(*parts, strict=True)))


def target_rank(values: Tensor, target: Tensor) -> Tensor:
    r"""Number of classes before ``target (B,)`` when ``values (B, K)`` are sorted downwards.

    Among equal values the lower class number comes first, as in :func:`torch.argmax`. A network
    with equal logits for all classes always predicts class 0.

    The sign of :math:`2\,\mathrm{sign}(z_j - z_t) + \mathrm{sign}(t - j)` is +1 for the classes
    before the true one, -1 for those after it and 0 for itself, so their sum is
    :math:`2\,\text{rank} - (K - 1)`. Comparisons with masks take three times as long on a
    CPU.
    """
    z = values.to(torch.promote_types(values.dtype, torch.float32))
    z = z.clamp(min=torch.finfo(values.dtype).min)  # minus infinity less itself is not zero
    difference = z - z.gather(1, target[:, None])
    number = torch.arange(z.shape[1], dtype=z.dtype, device=z.device)
    lower_number = (target[:, None].to(z.dtype) - number).sign_()
    before_or_after = lower_number.add_(difference.sign_(), alpha=2).sign_()
    return ((before_or_after.sum(1) + z.shape[1] - 1) / 2).long()


def top_class(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Largest entry of each row of ``probs (B, K)`` and the first class that has it.

    Same as :func:`torch.max`, in about half the time on a CPU. The maximum of a row with a NaN is
    NaN.
    """
    z = probs.detach().to(torch.promote_types(probs.dtype, torch.float32))
    largest = z.amax(1, keepdim=True)
    # Too small to change a difference of probabilities that is not zero, and exact where it is.
    handicap = torch.arange(z.shape[1], dtype=z.dtype, device=z.device) * 2.0**-100
    first = (z - largest).sub_(handicap).amax(1) * -(2.0**100)
    return largest.squeeze(1).to(probs.dtype), first.nan_to_num(nan=-1).long()


class Reliability(NamedTuple):
    """Sums per confidence bin, ``(..., num_bins)`` in float64, for diagrams and calibration errors.

    Attributes:
        count: Samples.
        confidence_sum: Sum of their confidences.
        correct_sum: How many of them are classified correctly.
        edges: Bin borders ``(num_bins + 1,)``; bin ``m`` is ``(edges[m], edges[m + 1]]``, and bin 0
            contains 0 too.
    """

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not used here
    confidence_sum: Tensor
    correct_sum: Tensor
    edges: Tensor

    def of_cell(self, cell: int) -> "Reliability":
        """The sums ``(num_bins,)`` of one cell."""
        count, confidence_sum, correct_sum, edges = self
        return Reliability(count[cell], confidence_sum[cell], correct_sum[cell], edges)


def bin_edges(
    num_bins: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Tensor:
    """The numbers ``k / num_bins`` for ``k = 0 .. num_bins``, rounded to ``dtype``."""
    if num_bins < 1:
        raise ValueError(f"num_bins is at least 1, e.g. 15; got {num_bins}.")
    return torch.tensor([k / num_bins for k in range(num_bins + 1)], dtype=dtype, device=device)


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Bin of each confidence in [0, 1]: open below and closed above, the first contains 0.

    Borders are rounded to the type of ``confidence``, so that a float32 confidence of 1/15 lies on
    the border and belongs to the lower bin. A NaN goes to the last bin.

    >>> bin_index(torch.tensor([0.0, 0.2, 0.20001, 1.0]), num_bins=5)
    tensor([0, 0, 1, 4])
    """
    inner = bin_edges(num_bins, confidence.dtype, confidence.device)[1:-1]
    return torch.bucketize(confidence.contiguous(), inner)


def reliability_parts(confidence: Tensor, correct: Tensor, slot: Tensor, num_bins: int) -> Tensor:
    """Parts ``(num_bins, 3, 4)`` of the sums of :class:`Reliability`."""
    value = working_precision(confidence)
    columns = torch.stack((torch.ones_like(value), value, correct.to(value)), dim=1)
    return sum_by_slot(columns, slot, num_bins)


def join_reliability(parts: Tensor) -> Reliability:
    """Reliability from parts ``(..., num_bins, F, 4)`` whose first three columns are its sums."""
    sums = join(parts)
    edges = bin_edges(sums.shape[-2], device=sums.device)
    return Reliability(sums[..., 0], sums[..., 1], sums[..., 2], edges)


def calibration_bins(confidence: Tensor, correct: Tensor, num_bins: int = NUM_BINS) -> Reliability:
    """Reliability sums of ``confidence (N,)`` in [0, 1] and ``correct (N,)`` in {0, 1}."""
    slot = bin_index(confidence, num_bins)
    return join_reliability(reliability_parts(confidence, correct, slot, num_bins))


def calibration_error(reliability: Reliability) -> Tensor:
    """Expected calibration error over the last axis; NaN without any sample."""
    difference = (reliability.confidence_sum - reliability.correct_sum).abs()
    return difference.sum(-1) / reliability.count.sum(-1)


def adaptive_bins(confidence: Tensor, correct: Tensor, num_bins: int = NUM_BINS) -> Reliability:
    r"""Reliability sums over bins of equal mass of ``confidence (N,)`` and ``correct (N,)``.

    With bins of equal width, most samples of an over-confident network are in the last bin. Here
    the :math:`n` samples are sorted by confidence and bin :math:`m` of :math:`M` takes the ranks
    from :math:`\lfloor mn/M \rfloor` up to, not including, :math:`\lfloor (m+1)n/M \rfloor`.

    Samples of equal confidence get the mean correctness of their tie, so the result does not depend
    on the order of samples. ``edges`` contains the mean of the confidences on both sides of each
    border, with 0 and 1 at the ends.
    """
    order = working_precision(confidence).sort()
    value, hit = order.values, correct.to(order.values)[order.indices]
    n, edges = len(value), bin_edges(num_bins, device=value.device)
    borders = torch.tensor([m * n // num_bins for m in range(num_bins + 1)], device=value.device)
    slot = torch.searchsorted(borders, torch.arange(n, device=value.device), right=True) - 1
    parts = reliability_parts(value, mean_of_ties(value, hit), slot, num_bins)
    padded = torch.cat((value.new_zeros(1), value, value.new_ones(1)))
    edges[1:-1] = ((padded[borders] + padded[borders + 1]) / 2)[1:-1]
    return join_reliability(parts)._replace(edges=edges)


def mean_of_ties(value: Tensor, given: Tensor) -> Tensor:
    """Mean of ``given (N,)`` over entries with equal sorted ``value (N,)``."""
    tie = torch.zeros(len(value), dtype=torch.int64, device=value.device)
    tie[1:] = (value[1:] != value[:-1]).cumsum(0)
    total, size = (torch.zeros_like(value) for _ in range(2))
    total.index_add_(0, tie, given)
    size.index_add_(0, tie, torch.ones_like(given))
    return (total / size)[tie]


def adaptive_calibration_error(
    confidence: Tensor, correct: Tensor, num_bins: int = NUM_BINS
) -> Tensor:
    """Expected calibration error over ``num_bins`` bins of equal mass; NaN without samples.

    >>> confidence, correct = torch.tensor([0.6, 0.7, 0.8, 0.9]), torch.tensor([0, 1, 1, 1])
    >>> adaptive_calibration_error(confidence, correct, num_bins=2)
    tensor(0.1500, dtype=torch.float64)
    """
    return calibration_error(adaptive_bins(confidence, correct, num_bins))


def classwise_calibration_error(probs: Tensor, target: Tensor, num_bins: int = NUM_BINS) -> Tensor:
    r"""Mean over classes of the calibration error of each class's own probability.

    The ECE uses only the largest probability. Here every class :math:`k` of :math:`K` is a
    yes-or-no forecast (Kull et al., 2019): with the samples of ``probs (N, K)`` binned by
    :math:`p_{ik}` into bins of equal width,

    .. math:: \frac1K\sum_k\sum_m \frac1N\Bigl|\sum_{i: p_{ik} \in m} (p_{ik} - [t_i = k])\Bigr|.

    NaN without samples.

    >>> probs, target = torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0])
    >>> classwise_calibration_error(probs, target, num_bins=5)
    tensor(0.4000, dtype=torch.float64)
    """
    check_shapes("probs", probs, target=target)
    check_probabilities(probs)
    check_range("target", target, probs.shape[1])
    classes = probs.shape[1]
    sums = torch.zeros(classes * num_bins, dtype=torch.float64)
    offset = torch.arange(classes, device=probs.device) * num_bins
    for rows in row_blocks(probs):
        slot = (offset + bin_index(probs[rows], num_bins)).flatten().cpu()
        p = working_precision(probs[rows])
        difference = p.scatter_add(1, target[rows, None], -torch.ones_like(p[:, :1]))
        sums.index_add_(0, slot, difference.flatten().cpu().double())
    return sums.abs().sum() / (classes * len(probs)) if len(probs) else sums.new_tensor(torch.nan)


def effective_counts(confidence: Tensor, correct: Tensor, num_bins: int = NUM_BINS) -> Tensor:
    r"""Effective number of independent images per bin of pooled cells, ``(num_bins,)`` in float64.

    Predictions for the same image in several cells are correlated. In a bin of :math:`n_m` samples
    with accuracy :math:`a`, let :math:`r_i` be the sum of correctness minus :math:`a` over the
    cells in which image :math:`i` is in the bin. The variance of :math:`a` is
    :math:`\sum_i r_i^2 / n_m^2`, as for :math:`n_m^2 a(1 - a) / \sum_i r_i^2` independent images.
    If a bin is all right or all wrong, its number of different images is returned.

    Args:
        confidence: ``(cells, images)``, the same images in every cell.
        correct: the same shape.
        num_bins: number of bins.
    """
    bins = bin_index(confidence, num_bins)
    found = torch.zeros(num_bins, dtype=torch.float64)
    for m in range(num_bins):
        inside = bins == m
        count = inside.sum().double()
        accuracy = (correct.bool() & inside).sum() / count
        spread = torch.where(inside, correct.double() - accuracy, 0.0).sum(0).square().sum()
        independent = torch.minimum(count, count**2 * accuracy * (1 - accuracy) / spread)
        mixed = (accuracy > 0) & (accuracy < 1) & (spread > 0)
        found[m] = torch.where(mixed, independent, inside.any(0).sum())
    return found
