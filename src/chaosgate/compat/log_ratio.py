r"""Relative evidence of positive maps: how much stronger one site is than another, and what a gate does to that.

Under the sample-wise gate the deformation of a log-ratio is Gaussian, whatever the map (thm. samplewise_logratio):

.. math::
    \Delta_{xy} = \log\frac{\tilde h(x)}{\tilde h(y)} - \log\frac{h(x)}{h(y)}
    \sim \mathcal N\big(0, \tau R_G(x, y)\big)

so it keeps an ordering the more surely the larger its margin, while a mask keeps it with the same probability at any
margin (cor. ranking_stability, cor. dropout_margin_blind).

Everything about :math:`\log h` is a statement about positive maps (paper, sec. geometry_theory, "Positivity domain").
Maps behind a ReLU are non-negative: on their positive sites the statements hold as they are, and a lift
:math:`h + \varepsilon` makes whole maps positive. Signed maps are refused; lifting them would invent evidence.

Sites are numbered row by row; ``pairs`` are (m, 2) site numbers.
"""

import math

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
        return all_pairs(num_sites).to(noise.device)
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


def log_margin(h: Tensor, pairs: Tensor) -> Tensor:
    r""":math:`\delta_{xy} = |\log h(x) - \log h(y)|` of maps (..., H, W), shape (..., m) (eq. log_margin)."""
    return log_ratios(h, pairs).abs()


def ranking_probability(margin: Tensor, variance: Tensor, shift: Tensor | float = 0.0) -> Tensor:
    r"""Probability that a gate keeps an ordering: :math:`\Phi(\delta/\sqrt{\tau R_G})` (eq. ranking_stability_exact).

    Args:
        margin: Log-margins :math:`\delta > 0`.
        variance: :math:`\tau R_G(x, y) > 0`, of a shape that broadcasts with the margins.
        shift: Mean of the deformation in the direction of the ordering: zero for the sample-wise gate,
            :math:`-\tfrac{\gamma^2}2(v(x)-v(y))` for the Wick gate, whose correction differs between sites.
    """
    probability: Tensor = torch.special.ndtr((margin + shift) / variance.sqrt())
    return probability


def ranking_tail_bound(margin: Tensor, variance: Tensor) -> Tensor:
    r"""Bound :math:`\exp(-\delta^2/2\tau R_G)` on the chance of losing an ordering (eq. ranking_stability_tail)."""
    return torch.exp(-margin.square() / (2 * variance))


def dropout_ranking_probability(q: float) -> float:
    """The keep probability itself, whatever the margin (eq. dropout_margin_blind)."""
    return q


def ranking_preserved(before: Tensor, after: Tensor, pairs: Tensor) -> Tensor:
    """Whether the larger of two sites is strictly larger afterwards: boolean, shape (..., m).

    A tie afterwards is an ordering lost, as when a mask deletes both sites. A tie before has none to keep: never true.
    """
    return pair_differences(after, pairs).sign() * pair_differences(before, pairs).sign() > 0


def positive_share(h: Tensor) -> Tensor:
    """Share of sites with a positive value, per map: (..., H, W) to (...), float64."""
    return (h > 0).double().mean((-2, -1))


def is_signed(h: Tensor) -> bool:
    """Whether any value is negative or not a number."""
    return not bool((h >= 0).all())


def require_evidence(h: Tensor) -> None:
    """Raise unless every value is zero or positive."""
    if is_signed(h):
        share = float((h < 0).double().mean())
        raise ValueError(
            f"log-geometry is about non-negative maps, such as those behind a ReLU; {share:.1%} of these values are "
            "negative. Look at a stage behind a ReLU, or at intrinsic energy and coherence, which signed maps have too."
        )


def require_positive(h: Tensor) -> None:
    """Raise unless every value is positive."""
    require_evidence(h)
    if not bool((h > 0).all()):
        raise ValueError(
            f"the logarithm needs positive maps; {1 - float(positive_share(h).mean()):.1%} of these values are zero. "
            "Lift them first (chaosgate.compat.lift), or keep to pairs of positive sites."
        )


def lift(h: Tensor, epsilon: float = 0.01) -> Tensor:
    r""":math:`h + \varepsilon \bar h` with :math:`\bar h` the spatial mean of each map (..., H, W).

    Relative to the map, so that rescaling a map rescales its lift and log-ratios stay what they were. A map that is
    zero everywhere carries no evidence and stays zero.

    >>> import torch
    >>> lift(torch.tensor([[0.0, 2.0]]), 0.5)
    tensor([[0.5000, 2.5000]])
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"the lift epsilon must be positive and finite; got {epsilon}.")
    require_evidence(h)
    return h + epsilon * h.mean((-2, -1), keepdim=True)
