r"""Proper scoring rules as torchmetrics classes: negative log-likelihood, and the Brier score with its terms.

The Brier score :math:`\frac1N\sum_i\sum_k (p_{ik} - y_{ik})^2` of :math:`N` forecasts over :math:`K` classes is a sum
of :math:`K` scores of yes-or-no forecasts. Each of these groups its samples by the forecast :math:`p_{ik}` into bins
of equal width; with :math:`n_{km}` samples, mean forecast :math:`\bar p_{km}` and frequency :math:`\bar y_{km}` in
bin :math:`m`, and :math:`\bar y_k` the frequency of class :math:`k`,

.. math::
    \text{score} &= \text{reliability} - \text{resolution} + \text{uncertainty}
                    + \text{within variance} - \text{within covariance} \\
    \text{reliability} &= \tfrac1N\textstyle\sum_{km} n_{km}(\bar p_{km} - \bar y_{km})^2, \qquad
    \text{resolution} = \tfrac1N\sum_{km} n_{km}(\bar y_{km} - \bar y_k)^2, \\
    \text{uncertainty} &= \textstyle\sum_k \bar y_k(1 - \bar y_k), \\
    \text{within variance} &= \tfrac1N\textstyle\sum_{ik} (p_{ik} - \bar p_{km(i)})^2, \qquad
    \text{within covariance} = \tfrac2N\sum_{ik} (p_{ik} - \bar p_{km(i)})(y_{ik} - \bar y_{km(i)}).

Murphy's three terms are exact only if all forecasts in a bin are equal; the two within-bin terms (Stephenson, Coelho
and Jolliffe, 2008) make it an identity for any forecasts.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from chaosgate.metrics.checks import check_num_bins, check_probabilities, check_range, check_shapes
from chaosgate.metrics.functional import bin_index, classification_scores, row_blocks
from chaosgate.metrics.sums import PARTS, carry, join, sum_by_slot, working_precision

_COUNT, _FORECAST, _OUTCOME = range(3)


class NegativeLogLikelihood(Metric):
    r"""Mean of :math:`\log\sum_k e^{z_k} - z_t` over the samples, for logits :math:`z` and the true class :math:`t`.

    Taken from logits: the logarithm of a float32 softmax is minus infinity as soon as a wrong answer is given with a
    margin of about 104. Non-finite logits show: the mean is nan, or inf where only the true class had minus infinity.

    Args:
        validate_args: check that targets are in range. Costs a device synchronisation per batch.
        kwargs: passed on to :class:`torchmetrics.Metric`.

    >>> metric = NegativeLogLikelihood()
    >>> metric.update(torch.tensor([[0.0, 1000.0]]), torch.tensor([0]))
    >>> metric.compute()
    tensor(1000., dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    sums: Tensor

    def __init__(self, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.validate_args = validate_args
        self.add_state("sums", torch.zeros(1, 2, PARTS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count a batch of logits ``(B, K)`` and true classes ``(B,)``."""
        check_shapes("logits", logits, target=target)
        if self.validate_args:
            check_range("target", target, logits.shape[1])
        nll = classification_scores(logits.detach(), target).nll
        columns = torch.stack((torch.ones_like(nll), nll), dim=1)
        self.sums = carry(self.sums + sum_by_slot(columns, torch.zeros_like(target), num_slots=1))

    def compute(self) -> Tensor:
        """The mean, a float64 scalar; nan without samples."""
        count, nll = join(self.sums)[0].unbind()
        return nll / count


class BrierDecomposition(NamedTuple):
    """The score and its five terms, each a float64 scalar.

    Attributes:
        score: ``reliability - resolution + uncertainty + within_variance - within_covariance``.
        reliability: How far the mean forecasts of the bins are from what happened; smaller is better.
        resolution: How far what happened in the bins is from the share of the class; larger is better.
        uncertainty: What a forecast of these shares would score.
        within_variance: Spread of the forecasts inside the bins.
        within_covariance: How far that spread follows what happened.
    """

    score: Tensor
    reliability: Tensor
    resolution: Tensor
    uncertainty: Tensor
    within_variance: Tensor
    within_covariance: Tensor


class BrierScore(Metric):
    """Mean squared distance between probabilities and the one-hot label, in [0, 2]; lower is better.

    The state is three sums per class and bin, the same for every batch size and number of processes.

    Args:
        num_classes: number of classes :math:`K`.
        num_bins: number of bins of each class's forecasts, open below and closed above as in
            :class:`~chaosgate.metrics.CalibrationError`; they matter to the decomposition only.
        validate_args: check that each row is a probability distribution and targets are in range. Costs a device
            synchronisation per batch; without it a nan in a row makes the result nan.
        kwargs: passed on to :class:`torchmetrics.Metric`.

    >>> metric = BrierScore(num_classes=2)
    >>> metric.update(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.3125, dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    bins: Tensor
    totals: Tensor

    def __init__(
        self, num_classes: int, num_bins: int = 15, validate_args: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_num_bins(num_bins)
        self.num_classes = num_classes
        self.num_bins = num_bins
        self.validate_args = validate_args
        self.add_state(
            "bins",
            torch.zeros(num_classes, num_bins, 3, PARTS, dtype=torch.int64),
            dist_reduce_fx="sum",
        )
        self.add_state("totals", torch.zeros(4, PARTS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, probs: Tensor, target: Tensor) -> None:
        """Count a batch of probabilities ``(B, K)``, not logits, and true classes ``(B,)``."""
        check_shapes("probs", probs, target=target)
        if probs.shape[1] != self.num_classes:
            raise ValueError(
                f"probs have {probs.shape[1]} classes; the metric was made for {self.num_classes}."
            )
        if self.validate_args:
            check_probabilities(probs)
            check_range("target", target, self.num_classes)
        for rows in row_blocks(probs):
            self._update_block(probs.detach()[rows], target[rows])

    def _update_block(self, probs: Tensor, target: Tensor) -> None:
        p = working_precision(probs)
        offset = torch.arange(self.num_classes, device=p.device) * self.num_bins
        slot = offset + bin_index(probs, self.num_bins)
        slots = self.num_classes * self.num_bins
        forecasts = torch.stack((torch.ones_like(p), p), dim=-1).flatten(0, 1)
        bins = torch.zeros_like(self.bins)
        bins[..., :_OUTCOME, :] = sum_by_slot(forecasts, slot.flatten(), slots).view(
            bins[..., :_OUTCOME, :].shape
        )

        at_target = p.gather(1, target[:, None])
        one = torch.ones_like(at_target)
        outcome = sum_by_slot(one, slot.gather(1, target[:, None]).squeeze(1), slots)
        bins[..., _OUTCOME, :] = outcome.view(bins[..., _OUTCOME, :].shape)
        self.bins = carry(self.bins + bins)

        square = p.square().sum(1, keepdim=True)
        distance = p.scatter_add(1, target[:, None], -one).square().sum(1, keepdim=True)
        columns = torch.cat((one, distance, square, at_target), dim=1)
        self.totals = carry(
            self.totals + sum_by_slot(columns, torch.zeros_like(target), num_slots=1)[0]
        )

    def compute(self) -> Tensor:
        """The Brier score, a float64 scalar; nan without samples."""
        count, distance, _, _ = join(self.totals).unbind()
        return distance / count

    def decomposition(self) -> BrierDecomposition:
        """The score and its terms over all processes: call it on every one of them."""
        with self.sync_context():
            n, distance, square, at_target = join(self.totals).unbind()
            count, forecast, outcome = join(self.bins).unbind(-1)
        size = count.clamp(min=1)  # an empty bin has zero sums and drops out
        mean_forecast, mean_outcome = forecast / size, outcome / size
        base_rate = outcome.sum(1, keepdim=True) / n
        return BrierDecomposition(
            score=distance / n,
            reliability=(count * (mean_forecast - mean_outcome) ** 2).sum() / n,
            resolution=(count * (mean_outcome - base_rate) ** 2).sum() / n,
            uncertainty=(base_rate * (1 - base_rate)).sum(),
            within_variance=(square - (forecast * mean_forecast).sum()) / n,
            within_covariance=2 * (at_target - (forecast * mean_outcome).sum()) / n,
        )
