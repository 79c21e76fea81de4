"""An operator whose field is fixed at zero on one more site: a gauge besides the zero mean."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.functional import vjp

from chaosgate.field.operator import (
    Constants,
    Factor,
    Grid,
    Operator,
    as_grid,
    at_least_float32,
    grid_of_field,
)


class PinnedFactor(Factor):
    r"""A factor whose field is fixed at zero on one more site :math:`x_0`.

    The field becomes :math:`\psi - k\,\psi(x_0)`. If constants have no energy, :math:`k = 1`;
    otherwise :math:`k = G(\cdot, x_0)/G(x_0,
    x_0)`, the conditional mean. The determinant is that of the Schur complement: the product of the
    non-zero eigenvalues divided by n, or multiplied by :math:`G(x_0, x_0)`.

    Args:
        inside: The factor without the pin.
        site: The flat index of :math:`x_0`.
    """

    def __init__(self, inside: Factor, site: int) -> None:
        self.inside, self.site, self.grid = inside, site, inside.grid
        n = math.prod(self.grid)
        constants = inside.constants(torch.device("cpu"), torch.float64)

        def color(white: Tensor) -> Tensor:
            return inside.color(white, constants)[0]

        # G e = A A^T e for the unit vector at the site
        unit = torch.nn.functional.one_hot(torch.tensor(site), n).double()
        white = torch.zeros(1, n, dtype=torch.float64)
        column = color(vjp(color, white, unit)[1])  # type: ignore[no-untyped-call]
        at_site = float(column[site])
        self.rank = n - 1
        if inside.rank == self.rank:  # under the zero-mean gauge
            self.profile, self.logdet = torch.ones_like(column), inside.logdet - math.log(n)
        else:
            self.profile, self.logdet = column / at_site, inside.logdet + math.log(at_site)
        variance = inside.variance.flatten() - 2 * self.profile * column + self.profile**2 * at_site
        variance[site] = 0.0
        self.variance = variance.view(self.grid)
        self.mean_variance = float(variance.mean())

    def green(self) -> Tensor:
        """The kernel of the inner factor, reduced on both sides."""
        away = torch.eye(len(self.profile), dtype=torch.float64)
        away[:, self.site] -= self.profile
        return away @ self.inside.green() @ away.T

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        return (self.profile.to(dtype).to(device), *self.inside.constants(device, dtype))

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        fields = self.inside.color(white, constants[1:])
        return fields - fields[:, self.site, None] * constants[0]

    def shifted(self, mu: float) -> "PinnedFactor":
        """The mass is added to the inner factor; the pinned site has none."""
        return PinnedFactor(self.inside.shifted(mu), self.site)


class Pinned(Operator):
    r"""An operator whose field is fixed at zero on one site: a gauge for Neumann and periodic
    grids.

    The row and the column of the site are removed from :math:`Q`. If constants have no energy, the
    new field is :math:`\psi - \psi(x_0)` for a field :math:`\psi` of mean zero. If :math:`Q` is
    positive definite, it is the field given :math:`\psi(x_0) = 0`.

    Args:
        operator: The operator :math:`Q`.
        site: Index of the site :math:`x_0` on each axis, from 0; negative indices count from the
            end.

    >>> from chaosgate.field import Periodic
    >>> float(Pinned(Periodic(), [0, 0]).variance((5, 5))[0, 0])
    0.0
    """

    def __init__(self, operator: Operator, site: Sequence[int]) -> None:
        self.operator, self.site = operator, tuple(site)

    def _index(self, grid: Grid) -> int:
        sites = torch.arange(math.prod(grid)).view(as_grid(grid))
        try:
            return int(sites[self.site])
        except (IndexError, TypeError, RuntimeError, ValueError):
            raise ValueError(
                f"{self} has no such site on grid {grid}: give one whole number per axis."
            ) from None

    def free(self, grid: Grid) -> Tensor:
        """One, except zero at the pinned site."""
        free = self.operator.free(grid).clone()
        free.view(-1)[self._index(grid)] = 0.0
        return free

    def matrix(self, grid: Grid) -> Tensor:
        matrix, site = self.operator.matrix(grid).clone(), self._index(grid)
        matrix[site], matrix[:, site] = 0.0, 0.0
        return matrix

    def factor(self, grid: Grid) -> Factor:
        """The inner factor, conditioned on zero at the site."""
        site = self._index(grid)
        if not self.operator.free(grid).all():
            raise ValueError(
                f"{self}: {self.operator} already has a pinned site, which fixes the gauge."
            )
        return PinnedFactor(self.operator.factor(grid), site)

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        field = at_least_float32(field)
        return self.operator.energy(field * self.free(grid_of_field(field, axes)).to(field), axes)
