"""Additive Gaussian baselines, and gates matched in energy to another gate."""

from typing import Literal

import torch
from torch import Tensor

from chaosgate.field.grids import DirichletLaplacian, Identity
from chaosgate.field.law import MaxEntLaw
from chaosgate.field.operator import Grid, Operator, positive
from chaosgate.gate.base import Gate, field_dtype, grid_of, squared_norm, weighted_energy
from chaosgate.gate.mechanism import Mechanism
from chaosgate.gate.realization import Additive, Multiplicative, Plain, Signed, Wick

Channels = Literal["shared", "independent"]


class UnitVarianceMechanism(Mechanism):
    r"""A mechanism whose field has mean site variance one, with a fixed or a matched strength.

    With ``match`` the strength is chosen per sample so that the expected injected energy
    :math:`E\|\tilde h-h\|^2` equals that of the given gate on the same features. No gradient flows
    through this choice.

    Args:
        realization: Class of the realization map; additive for ``Plain``, else multiplicative.
        strength: The strength, or None.
        match: The gate to match, or None. Give exactly one of the two.
        channels: One field for all channels of a sample, or one each.
        seed: Seed when used as a layer; see :class:`Gate`.
        operator: Sets the correlation; None is the Dirichlet Laplacian.
    """

    def __init__(
        self,
        realization: type[Plain | Signed | Wick],
        strength: float | None,
        match: Gate | None,
        channels: Channels,
        seed: int | None,
        operator: Operator | None = None,
    ) -> None:
        name = "log_std" if realization is Wick else "sigma"
        if (strength is None) == (match is None):
            raise ValueError(
                f"{type(self).__name__} needs exactly one of {name} and match; got "
                f"{name}={strength!r}, match={match!r}."
            )
        bound = positive(name, 1.0 if strength is None else strength)
        operator = operator or DirichletLaplacian()
        super().__init__(
            lambda grid: MaxEntLaw(operator, grid, beta=operator.mean_variance(grid)),
            realization(bound),
            Additive() if realization is Plain else Multiplicative(),
            channels,
            seed=seed,
        )
        self.operator = operator
        self.match = match

    def strength_for(self, h: Tensor) -> Tensor | None:
        """The schedule's factor; for a matched gate the strength of each sample, (B, 1, ..., 1).

        The matched gate follows the same schedule, so both inject the same energy at every step.
        """
        if self.match is None:
            return self.factor
        target = self.expected_energy(h).to(field_dtype(h))
        power = squared_norm(h).clamp_min(torch.finfo(torch.float32).tiny)
        squared = target / power
        if isinstance(self.realization, Wick):  # white field, variance one at every site
            squared = torch.log1p(squared)
        elif not isinstance(self.realization, Plain):
            variance = self.field_on(grid_of(h)).variance(target.dtype, h.device)
            squared = target / weighted_energy(h, variance).clamp_min(1e-30)
        return squared.sqrt().view(-1, *[1] * (h.ndim - 1))

    def expected_energy(self, h: Tensor) -> Tensor:
        """Expected injected energy per sample (B,)."""
        if self.match is None:
            return super().expected_energy(h)
        self.match.factor = self.factor
        return self.match.expected_energy(h)

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The strength if it is fixed; a matched gate has one per sample."""
        return {} if self.match is not None else super().nominal(grid)

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Fill the caches of this gate and of the matched one."""
        super().prepare(grid, device, dtype)
        if self.match is not None:
            self.match.prepare(grid, device, dtype)
            self.match.expected_energy(torch.zeros(1, 1, *grid, device=device, dtype=dtype))

    def extra_repr(self) -> str:
        strength = "matched" if self.match is not None else f"{self.realization}"
        return f"{strength}, operator={self.operator}, {self.injection}, channels={self.channels!r}"


class IIDGaussian(UnitVarianceMechanism):
    r"""Additive independent noise :math:`h+\sigma\,\mathrm{rms}(h)\,\eta`, :math:`\eta\sim\mathcal
    N(0,1)`.

    Args:
        sigma: Strength relative to the root mean square of the sample's features.
        match: Inject the expected energy of this gate instead.
        channels: Independent noise for every channel (``"independent"``), or one map for all
            (``"shared"``).
        seed: Seed when used as a layer; see :class:`Gate`.
    """

    def __init__(
        self,
        sigma: float | None = None,
        match: Gate | None = None,
        channels: Channels = "independent",
        seed: int | None = None,
    ) -> None:
        super().__init__(Plain, sigma, match, channels, seed, Identity())


class CorrelatedGaussian(UnitVarianceMechanism):
    r"""Additive noise with the correlation of the log-field,
    :math:`h+\sigma\,\mathrm{rms}(h)\,\psi`.

    The field is scaled to mean site variance one, so ``sigma`` has the same meaning as for
    :class:`IIDGaussian`.

    Args:
        sigma: Strength relative to the root mean square of the sample's features.
        operator: Sets the correlation; None is the Dirichlet Laplacian.
        match: Inject the expected energy of this gate instead.
        channels: One field for all channels of a sample (``"shared"``), or one each
            (``"independent"``).
        seed: Seed when used as a layer; see :class:`Gate`.
    """

    def __init__(
        self,
        sigma: float | None = None,
        operator: Operator | None = None,
        match: Gate | None = None,
        channels: Channels = "shared",
        seed: int | None = None,
    ) -> None:
        super().__init__(Plain, sigma, match, channels, seed, operator)


class IIDLogNormal(UnitVarianceMechanism):
    r"""Control: positivity without correlation, :math:`h\,e^{s z-s^2/2}` with independent :math:`z`
    per site.

    Args:
        log_std: Standard deviation :math:`s` of the log-gate.
        match: Inject the expected energy of this gate instead.
        channels: One gate for all channels of a sample (``"shared"``), or one each
            (``"independent"``).
        seed: Seed when used as a layer; see :class:`Gate`.
    """

    def __init__(
        self,
        log_std: float | None = None,
        match: Gate | None = None,
        channels: Channels = "shared",
        seed: int | None = None,
    ) -> None:
        super().__init__(Wick, log_std, match, channels, seed, Identity())


class SignedCorrelated(UnitVarianceMechanism):
    r"""Control: correlation without positivity, the multiplicative gate :math:`1+\sigma\psi`.

    Args:
        sigma: Standard deviation of the gate, averaged over the sites.
        operator: Sets the correlation; None is the Dirichlet Laplacian.
        match: Inject the expected energy of this gate instead.
        channels: One gate for all channels of a sample (``"shared"``), or one each
            (``"independent"``).
        seed: Seed when used as a layer; see :class:`Gate`.
    """

    def __init__(
        self,
        sigma: float | None = None,
        operator: Operator | None = None,
        match: Gate | None = None,
        channels: Channels = "shared",
        seed: int | None = None,
    ) -> None:
        super().__init__(Signed, sigma, match, channels, seed, operator)
