"""The paper's noise mechanism: a law, a realization map and an injection operator (sec. 3).

The law is sampled on the grid of the features, or on a coarser one and resized.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from chaosgate.field.law import Law
from chaosgate.field.operator import Grid, as_grid, grid_text
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate.base import Gate, field_dtype, grid_of, one_of
from chaosgate.gate.realization import Injection, Multiplicative, Realization

_RESIZE = {1: "linear", 2: "bilinear", 3: "trilinear"}
_SITES = 1 << 22
"""Field sites drawn for one estimate: about a second on one core, half a per cent at log_std 1."""


class DeployedField:
    r"""Log-fields on a feature grid, drawn from a law on the same or on another grid.

    When the grids differ, the *log-field* is resized (linearly along each axis, a linear map
    :math:`R`), so it stays in its family, with covariance :math:`RCR^\top`; its variance map is
    computed exactly from that (paper app. G.3).

    Args:
        law: The law of the field that is sampled.
        grid: The grid of the features.
    """

    def __init__(self, law: Law, grid: Grid) -> None:
        self.law, self.grid = law, grid
        self._variance: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._exact_variance = law.variance
        if law.grid != grid:
            basis = torch.eye(law.n, dtype=torch.float64).view(law.n, *law.grid)
            self._exact_variance = self._resized(law.color(basis)[:, None]).square().sum((0, 1))
        self.mean_variance = float(self._exact_variance.mean())
        operator: Any = law.operator
        self.graph = operator if hasattr(operator, "color_by_features") else None
        """The operator, if it follows the features of each sample."""
        if self.graph is not None:
            self.graph.check_law(law, grid)

    def variance(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Site variances, a map."""
        at = (device, dtype)
        if at not in self._variance:
            self._variance[at] = self._exact_variance.to(device=device, dtype=dtype)
        return self._variance[at]

    def rows(
        self, noise: Noise, h: Tensor, channels: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Fields for features with their sites in a row, (B channels, n), and their variances."""
        if self.graph is not None:
            white = noise.normal((len(h) * channels, self.law.n), dtype)
            fields, variance = self.graph.color_by_features(white, h.to(dtype))
            beta = self.law.beta
            return fields.div_(math.sqrt(beta)), variance.div_(beta)
        if self.law.grid == self.grid:  # every view is an operator, at every step
            psi = self.law.rows(noise, h.shape[0] * channels, dtype)
        else:
            psi = self.sample(noise, len(h), channels, dtype).view(-1, math.prod(self.grid))
        return psi, self.variance(dtype, h.device).flatten()

    def sample(self, noise: Noise, batch: int, channels: int, dtype: torch.dtype) -> Tensor:
        r"""Independent fields (batch, channels, \*grid), on constant features."""
        psi = self.law.draw(noise, (batch, channels), dtype)
        return psi if self.law.grid == self.grid else self._resized(psi)

    def _resized(self, psi: Tensor) -> Tensor:
        return interpolate(psi, size=self.grid, mode=_RESIZE[len(self.grid)], align_corners=False)


def estimated_site_energy(
    field: DeployedField, realization: Realization, factors: Tensor
) -> Tensor:
    r""":math:`E(\xi(x)-1)^2` as float64 maps (len(factors), \*grid), one per factor on the
    strength, from fixed draws.

    The gate is heavy-tailed, so the estimate takes as many samples as the grid is small, in
    antithetic pairs. The same law, grid and strength always give the same numbers.
    """
    batch, sites = 256, math.prod(field.grid)
    rounds = max(8, _SITES // (2 * batch * sites))
    # on small grids many rounds are one pass over the memory
    together = max(1, (1 << 17) // (batch * sites))
    key = torch.tensor(fold("site energy"))
    total = torch.zeros(len(factors), *field.grid, dtype=torch.float64)
    variance = field.variance(torch.float32, torch.device("cpu"))
    for first in range(0, rounds, together):
        keys = [advance(key, i) for i in range(first, min(first + together, rounds))]
        psi = torch.cat([field.sample(Noise(k), batch, 1, torch.float32) for k in keys])
        for sign in (1, -1):
            for at, factor in enumerate(factors.float()):
                gate = realization(sign * psi, variance, factor)
                total[at] += (gate - 1).double().square().sum((0, 1))
    return total / (2 * batch * rounds)


class SiteEnergy:
    r"""Estimated site energy :math:`m(s) = E(\xi_s(x)-1)^2` at a factor :math:`s\in[0, 1]` on the
    strength.

    :math:`m(s)/s^2` is smooth, so for a schedule it is estimated once at the Chebyshev nodes and
    interpolated by the polynomial through them.
    """

    NODES = 12

    def __init__(self, field: DeployedField, realization: Realization) -> None:
        self.field, self.realization = field, realization
        self.full: Tensor | None = None
        self.coefficients: Tensor | None = None

    def __call__(self, factor: Tensor | None, device: torch.device) -> Tensor:
        """The map at one factor, in float64; None is one."""
        if factor is None:
            if self.full is None:
                self.full = estimated_site_energy(self.field, self.realization, torch.ones(1))[0]
            return self.full.to(device)
        degrees = torch.arange(self.NODES, dtype=torch.float64)
        if self.coefficients is None:
            angles = torch.pi * (degrees + 0.5) / self.NODES
            nodes = (1 + torch.cos(angles)) / 2
            energies = estimated_site_energy(self.field, self.realization, nodes).flatten(1)
            basis = torch.cos(torch.outer(angles, degrees))
            self.coefficients = torch.linalg.solve(basis, energies / nodes.square()[:, None])
        coefficients, degrees = self.coefficients.to(factor.device), degrees.to(factor.device)
        s = factor.double().clamp(0, 1)
        reduced: Tensor = torch.cos(degrees * torch.acos(2 * s - 1)) @ coefficients
        return (s.square() * reduced).view(self.field.grid)


class Mechanism(Gate):
    r""":math:`N=(\mathcal F,K,\mathcal T)` with its realization map :math:`\ell`: sample, realize,
    inject.

    .. math:: \psi\sim\mathcal F\;\xrightarrow{\ \ell\ }\;\xi\;\longrightarrow\;
        \tilde h=\mathcal T(h;\xi)

    The kernel :math:`K` is the covariance of the law.

    Args:
        law: A law on one grid, or a function that gives the law for any grid (so that one gate
            can be used at every stage).
        realization: From the field to the gate, e.g. ``Wick(gamma)``.
        injection: From the gate to the features; None multiplies.
        channels: ``"shared"``: one gate for all channels of a sample (the paper's choice);
            ``"independent"``: one each.
        base_size: Sample the field on this grid and resize it to the features' grid; None samples
            on theirs.
        seed: Seed when used as a layer; see :class:`Gate`.

    >>> from chaosgate.field import DirichletLaplacian, Massive, MaxEntLaw
    >>> from chaosgate.gate import Wick
    >>> gate = Mechanism(MaxEntLaw(Massive(DirichletLaplacian(), 0.1), (7, 7), beta=1.0), Wick(0.5))
    >>> gate(torch.ones(2, 3, 7, 7)).shape
    torch.Size([2, 3, 7, 7])
    """

    def __init__(
        self,
        law: Law | Callable[[Grid], Law],
        realization: Realization,
        injection: Injection | None = None,
        channels: str = "shared",
        base_size: list[int] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        one_of("channels", channels, "shared", "independent")
        self.law = law
        self.realization = realization
        self.injection = Multiplicative() if injection is None else injection
        self.channels = channels
        self.base_size = None if base_size is None else as_grid(base_size)
        self._fields: dict[Grid, DeployedField] = {}
        self._site_energy: dict[Grid, SiteEnergy] = {}

    def field_on(self, grid: Grid) -> DeployedField:
        """The field for maps with this grid; made once per grid."""
        if grid in self._fields:
            return self._fields[grid]
        field = self._deploy(grid)
        if self.realization.needs_exponential_moment and not field.law.has_exponential_moment:
            raise ValueError(
                f"the Wick gate does not exist under {field.law.family}: E exp(gamma psi) is "
                "infinite. Use SampleWise."
            )
        self._fields[grid] = field
        return field

    def _deploy(self, grid: Grid) -> DeployedField:
        if callable(self.law):
            return DeployedField(self.law(self.base_size or grid), grid)
        if self.base_size is None and self.law.grid != grid:
            raise ValueError(
                f"the law is on grid {grid_text(self.law.grid)}, the features on "
                f"{grid_text(grid)}. Give a function of the grid as law, or a base_size."
            )
        return DeployedField(self.law, grid)

    def gate(self, h: Tensor, noise: Noise) -> Tensor:
        r"""The realized gate for features (B, C, \*grid): (B, 1 or C, \*grid), float32 at least."""
        if h.device.type != "meta" and torch.is_autocast_enabled(h.device.type):
            # half precision would distort the field, not round it
            with torch.autocast(h.device.type, enabled=False):
                return self.gate(h, noise)
        field, dtype = self.field_on(grid_of(h)), field_dtype(h)
        channels = 1 if self.channels == "shared" else h.shape[1]
        shape = (h.shape[0], channels, *h.shape[2:])
        psi, variance = field.rows(noise, h, channels, dtype)
        factor = self.strength_for(h)
        if not self.realization.rows:
            return self.realization(psi.view(shape), field.variance(dtype, h.device), factor)
        if factor is not None and factor.ndim:  # one per sample
            factor = factor.view(-1, 1).repeat_interleave(channels, 0)
        return self.realization(psi, variance, factor).view(shape)

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        if math.prod(h.shape[2:]) == 1:
            self.check(grid_of(h))  # images may shrink after the first step
        return self.injection(h, self.gate(h, noise))

    def strength_for(self, h: Tensor) -> Tensor | None:
        """Factor on the realization's strength, from the schedule (and, in matched gates, from the
        features).
        """
        return self.factor

    def site_energy(self, grid: Grid, device: torch.device = torch.device("cpu")) -> Tensor:  # noqa: B008 - immutable
        r""":math:`E(\nu(x)-1)^2` as a map at the current strength: closed form, or a cached
        estimate.
        """
        field = self.field_on(grid)
        exact = self.realization.site_energy(field.variance(torch.float64, device), self.factor)
        if exact is not None:
            return exact
        if grid not in self._site_energy:
            self._site_energy[grid] = SiteEnergy(field, self.realization)
        return self._site_energy[grid](self.factor, device)

    def expected_energy(self, h: Tensor) -> Tensor:
        """Expected injected energy per sample (B,), at the current strength."""
        if self.field_on(grid := grid_of(h)).graph is not None:
            return super().expected_energy(h)
        return self.injection.energy(h, self.site_energy(grid, h.device))

    def nominal(self, grid: Grid) -> dict[str, float]:
        """``gamma`` or ``sigma`` of the realization, ``tau``, ``log_std`` on this grid, and
        ``alpha`` unless it is 1.
        """
        field, gamma = self.field_on(grid), getattr(self.realization, "gamma", None)
        alpha = getattr(self.injection, "alpha", 1)
        found = {} if alpha == 1 else {"alpha": alpha}
        if gamma is None:
            return {"sigma": getattr(self.realization, "sigma", math.nan), **found}
        tau, log_std = field.law.tau(gamma), abs(gamma) * math.sqrt(field.mean_variance)
        return {"gamma": gamma, "beta": field.law.beta, "tau": tau, "log_std": log_std, **found}

    def check(self, grid: Grid) -> None:
        """Raise an error if the gate is constant on this grid, or if the law does not fit it."""
        if math.prod(grid) == 1 and self.realization.degenerate_on_one_site:
            raise ValueError(
                f"a sample-wise gate on grid {grid_text(grid)} is the constant one. Use a stage "
                "with a larger grid, larger images, or the Wick gate."
            )
        self.field_on(grid)

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        field = self.field_on(grid)
        field.variance(dtype, device)
        field.law.operator.prepare(field.law.grid, device, dtype)

    def extra_repr(self) -> str:
        law = "law by grid" if callable(self.law) else repr(self.law)
        return (
            f"{law}, {self.realization}, {self.injection}, channels={self.channels!r}, "
            f"base_size={self.base_size}"
        )
