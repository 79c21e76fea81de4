"""Injection operators: how a realised gate acts on features (paper sec. 4.1)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from chaosgate.gate.base import squared_norm, weighted_energy


class Injection(ABC):
    """What a mechanism needs of an injection operator; a configuration names a subclass."""

    @abstractmethod
    def __call__(self, h: Tensor, gate: Tensor) -> Tensor:
        r"""The perturbed features; ``h`` is (B, C, \*grid), ``gate`` (B, 1 or C, \*grid)."""

    @abstractmethod
    def energy(self, h: Tensor, site_energy: Tensor) -> Tensor:
        r""":math:`E\|\tilde h-h\|^2` per sample (B,), given the realisation's second moments as a map."""


@dataclass(frozen=True)
class Multiplicative(Injection):
    r""":math:`h(c,x)\,(1+\alpha(\nu(x)-1))`; :math:`\alpha=1` is the product (eq. mul_injection, residual_mul)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 < self.alpha <= 1:
            raise ValueError(
                f"alpha must be in (0, 1], the weight of the gate in the residual form; got {self.alpha!r}."
            )

    def __call__(self, h: Tensor, gate: Tensor) -> Tensor:
        """The product. The gate carries no gradient, so backward multiplies by it once and keeps nothing of ``h``."""
        if self.alpha != 1:
            gate = 1 + self.alpha * (gate - 1)
        return h * gate.to(h.dtype)

    def energy(self, h: Tensor, site_energy: Tensor) -> Tensor:
        r""":math:`\alpha^2\sum_x m(x)\|h(x)\|^2` with :math:`m(x)=E(\nu(x)-1)^2`."""
        return self.alpha**2 * weighted_energy(h, site_energy)


@dataclass(frozen=True)
class Additive(Injection):
    r""":math:`h+\mathrm{rms}(h)\,\eta(x)`, the root mean square taken per sample and held constant in backward.

    Relative to the features, because an absolute scale would mean another thing at every stage and every epoch.
    """

    def __call__(self, h: Tensor, gate: Tensor) -> Tensor:
        """The sum."""
        mean_square = h.detach().to(gate.dtype).square().flatten(1).mean(1).view(-1, *[1] * (h.ndim - 1))
        return h + (gate * mean_square.sqrt()).to(h.dtype)

    def energy(self, h: Tensor, site_energy: Tensor) -> Tensor:
        r""":math:`\|h\|^2` times the mean of :math:`E\eta(x)^2`."""
        power = squared_norm(h)
        return power * site_energy.to(power).mean()
