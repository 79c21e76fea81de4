"""A law as it reaches the features: sampled on their grid, or on a coarser one and resized; and its
energy.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from chaosgate.field.law import Law
from chaosgate.field.operator import Grid
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate.realization import Realization

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
