r"""The metrics as torchmetrics classes: sums per bin, or kept samples, combined over processes.

The Brier score :math:`\frac1N\sum_i\sum_k (p_{ik} - y_{ik})^2` of :math:`N` forecasts over
:math:`K` classes is a sum of :math:`K` scores of yes-or-no forecasts. Each of these groups its
samples by the forecast :math:`p_{ik}` into bins of equal width; with :math:`n_{km}` samples, mean
forecast :math:`\bar p_{km}` and frequency :math:`\bar y_{km}` in bin :math:`m`, and
:math:`\bar y_k` the frequency of class :math:`k`,

.. math::
    \text{score} &= \text{reliability} - \text{resolution} + \text{uncertainty}
                    + \text{within variance} - \text{within covariance} \\
    \text{reliability} &= \tfrac1N\textstyle\sum_{km} n_{km}(\bar p_{km} - \bar y_{km})^2, \qquad
    \text{resolution} = \tfrac1N\sum_{km} n_{km}(\bar y_{km} - \bar y_k)^2, \\
    \text{uncertainty} &= \textstyle\sum_k \bar y_k(1 - \bar y_k), \\
    \text{within variance} &= \tfrac1N\textstyle\sum_{ik} (p_{ik} - \bar p_{km(i)})^2, \qquad
    \text{within covariance}
        = \tfrac2N\sum_{ik} (p_{ik} - \bar p_{km(i)})(y_{ik} - \bar y_{km(i)}).

Murphy's three terms are exact only if all forecasts in a bin are equal; the two within-bin terms
(Stephenson, Coelho and Jolliffe, 2008) make it an identity for any forecasts.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from chaosgate.metrics import NUM_BINS
from chaosgate.metrics.functional import (
    PARTS,
    Reliability,
    adaptive_bins,
    bin_edges,
    bin_index,
    calibration_error,
    check_probabilities,
    check_range,
    check_shapes,
    classification_scores,
    join,
    join_reliability,
    reliability_parts,
    row_blocks,
    sum_by_slot,
    top_class,
    working_precision,
)


class _ExactMetric(Metric):
    """Sums as integers in ``sums``.

    A float state would be rounded by ``module.to(torch.bfloat16)``, which is what Lightning does
    for ``precision="bf16-true"``.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False

    sums: Tensor

    def __init__(self, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.validate_args = validate_args

    def add_sums(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(*shape, PARTS, dtype=torch.int64), dist_reduce_fx="sum")

    def check(self, name: str, scores: Tensor, target: Tensor) -> None:
        check_shapes(name, scores, target=target)
        if self.validate_args:
            if name == "probs":
                check_probabilities(scores)
            check_range("target", target, scores.shape[1])


class CalibrationError(_ExactMetric):
    r"""Expected calibration error over bins of equal width: distance of confidence and accuracy.

    .. math::
        \text{ECE} = \sum_m \frac{n_m}{n}\,
        \bigl|\overline{\text{confidence}}_m - \text{accuracy}_m\bigr|

    Bin :math:`m` of :math:`M` is :math:`(\tfrac{m-1}{M}, \tfrac{m}{M}]`, the first one contains 0,
    and confidence 1 is in the last one.

    Args:
        num_bins: number of bins :math:`M`; the paper uses 15.
        kwargs: ``validate_args``, and those of :class:`torchmetrics.Metric`. By default,
            probabilities and targets are checked, which costs a device synchronization per batch;
            without the check a NaN makes the result NaN.

    >>> metric = CalibrationError(num_bins=5)
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.4000, dtype=torch.float64)
    """

    def __init__(self, num_bins: int = NUM_BINS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        bin_edges(num_bins)  # refuses a number below one
        self.num_bins = num_bins
        self.add_sums("sums", num_bins, 3)

    def update(self, probs: Tensor, target: Tensor) -> None:
        """Count a batch of probabilities ``(B, K)``, not logits, and true classes ``(B,)``."""
        self.check("probs", probs, target)
        confidence, predicted = top_class(probs)
        slot = bin_index(confidence, self.num_bins)
        self.sums += reliability_parts(confidence, predicted == target, slot, self.num_bins)

    def compute(self) -> Tensor:
        """The calibration error, a float64 scalar; NaN without samples."""
        return calibration_error(join_reliability(self.sums))


class NegativeLogLikelihood(_ExactMetric):
    r"""Mean of :math:`\log\sum_k e^{z_k} - z_t` for logits :math:`z` and the true class :math:`t`.

    It is computed from logits, because the logarithm of a float32 softmax is minus infinity if the
    logit of the true class is about 104 below the largest. With non-finite logits the mean is NaN,
    or inf if only true classes have minus infinity.

    Args:
        kwargs: as in :class:`CalibrationError`.

    >>> metric = NegativeLogLikelihood()
    >>> metric.update(torch.tensor([[0.0, 1000.0]]), torch.tensor([0]))
    >>> metric.compute()
    tensor(1000., dtype=torch.float64)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sums("sums", 1, 2)

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count a batch of logits ``(B, K)`` and true classes ``(B,)``."""
        self.check("logits", logits, target)
        nll = classification_scores(logits.detach(), target).nll
        columns = torch.stack((torch.ones_like(nll), nll), dim=1)
        self.sums += sum_by_slot(columns, torch.zeros_like(target), num_slots=1)

    def compute(self) -> Tensor:
        """The mean, a float64 scalar; NaN without samples."""
        count, nll = join(self.sums)[0].unbind()
        return nll / count


class BrierDecomposition(NamedTuple):
    """The score and its five terms, each a float64 scalar.

    Attributes:
        score: ``reliability - resolution + uncertainty + within_variance - within_covariance``.
        reliability: Distance of mean forecasts and frequencies in the bins; smaller is better.
        resolution: Distance of the frequencies in the bins and overall; larger is better.
        uncertainty: Score of a forecast of the overall frequencies.
        within_variance: Variance of the forecasts inside the bins.
        within_covariance: Covariance of forecasts and outcomes inside the bins, times two.
    """

    score: Tensor
    reliability: Tensor
    resolution: Tensor
    uncertainty: Tensor
    within_variance: Tensor
    within_covariance: Tensor


class BrierScore(_ExactMetric):
    """Mean squared distance between probabilities and the one-hot label, in [0, 2].

    Args:
        num_classes: number of classes :math:`K`.
        num_bins: number of bins of each class's forecasts, as in :class:`CalibrationError`; they
            affect only the decomposition.
        kwargs: as in :class:`CalibrationError`.

    >>> metric = BrierScore(num_classes=2)
    >>> metric.update(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.3125, dtype=torch.float64)
    """

    totals: Tensor

    def __init__(self, num_classes: int, num_bins: int = NUM_BINS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        bin_edges(num_bins)  # refuses a number below one
        self.num_classes, self.num_bins = num_classes, num_bins
        self.add_sums("sums", num_classes, num_bins, 3)
        self.add_sums("totals", 1, 3)

    def update(self, probs: Tensor, target: Tensor) -> None:
        """Count a batch of probabilities ``(B, K)``, not logits, and true classes ``(B,)``."""
        self.check("probs", probs, target)
        if probs.shape[1] != self.num_classes:
            raise ValueError(
                f"probs have {probs.shape[1]} classes; the metric was made for {self.num_classes}."
            )
        offset = torch.arange(self.num_classes, device=probs.device) * self.num_bins
        slots = self.num_classes * self.num_bins
        for rows in row_blocks(probs):
            p, at = working_precision(probs.detach()[rows]), target[rows, None]
            slot = offset + bin_index(probs.detach()[rows], self.num_bins)
            forecasts = torch.stack((torch.ones_like(p), p), dim=-1).flatten(0, 1)
            at_target = p.gather(1, at)
            one = torch.ones_like(at_target)
            forecast_sums = sum_by_slot(forecasts, slot.flatten(), slots)
            outcome_sums = sum_by_slot(one, slot.gather(1, at).squeeze(1), slots)
            self.sums += torch.cat((forecast_sums, outcome_sums), 1).view_as(self.sums)
            columns = torch.cat((one, p.square().sum(1, keepdim=True), at_target), dim=1)
            self.totals += sum_by_slot(columns, torch.zeros_like(target[rows]), num_slots=1)

    def compute(self) -> Tensor:
        """The Brier score, a float64 scalar; NaN without samples."""
        count, square, at_target = join(self.totals)[0].unbind()
        return (square - 2 * at_target) / count + 1

    def decomposition(self) -> BrierDecomposition:
        """The score and its terms over all processes: call it on every one of them."""
        with self.sync_context():
            n, square, at_target = join(self.totals)[0].unbind()
            count, forecast, outcome = join(self.sums).unbind(-1)
        size = count.clamp(min=1)  # an empty bin has zero sums and drops out
        mean_forecast, mean_outcome = forecast / size, outcome / size
        base_rate = outcome.sum(1, keepdim=True) / n
        return BrierDecomposition(
            score=(square - 2 * at_target) / n + 1,
            reliability=(count * (mean_forecast - mean_outcome) ** 2).sum() / n,
            resolution=(count * (mean_outcome - base_rate) ** 2).sum() / n,
            uncertainty=(base_rate * (1 - base_rate)).sum(),
            within_variance=(square - (forecast * mean_forecast).sum()) / n,
            within_covariance=2 * (at_target - (forecast * mean_outcome).sum()) / n,
        )


class CellMetrics(_ExactMetric):
    r"""Accuracy, NLL, ECE, Brier score and confidence of many cells (corruption, severity) at once.

    The state consists of sums per cell and confidence bin. Aggregate over cells with
    :func:`~chaosgate.metrics.aggregate_cells`, not by pooling samples, as the paper averages the
    metrics of cells.

    ``compute`` returns a dictionary of float64 tensors ``(num_cells,)`` (torchmetrics makes them
    scalars for one cell); a cell without samples has ``n = 0`` and NaN elsewhere:

    - ``n``: samples counted
    - ``top1``: share of samples whose true class comes first (ties: the lower class)
    - ``top5``: the same among the first five; NaN where there are fewer than five classes
    - ``nll``: mean negative log-likelihood; inf where a true class had minus infinity
    - ``ece``: expected calibration error over ``num_bins`` bins of equal width
    - ``brier``: mean squared distance of the probabilities to the one-hot label, in [0, 2]
    - ``confidence``: mean largest probability
    - ``gap``: ``confidence - top1``: positive is over-confident
    - ``adaptive_ece``: as ``ece`` over bins of equal mass; only with ``adaptive_bins``

    Logits with a NaN or a plus infinity have no softmax: a cell with such a sample keeps its ``n``
    and is NaN in every other entry.

    Args:
        num_cells: number of cells; ``update`` takes the cell of each sample.
        num_bins: number of confidence bins.
        adaptive_bins: number of equal-mass bins for ``adaptive_ece``. Their borders are known only
            at the end, so 16 bytes per sample are stored.
        kwargs: as in :class:`CalibrationError`.

    >>> metric = CellMetrics(num_cells=2)
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 3.0]])
    >>> metric.update(logits, target=torch.tensor([0, 1, 1]), cell=torch.tensor([0, 0, 1]))
    >>> metric.compute()["top1"]
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    higher_is_better = None

    samples: list[Tensor] | Tensor
    """Rows ``(N, 2)`` of int64, as :meth:`update` describes them."""

    def __init__(
        self,
        num_cells: int = 1,
        num_bins: int = NUM_BINS,
        adaptive_bins: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        bin_edges(num_bins)  # refuses a number below one
        self.num_cells, self.num_bins, self.adaptive_bins = num_cells, num_bins, adaptive_bins
        self.add_sums("sums", num_cells, num_bins, 6)
        if adaptive_bins:
            self.add_state("samples", [], dist_reduce_fx="cat")

    def update(
        self,
        logits: Tensor,
        target: Tensor,
        cell: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> None:
        """Count a batch: ``logits (B, K)``, ``target (B,)``, ``cell (B,)``.

        Samples with a ``weight (B,)`` of False are padding and do not count.
        """
        counted = torch.ones_like(target, dtype=torch.bool) if weight is None else weight.bool()
        cell = torch.zeros_like(target) if cell is None else cell
        check_shapes("logits", logits, target=target, cell=cell, weight=counted)
        if self.validate_args:
            check_range("target", target, logits.shape[1], counted)
            check_range("cell", cell, self.num_cells, counted)
        target, cell = (torch.where(counted, index, 0).long() for index in (target, cell))

        confidence, nll, brier, rank = classification_scores(logits.detach(), target)
        top1, top5 = (
            torch.where(confidence.isfinite(), (rank < k).to(confidence), torch.nan) for k in (1, 5)
        )
        if logits.shape[1] < 5:
            top5 = torch.full_like(top5, torch.nan)
        columns = (torch.ones_like(confidence), confidence, top1, top5, nll, brier)
        values = torch.where(counted[:, None], torch.stack(columns, dim=1), 0.0)
        slot = cell * self.num_bins + bin_index(values[:, 1], self.num_bins)
        self.sums += sum_by_slot(values, slot, self.num_cells * self.num_bins).view_as(self.sums)
        if self.adaptive_bins:
            # The cell, and the confidence in units of 2^-60 with the correctness in the last bit:
            # exact above 2^-36 in float32 and above 2^-8 in float64; -1 stands for NaN.
            units = torch.where(counted, confidence, torch.nan) * 2.0**60
            key = 2 * torch.where(units.isnan(), 0.0, units).long() + (rank < 1)
            key = torch.where(units.isnan(), -1, key)
            rows = torch.stack((torch.where(counted, cell, -1), key), dim=1)
            self.samples = [*self._sample_batches(), rows]

    def compute(self) -> dict[str, Tensor]:
        """Metrics per cell, each ``(num_cells,)`` in float64."""
        n, confidence, top1, top5, nll, brier = join(self.sums.sum(1)).unbind(-1)
        result = {
            "n": n,
            "top1": top1 / n,
            "top5": top5 / n,
            "nll": nll / n,
            "ece": calibration_error(join_reliability(self.sums)),
            "brier": brier / n,
            "confidence": confidence / n,
            "gap": confidence / n - top1 / n,
        }
        if self.adaptive_bins:
            rows = torch.cat(self._sample_batches())
            home, key = (rows.cpu() if rows.device.type == "mps" else rows).unbind(1)
            claimed = torch.where(key < 0, torch.nan, (key >> 1).to(torch.float64) * 2.0**-60)
            errors = []
            for cell in range(self.num_cells):
                inside = home == cell
                bins = adaptive_bins(claimed[inside], (key & 1)[inside], self.adaptive_bins)
                errors.append(calibration_error(bins))
            result["adaptive_ece"] = torch.stack(errors)
        return result

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Combine processes, also those without samples."""
        if self.adaptive_bins:
            self.samples = self._sample_batches()
        super().sync(*args, **kwargs)

    def _sample_batches(self) -> list[Tensor]:
        """The rows as a list, which synchronizing replaces by one tensor; never empty."""
        if isinstance(self.samples, Tensor):
            return [self.samples]
        return self.samples or [torch.zeros(0, 2, dtype=torch.int64, device=self.device)]

    def reliability(self) -> Reliability:
        """Sums ``(num_cells, num_bins)`` over all processes; to be called on every one of them."""
        with self.sync_context():
            return join_reliability(self.sums)
