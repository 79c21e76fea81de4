r"""Realisation maps: from the log-field :math:`\psi` to the gate :math:`\xi` (paper sec. 5.4, app. C and G).

Functions first; the small classes bind a strength so that a :class:`~chaosgate.gate.Mechanism` can hold one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


def wick(psi: Tensor, variance: Tensor, gamma: float | Tensor) -> Tensor:
    r"""Wick exponential :math:`\exp(\gamma\psi-\tfrac{\gamma^2}{2}v)`; mean one at every site (eq. exact_gate)."""
    return torch.exp(gamma * psi - 0.5 * gamma**2 * variance)


def samplewise(psi: Tensor, gamma: float | Tensor, axes: int = 2) -> Tensor:
    r""":math:`e^{\gamma\psi}` divided by its spatial mean; mean one in every sample (eq. samplewise_gate).

    That is :math:`|U|` times a softmax over the sites, which cannot overflow. ``psi`` is (..., \*grid); the grid is the
    last ``axes`` dimensions.
    """
    sites = (gamma * psi).flatten(-axes)
    return (torch.softmax(sites, dim=-1) * sites.shape[-1]).view_as(psi)


def signed(psi: Tensor, sigma: float | Tensor) -> Tensor:
    r""":math:`1+\sigma\psi`: mean one and correlated like the log-field, but not positive; the first-order proxy of the
    Wick gate (eq. small_gamma_expansion) and a control for positivity.
    """
    return 1 + sigma * psi


def small_gamma_expansion(psi: Tensor, variance: Tensor, gamma: float) -> Tensor:
    r""":math:`1+\gamma\psi+\tfrac{\gamma^2}{2}(\psi^2-v)`, the Wick gate up to :math:`O_{L^2}(\gamma^3)`
    (eq. small_gamma_expansion).
    """
    return 1 + gamma * psi + 0.5 * gamma**2 * (psi.square() - variance)


def wick_moment(covariance: Tensor, sites: Sequence[int], gamma: float) -> Tensor:
    r""":math:`E\prod_r\xi(x_r)=\exp(\gamma^2\sum_{a<b}C(x_a,x_b))` (eq. all_moments_gate); sites may repeat."""
    chosen = covariance[list(sites)][:, list(sites)]
    return torch.exp(gamma**2 * torch.triu(chosen, diagonal=1).sum())


def gate_kernel(covariance: Tensor, gamma: float) -> Tensor:
    r"""Second-order kernel of the Wick gate, :math:`K_\gamma=\exp(\gamma^2C)` entrywise (eq. induced_gate_kernel)."""
    return torch.exp(gamma**2 * covariance)


class Realization(ABC):
    """What a mechanism needs of a realisation map; a configuration names a subclass."""

    degenerate_on_one_site: ClassVar[bool] = False
    """Whether nothing happens on a grid of one site."""

    needs_exponential_moment: ClassVar[bool] = False
    r"""Whether the map exists only for laws under which :math:`E e^{\gamma\psi}` is finite."""

    @property
    def strength(self) -> float:
        """Factor on the field, by which too strong a gate is recognised; zero if a map of one's own has none."""
        return abs(float(getattr(self, "gamma", getattr(self, "sigma", 0.0))))

    @abstractmethod
    def __call__(self, psi: Tensor, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        r"""The gate for fields (B, C, \*grid) whose site variances are a map (\*grid); ``dial`` scales the strength."""

    @abstractmethod
    def site_energy(self, variance: Tensor, dial: Tensor | None = None) -> Tensor | None:
        r""":math:`E(\nu(x)-1)^2` as a map where there is a closed form, else None."""


def _dialled(strength: float, dial: Tensor | None) -> float | Tensor:
    return strength if dial is None else strength * dial


@dataclass(frozen=True)
class Wick(Realization):
    """:func:`wick` at one strength."""

    gamma: float
    needs_exponential_moment: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_finite("gamma", self.gamma)

    def __call__(self, psi: Tensor, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        """The gate of a field."""
        return wick(psi, variance, _dialled(self.gamma, dial))

    def site_energy(self, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        r""":math:`e^{\gamma^2v(x)}-1`, the variance of a log-normal with mean one."""
        return torch.expm1(_dialled(self.gamma, dial) ** 2 * variance)


@dataclass(frozen=True)
class SampleWise(Realization):
    """:func:`samplewise` at one strength."""

    gamma: float
    degenerate_on_one_site: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_finite("gamma", self.gamma)

    def __call__(self, psi: Tensor, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        """The gate of a field; the variance map is not needed."""
        return samplewise(psi, _dialled(self.gamma, dial), variance.ndim)

    def site_energy(self, variance: Tensor, dial: Tensor | None = None) -> None:
        """No closed form: the spatial mean in the denominator couples all sites."""


@dataclass(frozen=True)
class Signed(Realization):
    """:func:`signed` at one strength."""

    sigma: float

    def __post_init__(self) -> None:
        _require_finite("sigma", self.sigma)

    def __call__(self, psi: Tensor, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        """The gate of a field; the variance map is not needed."""
        return signed(psi, _dialled(self.sigma, dial))

    def site_energy(self, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        r""":math:`\sigma^2v(x)`."""
        return _dialled(self.sigma, dial) ** 2 * variance


@dataclass(frozen=True)
class Plain(Realization):
    r""":math:`\sigma\psi` itself, for the additive injection."""

    sigma: float

    def __post_init__(self) -> None:
        _require_finite("sigma", self.sigma)

    def __call__(self, psi: Tensor, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        """The scaled field."""
        return _dialled(self.sigma, dial) * psi

    def site_energy(self, variance: Tensor, dial: Tensor | None = None) -> Tensor:
        r""":math:`\sigma^2v(x)`, in units of the feature's mean square."""
        return _dialled(self.sigma, dial) ** 2 * variance


def _require_finite(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}.")
