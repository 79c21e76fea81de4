r"""How strong is the noise? Conversions between the units in which one can say it.

- ``beta``, inverse temperature: the field has covariance :math:`(\beta Q)^{-1}` (eq. gff-law).
- ``epsilon``, mean energy: :math:`\beta = r / 2\varepsilon` with r the rank of Q (cor. green_forcing).
- ``gamma`` multiplies the field in the exponent (eq. exact_gate).
- ``tau``, :math:`\tau = \gamma^2 / \beta`, is all that the gate depends on (prop. effective_tau).
- ``log_std``, :math:`\sqrt{\tau\,\mathrm{mean}_x G(x, x)}`, root mean square of :math:`\gamma\psi` over the sites.

Only ``log_std`` means the same on two grids. Where the paper writes n, the rank stands here: they differ under a gauge
alone, where one direction is held fixed and carries no energy.
"""

import math

from chaosgate.field.arguments import Grid, non_negative, positive
from chaosgate.field.operator import Operator


def beta_from_epsilon(operator: Operator, grid: Grid, epsilon: float) -> float:
    r"""Inverse temperature of the law of mean energy ``epsilon``: :math:`\beta = r/2\varepsilon`."""
    return operator.rank(grid) / (2 * positive("epsilon", epsilon))


def epsilon_from_beta(operator: Operator, grid: Grid, beta: float) -> float:
    r"""Mean energy at inverse temperature ``beta``: :math:`\varepsilon = r/2\beta`."""
    return operator.rank(grid) / (2 * positive("beta", beta))


def tau_from_gamma(gamma: float, beta: float = 1.0) -> float:
    r""":math:`\tau = \gamma^2/\beta` (eq. effective_tau); the sign of gamma does not matter."""
    if not math.isfinite(gamma):
        raise ValueError(f"gamma must be finite; got {gamma}.")
    return gamma**2 / positive("beta", beta)


def gamma_from_tau(tau: float, beta: float = 1.0) -> float:
    r"""The non-negative :math:`\gamma = \sqrt{\beta\tau}`."""
    return math.sqrt(non_negative("tau", tau) * positive("beta", beta))


def log_std_from_tau(operator: Operator, grid: Grid, tau: float) -> float:
    r"""Root mean square over the sites of the log-gate: :math:`\sqrt{\tau\,\mathrm{mean}_x G(x, x)}`."""
    return math.sqrt(non_negative("tau", tau) * operator.mean_variance(grid))


def tau_from_log_std(operator: Operator, grid: Grid, log_std: float) -> float:
    r"""The :math:`\tau` at which the log-gate has root mean square ``log_std`` on this grid."""
    return non_negative("log_std", log_std) ** 2 / operator.mean_variance(grid)
