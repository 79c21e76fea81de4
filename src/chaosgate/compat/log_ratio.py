r"""Pairwise log-ratios: how much stronger one site is than another, and what a gate does to that.

Under the sample-wise gate the deformation of a log-ratio is Gaussian, whatever the map (thm. samplewise_logratio):

.. math::
    \Delta_{xy} = \log\frac{\tilde h(x)}{\tilde h(y)} - \log\frac{h(x)}{h(y)}
    \sim \mathcal N\big(0, \tau R_G(x, y)\big)

Sites are numbered row by row; ``pairs`` are (m, 2) site numbers.
"""

import torch
from torch import Tensor

from chaosgate.field.white import Noise


def all_pairs(num_sites: int) -> Tensor:
    """Every unordered pair of different sites once, shape (n (n - 1) / 2, 2)."""
    return torch.combinations(torch.arange(num_sites), 2)


def random_pairs(num_sites: int, count: int, noise: Noise) -> Tensor:
    """``count`` pairs of different sites, uniform and independent, shape (count, 2); all pairs if there are no more."""
    if num_sites < 2:
        raise ValueError(f"a pair needs two sites; the grid has {num_sites}.")
    if count >= num_sites * (num_sites - 1) // 2:
        return all_pairs(num_sites).to(noise.key.device)
    uniform = noise.uniform((2, count), torch.float64)
    first = (uniform[0] * num_sites).long()
    step = 1 + (uniform[1] * (num_sites - 1)).long()
    return torch.stack([first, (first + step) % num_sites], 1)


def log_ratios(h: Tensor, pairs: Tensor) -> Tensor:
    r""":math:`\log h(x) - \log h(y)` of maps (..., H, W), shape (..., m).

    A zero at one site gives plus or minus infinity, at both sites (or a negative value anywhere) not a number.
    """
    return pair_differences(h.log(), pairs)


def pair_differences(field: Tensor, pairs: Tensor) -> Tensor:
    r""":math:`f(x) - f(y)` of fields (..., H, W), shape (..., m)."""
    flat = field.flatten(-2)
    return flat[..., pairs[:, 0]] - flat[..., pairs[:, 1]]


def log_ratio_deformation(before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
    r"""Measured :math:`\Delta_{xy}` (eq. samplewise_logratio), shape (..., m); not finite where a mask deleted a site.

    Args:
        before: Positive maps (..., H, W), or maps that are positive at the sites of interest.
        after: The same maps behind a gate.
        pairs: Site numbers (m, 2).
    """
    return log_ratios(after, pairs) - log_ratios(before, pairs)


def positive_pairs(h: Tensor, pairs: Tensor) -> Tensor:
    """Whether both sites of a pair are positive, for maps (..., H, W): boolean, shape (..., m)."""
    positive = (h > 0).flatten(-2)
    return positive[..., pairs[:, 0]] & positive[..., pairs[:, 1]]


def green_metric(green: Tensor, pairs: Tensor) -> Tensor:
    r""":math:`R_G(x, y) = G(x, x) + G(y, y) - 2 G(x, y) \ge 0` of a kernel (n, n), shape (m,) (eq. green_metric)."""
    first, second = pairs.T
    diagonal = green.diagonal()
    return diagonal[first] + diagonal[second] - 2 * green[first, second]


def log_ratio_variance(green: Tensor, pairs: Tensor, tau: float) -> Tensor:
    r"""Predicted :math:`\mathrm{Var}(\Delta_{xy}) = \tau R_G(x, y)`, shape (m,) (eq. samplewise_logratio_var)."""
    return tau * green_metric(green, pairs)


def log_ratio_covariance(green: Tensor, pairs: Tensor, tau: float) -> Tensor:
    r"""Joint covariance of the deformations of m pairs, shape (m, m).

    .. math:: \mathrm{Cov}(\Delta_{xy}, \Delta_{uv}) = \tau\,\big(G(x,u) - G(x,v) - G(y,u) + G(y,v)\big)
    """
    rows = green[pairs[:, 0]] - green[pairs[:, 1]]
    return tau * (rows[:, pairs[:, 0]] - rows[:, pairs[:, 1]])
