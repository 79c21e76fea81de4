r"""From the log-field :math:`\psi` to the gate :math:`\xi`, and from the gate to the features.

Realization maps (paper sec. 5.4, app. C and G) are functions; small classes add a strength for use
in a :class:`~chaosgate.gate.Mechanism`. Injection operators (sec. 4.1) apply a gate to features.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chaosgate.gate.base import squared_norm, weighted_energy


def wick(psi: Tensor, variance: Tensor, gamma: float | Tensor) -> Tensor:
    r"""Wick exponential :math:`\exp(\gamma\psi-\tfrac{\gamma^2}{2}v)`; mean one at every site (eq.
    exact_gate).
    """
    return torch.exp(gamma * psi - 0.5 * gamma**2 * variance)


def samplewise(psi: Tensor, gamma: float | Tensor, axes: int = 2) -> Tensor:
    r""":math:`e^{\gamma\psi}` divided by its spatial mean; mean one in every sample (eq.
    samplewise_gate).

    That is :math:`|U|` times a softmax over the sites, which cannot overflow. ``psi`` is (...,
    \*grid); the grid is the last ``axes`` dimensions.
    """
    unit = isinstance(gamma, float) and gamma == 1  # log_std 1: nothing to multiply by
    sites = psi if unit else gamma * psi
    if axes != 1:
        return samplewise(sites.flatten(-axes), 1.0, 1).view_as(psi)
    return torch.softmax(sites, dim=-1) * sites.shape[-1]


def signed(psi: Tensor, sigma: float | Tensor) -> Tensor:
    r""":math:`1+\sigma\psi`: mean one and correlated like the log-field, but not positive; the
    first-order proxy of the Wick gate (eq. small_gamma_expansion) and a control for positivity.
    """
    return 1 + sigma * psi


def small_gamma_expansion(psi: Tensor, variance: Tensor, gamma: float) -> Tensor:
    r""":math:`1+\gamma\psi+\tfrac{\gamma^2}{2}(\psi^2-v)`, the Wick gate up to
    :math:`O_{L^2}(\gamma^3)` (eq. small_gamma_expansion).
    """
    return 1 + gamma * psi + 0.5 * gamma**2 * (psi.square() - variance)


def wick_moment(covariance: Tensor, sites: Sequence[int], gamma: float) -> Tensor:
    r""":math:`E\prod_r\xi(x_r)=\exp(\gamma^2\sum_{a<b}C(x_a,x_b))` (eq. all_moments_gate); sites
    may repeat.
    """
    chosen = covariance[list(sites)][:, list(sites)]
    return torch.exp(gamma**2 * torch.triu(chosen, diagonal=1).sum())


def gate_kernel(covariance: Tensor, gamma: float) -> Tensor:
    r"""Second-order kernel of the Wick gate, :math:`K_\gamma=\exp(\gamma^2C)` entrywise (eq.
    induced_gate_kernel).
    """
    return torch.exp(gamma**2 * covariance)


class Realization(ABC):
    """Base class of realization maps."""

    degenerate_on_one_site: ClassVar[bool] = False
    """Whether the gate is constant on a grid of one site."""

    needs_exponential_moment: ClassVar[bool] = False
    r"""Whether the map needs a law for which :math:`E e^{\gamma\psi}` is finite."""

    rows: ClassVar[bool] = False
    """Whether fields may be given flat, (B, n), with variances (n,), which needs fewer views.
    """

    @abstractmethod
    def __call__(self, psi: Tensor, variance: Tensor, factor: Tensor | None = None) -> Tensor:
        r"""The gate for fields (B, C, \*grid) whose site variances are a map (\*grid); ``factor``
        scales the strength.
        """

    def site_energy(self, variance: Tensor, factor: Tensor | None = None) -> Tensor | None:
        r""":math:`E(\nu(x)-1)^2` as a map if there is a closed form, else None."""
        return None


def _scaled(strength: float, factor: Tensor | None) -> float | Tensor:
    return strength if factor is None else strength * factor


@dataclass(frozen=True)
class Wick(Realization):
    """:func:`wick` at one strength."""

    gamma: float
    rows = True
    needs_exponential_moment = True

    def __call__(self, psi: Tensor, variance: Tensor, factor: Tensor | None = None) -> Tensor:
        return wick(psi, variance, _scaled(self.gamma, factor))

    def site_energy(self, variance: Tensor, factor: Tensor | None = None) -> Tensor:
        r""":math:`e^{\gamma^2v(x)}-1`, the variance of a log-normal with mean one."""
        return torch.expm1(_scaled(self.gamma, factor) ** 2 * variance)


@dataclass(frozen=True)
class SampleWise(Realization):
    """:func:`samplewise` at one strength.

    Its energy has no closed form: the spatial mean in the denominator couples all sites.
    """

    gamma: float
    rows = True
    degenerate_on_one_site = True

    def __call__(self, psi: Tensor, variance: Tensor, factor: Tensor | None = None) -> Tensor:
        return samplewise(psi, _scaled(self.gamma, factor), variance.ndim)


@dataclass(frozen=True)
class Signed(Realization):
    """:func:`signed` at one strength."""

    sigma: float
    rows = True

    def __call__(self, psi: Tensor, variance: Tensor, factor: Tensor | None = None) -> Tensor:
        return signed(psi, _scaled(self.sigma, factor))

    def site_energy(self, variance: Tensor, factor: Tensor | None = None) -> Tensor:
        r""":math:`\sigma^2v(x)`."""
        return _scaled(self.sigma, factor) ** 2 * variance


@dataclass(frozen=True)
class Plain(Signed):
    r""":math:`\sigma\psi` itself, for the additive injection; energies are relative to the mean
    square of the features.
    """

    def __call__(self, psi: Tensor, variance: Tensor, factor: Tensor | None = None) -> Tensor:
        return _scaled(self.sigma, factor) * psi


# -- injection ---------------------------------------------------------------------------


class Injection(ABC):
    """Base class of injection operators."""

    @abstractmethod
    def __call__(self, h: Tensor, gate: Tensor) -> Tensor:
        r"""The perturbed features; ``h`` is (B, C, \*grid), ``gate`` (B, 1 or C, \*grid)."""

    @abstractmethod
    def energy(self, h: Tensor, site_energy: Tensor) -> Tensor:
        r""":math:`E\|\tilde h-h\|^2` per sample (B,), given the realization's second moments as a
        map.
        """


@dataclass(frozen=True)
class Multiplicative(Injection):
    r""":math:`h(c,x)\,(1+\alpha(\nu(x)-1))`; :math:`\alpha=1` is the product (eq. mul_injection,
    residual_mul).
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha, the gate's weight, must be in (0, 1]; got {self.alpha!r}.")

    def __call__(self, h: Tensor, gate: Tensor) -> Tensor:
        """The product. The gate has no gradient, so ``h`` is not saved for the backward pass."""
        if self.alpha != 1:
            gate = 1 + self.alpha * (gate - 1)
        return h * gate.to(h.dtype)

    def energy(self, h: Tensor, site_energy: Tensor) -> Tensor:
        r""":math:`\alpha^2\sum_x m(x)\|h(x)\|^2` with :math:`m(x)=E(\nu(x)-1)^2`."""
        return self.alpha**2 * weighted_energy(h, site_energy)


@dataclass(frozen=True)
class Additive(Injection):
    r""":math:`h+\mathrm{rms}(h)\,\eta(x)`, with the root mean square of each sample.

    The root mean square has no gradient. An absolute scale would have a different effect at every
    stage and epoch.
    """

    def __call__(self, h: Tensor, gate: Tensor) -> Tensor:
        mean_square = h.detach().to(gate.dtype).square().flatten(1).mean(1)
        rms = mean_square.sqrt().view(-1, *[1] * (h.ndim - 1))
        return h + (gate * rms).to(h.dtype)

    def energy(self, h: Tensor, site_energy: Tensor) -> Tensor:
        r""":math:`\|h\|^2` times the mean of :math:`E\eta(x)^2`."""
        power = squared_norm(h)
        return power * site_energy.to(power).mean()
