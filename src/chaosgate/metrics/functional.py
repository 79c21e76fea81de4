r"""Per-sample scores and calibration bins, as pure functions.

For logits :math:`z \in \mathbb{R}^K`, probabilities :math:`p = \mathrm{softmax}(z)` and the true class :math:`t`:

.. math::
    \text{confidence} = \max_k p_k, \qquad \text{NLL} = \log\sum_k e^{z_k} - z_t, \qquad
    \text{Brier} = \sum_k (p_k - [k = t])^2.

The expected calibration error groups samples by confidence into :math:`M` bins of equal width (the paper uses 15),

.. math:: \text{ECE} = \sum_{m=1}^M \frac{n_m}{n}\,\bigl|\overline{\text{confidence}}_m - \text{accuracy}_m\bigr|.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chaosgate.metrics.checks import check_num_bins, check_probabilities, check_range, check_shapes
from chaosgate.metrics.sums import join, sum_by_slot, working_precision

Norm = Literal["l1", "l2", "max"]

# Elements worked on at a time: float64 temporaries of 1 MB stay in the cache of a core, and a batch of 21,841-class
# logits does not need twice its own memory. An accelerator wants fewer and larger pieces.
BLOCK_CPU, BLOCK_DEVICE = 2**17, 2**25


class Scores(NamedTuple):
    """What one batch of logits says about each sample; every field is ``(B,)``.

    Where the logits have a nan, a plus infinity or nothing but minus infinity, no softmax exists: the first three are
    nan, and the rank means nothing.

    Attributes:
        confidence: The largest probability.
        nll: Negative log-likelihood of the true class.
        brier: Squared distance of the probabilities to the one-hot label.
        rank: How many classes come before the true one: 0 is a top-1 hit, below 5 a top-5 hit.
    """

    confidence: Tensor
    nll: Tensor
    brier: Tensor
    rank: Tensor


def row_blocks(values: Tensor) -> Iterator[slice]:
    """Slices over the rows of ``values (B, K)`` in pieces of bounded size; one empty slice for an empty batch."""
    block = BLOCK_CPU if values.device.type == "cpu" else BLOCK_DEVICE
    step = max(1, block // values.shape[1])
    for start in range(0, max(1, len(values)), step):
        yield slice(start, start + step)


def target_rank(values: Tensor, target: Tensor) -> Tensor:
    r"""Number of classes ``(B,)`` that come before ``target (B,)`` when ``values (B, K)`` are sorted downwards.

    Among equal values the lower class number comes first, as in :func:`torch.argmax`. So a network that gives every
    class the same logit gets the accuracy of always answering class 0, and not a hit for each sample.

    The sign of :math:`2\,\mathrm{sign}(z_j - z_t) + \mathrm{sign}(t - j)` is +1 for the classes before the true one,
    -1 for those after it and 0 for itself, so their sum is :math:`2\,\text{rank} - (K - 1)`. Written with signs because
    comparisons, which make masks, take three times as long on a CPU.
    """
    z = _at_least_float32(values).clamp(
        min=torch.finfo(values.dtype).min
    )  # minus infinity has no difference to itself
    difference = z - z.gather(1, target[:, None])
    number = torch.arange(z.shape[1], dtype=z.dtype, device=z.device)
    lower_number = (target[:, None].to(z.dtype) - number).sign_()
    before_or_after = lower_number.add_(difference.sign_(), alpha=2).sign_()
    return ((before_or_after.sum(1) + z.shape[1] - 1) / 2).long()


def top_class(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Largest entry of each row of ``probs (B, K)`` and the first class that has it, as :func:`torch.max` gives them.

    In about half its time on a CPU. A row with a nan has a nan as its largest entry.
    """
    z = _at_least_float32(probs.detach())
    largest = z.amax(1, keepdim=True)
    # Too small to change a difference of probabilities that is not zero, and exact where it is.
    handicap = torch.arange(z.shape[1], dtype=z.dtype, device=z.device) * 2.0**-100
    first = (z - largest).sub_(handicap).amax(1) * -(2.0**100)
    return largest.squeeze(1).to(probs.dtype), first.nan_to_num(nan=-1).long()


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def classification_scores(logits: Tensor, target: Tensor) -> Scores:
    """Scores of ``logits (B, K)`` of any float type against ``target (B,)``, computed in float64.

    The largest logit is subtracted before exponentiating, so logits of size 1e4 and more are harmless. A logit of
    minus infinity is a class of probability zero; the NLL is infinite where it belongs to the true class.
    """
    parts = [_scores(logits[rows], target[rows]) for rows in row_blocks(logits)]
    return Scores(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _scores(logits: Tensor, target: Tensor) -> Scores:
    z = working_precision(logits)
    top = z.amax(1, keepdim=True)
    below_top = (top - z.gather(1, target[:, None])).squeeze(1)
    # exp and log give a number the same image wherever it stands in a tensor; faster ones such as exp2 do not, and
    # then a batch split would show, and break ties.
    exponentials = (z - top).exp_()
    total = exponentials.sum(1)
    brier = exponentials.square_().sum(1) / total**2 - 2 * (-below_top).exp() / total + 1
    return Scores(1 / total, total.log() + below_top, brier, target_rank(logits, target))


class Reliability(NamedTuple):
    """Sums per confidence bin, ``(..., num_bins)`` in float64: all that a reliability diagram or an ECE needs.

    Attributes:
        count: Samples.
        confidence_sum: Sum of their confidences.
        correct_sum: How many of them are classified correctly.
        edges: Bin borders ``(num_bins + 1,)``; bin ``m`` is ``(edges[m], edges[m + 1]]``, and bin 0 contains 0 too.
    """

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not used here
    confidence_sum: Tensor
    correct_sum: Tensor
    edges: Tensor

    def of_cell(self, cell: int) -> "Reliability":
        """The sums ``(num_bins,)`` of one cell."""
        return Reliability(
            self.count[cell], self.confidence_sum[cell], self.correct_sum[cell], self.edges
        )


def bin_edges(
    num_bins: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Tensor:
    """The numbers ``k / num_bins`` for ``k = 0 .. num_bins``, rounded to ``dtype``."""
    check_num_bins(num_bins)
    return torch.tensor([k / num_bins for k in range(num_bins + 1)], dtype=dtype, device=device)


def bin_index(confidence: Tensor, num_bins: int) -> Tensor:
    """Bin of each confidence in [0, 1]: bins are open below and closed above, the first contains 0.

    Borders are rounded to the type of ``confidence``: the float32 nearest to 1/15 is larger than the float64 nearest
    to it, yet it lies on the border and belongs to the lower bin. A nan goes to the last bin.

    >>> bin_index(torch.tensor([0.0, 0.2, 0.20001, 1.0]), num_bins=5)
    tensor([0, 0, 1, 4])
    """
    inner = bin_edges(num_bins, confidence.dtype, confidence.device)[1:-1]
    return torch.bucketize(confidence.contiguous(), inner)


def calibration_bins(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Reliability:
    """Reliability sums of ``confidence (N,)`` in [0, 1] and ``correct (N,)`` in {0, 1}."""
    value = working_precision(confidence)
    columns = torch.stack((torch.ones_like(value), value, correct.to(value)), dim=1)
    sums = join(sum_by_slot(columns, bin_index(confidence, num_bins), num_bins))
    return Reliability(sums[:, 0], sums[:, 1], sums[:, 2], bin_edges(num_bins, device=sums.device))


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


def adaptive_bins(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Reliability:
    r"""Reliability sums over bins of equal mass of ``confidence (N,)`` in [0, 1] and ``correct (N,)`` in {0, 1}.

    Bins of equal width leave most of an over-confident network's samples in the last bin. Here the :math:`n` samples
    are sorted by confidence and bin :math:`m` of :math:`M` takes the ranks from :math:`\lfloor mn/M \rfloor` up to, not
    including, :math:`\lfloor (m+1)n/M \rfloor`: sizes differ by at most one where :math:`M` does not divide :math:`n`,
    and bins are empty where :math:`n < M`.

    Samples of equal confidence are interchangeable, so a border between them must not depend on who came first: each
    of them carries the mean correctness of its tie. That makes the result a function of the set of samples alone.
    ``edges`` holds the mean of the confidences on the two sides of each border, with 0 and 1 at the ends.
    """
    check_num_bins(num_bins)
    order = working_precision(confidence).sort()
    value, hit = order.values, correct.to(order.values)[order.indices]
    n = len(value)
    borders = torch.tensor([m * n // num_bins for m in range(num_bins + 1)], device=value.device)
    slot = torch.searchsorted(borders, torch.arange(n, device=value.device), right=True) - 1
    columns = torch.stack((torch.ones_like(value), value, mean_of_ties(value, hit)), dim=1)
    sums = join(sum_by_slot(columns, slot, num_bins))
    padded = torch.cat((value.new_zeros(1), value, value.new_ones(1)))
    edges = (padded[borders] + padded[borders + 1]) / 2
    edges[0], edges[-1] = 0, 1
    return Reliability(sums[:, 0], sums[:, 1], sums[:, 2], edges)


def mean_of_ties(value: Tensor, given: Tensor) -> Tensor:
    """Each entry of ``given (N,)`` replaced by the mean of its tie: the entries with an equal sorted ``value (N,)``."""
    tie = torch.zeros(len(value), dtype=torch.int64, device=value.device)
    tie[1:] = (value[1:] != value[:-1]).cumsum(0)
    size, total = (
        torch.zeros_like(value).index_add_(0, tie, x) for x in (torch.ones_like(given), given)
    )
    return (total / size)[tie]


def adaptive_calibration_error(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Tensor:
    """Expected calibration error over ``num_bins`` bins of equal mass; nan without samples.

    >>> adaptive_calibration_error(torch.tensor([0.6, 0.7, 0.8, 0.9]), torch.tensor([0, 1, 1, 1]), num_bins=2)
    tensor(0.1500, dtype=torch.float64)
    """
    return calibration_error(adaptive_bins(confidence, correct, num_bins))


def classwise_calibration_error(probs: Tensor, target: Tensor, num_bins: int = 15) -> Tensor:
    r"""Mean over classes of the calibration error of each class's own probability; nan without samples.

    The ECE looks at the largest probability only. Here every class :math:`k` of :math:`K` is a yes-or-no forecast
    (Kull et al., 2019): with the samples of ``probs (N, K)`` binned by :math:`p_{ik}` into bins of equal width,

    .. math:: \frac1K\sum_k\sum_m \frac1N\Bigl|\sum_{i: p_{ik} \in m} (p_{ik} - [t_i = k])\Bigr|.

    >>> classwise_calibration_error(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), num_bins=5)
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


def effective_counts(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Tensor:
    r"""How many independent images each bin of pooled cells is worth, ``(num_bins,)`` in float64.

    In :math:`n_m` samples of a bin with accuracy :math:`a`, the answers to one image in several cells are alike. With
    :math:`r_i` the sum of correctness minus :math:`a` over the cells in which image :math:`i` falls into the bin, the
    variance of :math:`a` is :math:`\sum_i r_i^2 / n_m^2`, that of :math:`a(1 - a) / \sum_i r_i^2 \cdot n_m^2`
    independent images. A bin that is all right or all wrong is worth its number of different images.

    Args:
        confidence: ``(cells, images)``, the same images in every cell.
        correct: the same shape.
        num_bins: number of bins.
    """
    bins = bin_index(confidence, num_bins)
    found = torch.zeros(num_bins, dtype=torch.float64)
    for m in range(num_bins):
        inside = bins == m
        count, right = float(inside.sum()), float((correct.bool() & inside).sum())
        if not count:
            continue
        accuracy = right / count
        spread = float((torch.where(inside, correct.double() - accuracy, 0.0).sum(0) ** 2).sum())
        images = float(inside.any(0).sum())
        found[m] = (
            min(count, count**2 * accuracy * (1 - accuracy) / spread)
            if 0 < right < count and spread
            else images
        )
    return found
