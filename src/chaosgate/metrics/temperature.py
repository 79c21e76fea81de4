r"""Temperature scaling, the one-parameter baseline for every claim about calibration.

Dividing the logits by :math:`T` does not change the predicted classes. With :math:`b = 1/T`, the
mean NLL

.. math:: f(b) = \frac1n\sum_i \Bigl(\log\sum_k e^{b z_{ik}} - b z_{i t_i}\Bigr), \qquad
          f'(b) = \frac1n\sum_i \bigl(\mathbb{E}_{p_b}[z_i] - z_{i t_i}\bigr), \qquad
          f''(b) = \frac1n\sum_i \mathrm{Var}_{p_b}(z_i) \ge 0

is convex, so :math:`f'` has one root, found by Newton steps inside a shrinking bracket.
"""

from collections.abc import Iterator
from math import inf, nan, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from chaosgate.metrics.functional import check_range, check_shapes, row_blocks, working_precision

_TOLERANCE = 1e-12  # of log T; the last Newton steps are quadratic


class TemperatureFit(NamedTuple):
    """A fitted temperature.

    Attributes:
        temperature: What the logits are divided by.
        nll_before: Mean NLL of the data for fitting, before scaling.
        nll_after: The same after scaling.
    """

    temperature: float
    nll_before: float
    nll_after: float


def fit_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature that minimizes the NLL of ``logits / temperature``; see
    :func:`temperature_scaling`.

    Fit it on validation logits ``(N, K)`` and targets ``(N,)``, never on the test set.

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> round(fit_temperature(logits, torch.tensor([0, 0, 0, 1])), 6)  # 75 % right: 4 / T = log 3
    3.640957
    """
    return temperature_scaling(logits, targets).temperature


def temperature_scaling(logits: Tensor, targets: Tensor) -> TemperatureFit:
    """Fit a temperature to ``logits (N, K)`` and ``targets (N,)``: deterministic, in float64, log T
    to 1e-10.

    Raises:
        ValueError: if a logit is not finite, or if there is no optimum: all samples are
            classified correctly (the NLL decreases as T goes to 0), or the true classes have no
            higher logits than the average class (it decreases as T grows).
    """
    check_shapes("logits", logits, targets=targets)
    check_range("target", targets, logits.shape[1])
    logits = logits.detach().cpu() if logits.device.type == "mps" else logits.detach()
    targets = targets.to(logits.device)
    if not len(logits):
        raise ValueError("no sample to fit a temperature on; give the logits of a validation set.")
    if not bool(logits.isfinite().all()):
        row = int((~logits.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"logits of sample {row} are not finite, so no temperature can be fitted.")
    at_target = logits.gather(1, targets[:, None]).squeeze(1)
    if float((logits.amax(1) - at_target).max()) <= 0:
        raise ValueError(
            f"all {len(logits)} samples are classified correctly, so the NLL falls without end as "
            "T goes to 0. Fit on data the network was not trained on, or on more of it."
        )
    if _moments(logits, targets, 0.0)[1] >= 0:
        raise ValueError(
            "the true classes have no higher logits than the average class, so no finite "
            "temperature is best. Check that logits and targets belong together."
        )
    inverse = _root(logits, targets)
    before, after = (_moments(logits, targets, b)[0] for b in (1.0, inverse))
    return TemperatureFit(1 / inverse, before, after)


class ScaledScores(NamedTuple):
    """Scores of scaled logits, and their derivatives by the logarithm of the temperature: (B,)."""

    confidence: Tensor
    nll: Tensor
    confidence_slope: Tensor
    nll_slope: Tensor


def scaled_scores(logits: Tensor, target: Tensor, temperature: float) -> ScaledScores:
    r"""Scores of ``logits / temperature`` against ``target (B,)``, with their derivatives.

    With :math:`b = 1/T`:
    :math:`\partial p_\text{top}/\partial\log T = -b\,p_\text{top}(z_\text{top} - E_p[z])` and
    :math:`\partial\,\text{NLL}/\partial\log T = -b\,(E_p[z] - z_t)`.
    """
    nll, slope, _, confidence, mean = _per_image(logits, target, 1 / temperature)
    return ScaledScores(confidence, nll, mean * confidence / temperature, -slope / temperature)


def fit_derivatives(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    r"""Contribution of each image to :math:`f'(b)` and to :math:`b\,f''(b)` at :math:`b = 1/T`:
    ``(N,)``.

    The ratio of their weighted sums is a Newton step of :math:`\log T`: the change of the fit
    if images are reweighted.
    """
    _, slope, curvature, _, _ = _per_image(logits, target, 1 / temperature)
    return slope, curvature / temperature


def _root(logits: Tensor, targets: Tensor) -> float:
    """The b with f'(b) = 0, given that f'(0) < 0 < f'(infinity)."""
    low, high, inverse = 0.0, inf, 1.0
    while True:
        _, slope, curvature = _moments(logits, targets, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        proposal = inverse - slope / curvature if curvature > 0 else nan
        if not low <= proposal <= high:  # widen an open bracket, halve another on a log scale
            closed = 0 < low and high < inf
            proposal = sqrt(low * high) if closed else inverse * (8.0 if slope < 0 else 0.125)
        if abs(proposal - inverse) <= _TOLERANCE * inverse:
            return proposal
        inverse = proposal


def _moments(logits: Tensor, targets: Tensor, inverse: float) -> tuple[float, float, float]:
    """The mean NLL and its first two derivatives in the inverse temperature."""
    blocks = _blocks(logits, targets, inverse)
    total = sum(torch.stack(block[:3]).sum(1) for block in blocks) / len(logits)
    nll, slope, curvature = torch.as_tensor(total).tolist()
    return nll, slope, curvature


def _per_image(logits: Tensor, targets: Tensor, inverse: float) -> tuple[Tensor, ...]:
    blocks = _blocks(logits, targets, inverse)
    return tuple(torch.cat(column) for column in zip(*blocks, strict=True))


def _blocks(logits: Tensor, targets: Tensor, inverse: float) -> Iterator[tuple[Tensor, ...]]:
    """NLL, its first two derivatives by the inverse temperature, confidence, and mean logit less
    the largest; a block of rows at a time.
    """
    for rows in row_blocks(logits):
        z = working_precision(logits[rows])
        z = z - z.amax(1, keepdim=True)
        at_target = z.gather(1, targets[rows, None]).squeeze(1)
        weights = (inverse * z).exp_()
        norm = weights.sum(1)
        mean = torch.linalg.vecdot(weights, z) / norm
        variance = torch.linalg.vecdot(weights, (z - mean[:, None]).square_()) / norm
        yield norm.log() - inverse * at_target, mean - at_target, variance, 1 / norm, mean
