"""Negative log-likelihood as a torchmetrics class."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from chaosgate.metrics.checks import check_range, check_shapes
from chaosgate.metrics.exact_sum import PARTS, carry, join, sum_by_slot
from chaosgate.metrics.functional import classification_scores


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
