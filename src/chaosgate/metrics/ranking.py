r"""Ranking by confidence: risk against coverage, and the area under the ROC curve.

A network that may abstain answers the :math:`j` images of largest confidence: coverage :math:`j/n`,
risk :math:`r_j`, the share of errors among them. The area under the risk-coverage curve (Geifman
and El-Yaniv, 2017) is

.. math:: \text{AURC} = \frac1n\sum_{j=1}^n r_j .

Confidence should also be smaller for images that belong to none of the classes. The AUROC is the
probability that an image of the test set has a larger confidence than one from elsewhere; ties
count half.
"""

import torch
from torch import Tensor

from chaosgate.metrics.functional import mean_of_ties, working_precision


def risk_coverage(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage and risk, each ``(N,)`` in float64, of ``confidence (N,)`` and ``correct (N,)`` in
    {0, 1}.

    Images of equal confidence get the mean error of their tie, the expectation over all orders, so
    the curve does not depend on the order of images.

    >>> risk_coverage(torch.tensor([0.9, 0.6, 0.8]), torch.tensor([1, 0, 1]))[1]
    tensor([0.0000, 0.0000, 0.3333], dtype=torch.float64)
    """
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise ValueError(
            "one number per image is needed, (N,); found confidence "
            f"{tuple(confidence.shape)}, correct {tuple(correct.shape)}."
        )
    order = working_precision(confidence).sort(descending=True)
    value, error = order.values, 1 - correct.to(order.values)[order.indices]
    error = mean_of_ties(value, error)
    number = torch.arange(1, len(error) + 1, dtype=error.dtype, device=error.device)
    return number / max(1, len(error)), error.cumsum(0) / number


def area_under_risk_coverage(confidence: Tensor, correct: Tensor) -> Tensor:
    """The mean risk over all coverages, a float64 scalar; lower is better, nan without samples.

    >>> area_under_risk_coverage(torch.tensor([0.9, 0.6, 0.8]), torch.tensor([1, 0, 1]))
    tensor(0.1111, dtype=torch.float64)
    """
    return risk_coverage(confidence, correct)[1].mean()


def area_under_roc(inside: Tensor, outside: Tensor) -> Tensor:
    """Probability that a score of ``inside (N,)`` is larger than one of ``outside (M,)``; equal
    ones count half.

    A float64 scalar; nan where either is empty or has a nan.

    >>> area_under_roc(torch.tensor([0.9, 0.8, 0.5]), torch.tensor([0.5, 0.2]))
    tensor(0.9167, dtype=torch.float64)
    """
    high, low = working_precision(inside), working_precision(outside).sort().values
    if not len(high) or not len(low) or bool(high.isnan().any()) or bool(low.isnan().any()):
        return high.new_tensor(torch.nan)
    below, up_to = (torch.searchsorted(low, high, right=right) for right in (False, True))
    return (below + up_to).to(high).mean() / (2 * len(low))
