r"""Positive maps: where log-geometry is defined (paper, sec. geometry_theory, "Positivity domain").

Everything about :math:`\log h` is a statement about positive maps. Maps behind a ReLU are non-negative: on their
positive sites the statements hold as they are, and a lift :math:`h + \varepsilon` makes whole maps positive. Signed
maps are refused; lifting them would invent evidence.
"""

import math

from torch import Tensor


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
