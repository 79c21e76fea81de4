r"""Whether the stronger site stays the stronger one (cor. ranking_stability, cor. dropout_margin_blind).

A smooth positive gate keeps an ordering the more surely the larger its margin; a mask keeps it with the same
probability, whatever the margin.
"""

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import log_ratios, pair_differences


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
