"""Calibration errors as torchmetrics classes."""

from typing import Any, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from chaosgate.metrics.checks import check_num_bins, check_probabilities, check_range, check_shapes
from chaosgate.metrics.functional import (
    Norm,
    Reliability,
    adaptive_calibration_error,
    bin_edges,
    bin_index,
    calibration_error,
    top_class,
)
from chaosgate.metrics.sums import PARTS, KeptSamples, carry, join, sum_by_slot, working_precision


def _top_class(probs: Tensor, target: Tensor, validate: bool) -> tuple[Tensor, Tensor]:
    check_shapes("probs", probs, target=target)
    if validate:
        check_probabilities(probs)
        check_range("target", target, probs.shape[1])
    return top_class(probs)


class CalibrationError(Metric):
    r"""Expected calibration error over bins of equal width: how far confidence is from accuracy.

    .. math:: \text{ECE} = \sum_m \frac{n_m}{n}\,\bigl|\overline{\text{confidence}}_m - \text{accuracy}_m\bigr|

    Bin :math:`m` of :math:`M` is :math:`(\tfrac{m-1}{M}, \tfrac{m}{M}]`, the first one contains 0, and confidence 1 is
    in the last one. The state is three sums per bin, the same for every batch size and number of processes.

    Args:
        num_bins: number of bins :math:`M`; the paper uses 15.
        norm: ``"l1"`` for the ECE, ``"l2"`` for its root mean square, ``"max"`` for the largest gap of a bin.
        validate_args: check that each row is a probability distribution and targets are in range. Costs a device
            synchronisation per batch; without it a nan in a row makes the result nan.
        kwargs: passed on to :class:`torchmetrics.Metric`.

    >>> metric = CalibrationError(num_bins=5)
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.4000, dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    sums: Tensor

    def __init__(
        self, num_bins: int = 15, norm: Norm = "l1", validate_args: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_num_bins(num_bins)
        if norm not in get_args(Norm):
            raise ValueError(
                f"no calibration norm {norm!r}; there are 'l1' (the ECE), 'l2' and 'max'."
            )
        self.num_bins = num_bins
        self.norm: Norm = norm
        self.validate_args = validate_args
        self.add_state(
            "sums", torch.zeros(num_bins, 3, PARTS, dtype=torch.int64), dist_reduce_fx="sum"
        )

    def update(self, probs: Tensor, target: Tensor) -> None:
        """Count a batch of probabilities ``(B, K)``, not logits, and true classes ``(B,)``."""
        confidence, predicted = _top_class(probs, target, self.validate_args)
        value = working_precision(confidence)
        columns = torch.stack(
            (torch.ones_like(value), value, (predicted == target).to(value)), dim=1
        )
        batch = sum_by_slot(columns, bin_index(confidence, self.num_bins), self.num_bins)
        self.sums = carry(self.sums + batch)

    def compute(self) -> Tensor:
        """The calibration error, a float64 scalar; nan without samples."""
        return calibration_error(self._reliability(), self.norm)

    def reliability(self) -> Reliability:
        """Sums per bin, each ``(num_bins,)``, over all processes: call it on every one of them."""
        with self.sync_context():
            return self._reliability()

    def _reliability(self) -> Reliability:
        count, confidence, correct = join(self.sums).unbind(-1)
        return Reliability(
            count, confidence, correct, bin_edges(self.num_bins, device=count.device)
        )


class AdaptiveCalibrationError(KeptSamples):
    """Expected calibration error over bins of equal mass, as :func:`~chaosgate.metrics.adaptive_bins` makes them.

    The borders depend on all samples, so each is kept (16 bytes); in return the result is exact, and the same for
    every batch size, order and number of processes.

    Args:
        num_bins: number of bins.
        validate_args: as in :class:`CalibrationError`.
        kwargs: passed on to :class:`torchmetrics.Metric`.

    >>> metric = AdaptiveCalibrationError(num_bins=1)
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.3000, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(self, num_bins: int = 15, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_num_bins(num_bins)
        self.num_bins = num_bins
        self.validate_args = validate_args
        self.keep_samples()

    def update(self, probs: Tensor, target: Tensor) -> None:
        """Keep a batch of probabilities ``(B, K)``, not logits, and true classes ``(B,)``."""
        confidence, predicted = _top_class(probs, target, self.validate_args)
        self.append(confidence, predicted == target, torch.zeros_like(target))

    def compute(self) -> Tensor:
        """The calibration error, a float64 scalar; nan without samples."""
        confidence, correct, _ = self.kept()
        return adaptive_calibration_error(confidence, correct, self.num_bins)
