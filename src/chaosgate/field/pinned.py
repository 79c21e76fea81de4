"""An operator held at zero on one more site: the other usual gauge beside the zero mean."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

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
    r"""A factor whose field is held at zero on one more site :math:`x_0`.

    The field loses what its value at the site tells about the others, :math:`\psi - k\,\psi(x_0)`.
    Where the constants cost nothing, :math:`k = 1`; elsewhere :math:`k = G(\cdot, x_0)/G(x_0,
    x_0)`, the conditional mean. The determinant is the Schur complement's: the product of the
    non-zero eigenvalues divided by n, or multiplied by :math:`G(x_0, x_0)`.

    Args:
        inside: The factor without the pin.
        site: The flat index of :math:`x_0`.
        matrix: Builds the pinned operator as a matrix; only :meth:`spectrum` calls it.
    """

    def __init__(self, inside: Factor, site: int, matrix: Callable[[], Tensor]) -> None:
        self.inside, self.site, self.grid, self._matrix = inside, site, inside.grid, matrix
        n = math.prod(self.grid)
        if n == 1:
            raise ValueError(
                f"a field on grid {self.grid} is nothing when its only site is held at zero."
            )
        column = self._green_column(n)
        at_site = float(column[site])
        centered = inside.rank == n - 1
        self.rank = n - 1
        self.profile = torch.ones_like(column) if centered else column / at_site
        self.logdet = inside.logdet + (-math.log(n) if centered else math.log(at_site))
        variance = inside.variance.flatten() - 2 * self.profile * column + self.profile**2 * at_site
        variance[site] = 0.0
        self.variance = variance.view(self.grid)
        self.mean_variance = float(variance.mean())

    def _green_column(self, n: int) -> Tensor:
        r""":math:`G e_{x_0} = A A^\top e_{x_0}`; the adjoint of the linear map :math:`A` is its
        derivative.
        """
        constants = self.inside.constants(torch.device("cpu"), torch.float64)
        with torch.enable_grad():
            white = torch.zeros(1, n, dtype=torch.float64, requires_grad=True)
            (adjoint,) = torch.autograd.grad(
                self.inside.color(white, constants)[0, self.site], white
            )
        return self.inside.color(adjoint, constants)[0].detach()

    def spectrum(self) -> Tensor:
        """Ascending, from the dense matrix; the pinned site first."""
        values: Tensor = torch.linalg.eigvalsh(self._matrix())
        return torch.cat([torch.zeros(1, dtype=values.dtype), values[1:]])

    def green(self) -> Tensor:
        green, k = self.inside.green(), self.profile
        column = green[:, self.site]
        return (
            green
            - torch.outer(k, column)
            - torch.outer(column, k)
            + column[self.site] * torch.outer(k, k)
        )

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        return (self.profile.to(dtype).to(device), *self.inside.constants(device, dtype))

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        fields = self.inside.color(white, constants[1:])
        return fields - fields[:, self.site, None] * constants[0]

    def shifted(self, mu: float) -> "PinnedFactor":
        """The mass goes inside: it is struck out at the pinned site with everything else."""

        def matrix() -> Tensor:
            masses = torch.full((math.prod(self.grid),), mu, dtype=torch.float64)
            masses[self.site] = 0.0
            return self._matrix() + masses.diag()

        return PinnedFactor(self.inside.shifted(mu), self.site, matrix)


class Pinned(Operator):
    r"""An operator whose field is held at zero on one site: a gauge for Neumann and periodic grids.

    The row and the column of the site are struck out of :math:`Q`. Where the constants cost no
    energy, this is the other usual gauge beside the zero mean: :math:`\psi - \psi(x_0)` for a field
    :math:`\psi` of mean zero. Where :math:`Q` is positive definite, it is the law of its field
    given :math:`\psi(x_0) = 0`.

    Args:
        operator: The operator :math:`Q`.
        site: Index of the site :math:`x_0` on each axis, from 0; negative ones count from the end.

    >>> from chaosgate.field import Periodic
    >>> float(Pinned(Periodic(), [0, 0]).variance((5, 5))[0, 0])
    0.0
    """

    def __init__(self, operator: Operator, site: Sequence[int]) -> None:
        self.operator, self.site = operator, tuple(site)

    def _index(self, grid: Grid) -> int:
        grid = as_grid(grid)
        fits = len(self.site) == len(grid) and all(
            isinstance(i, int) and -n <= i < n for i, n in zip(self.site, grid, strict=False)
        )
        if not fits:
            raise ValueError(
                f"{self} has no such site on grid {grid}: give one whole number per axis."
            )
        return int(torch.arange(math.prod(grid)).view(grid)[self.site])

    def mass(self, grid: Grid) -> Tensor:
        """None at the site."""
        mass = self.operator.mass(grid).clone()
        mass.view(-1)[self._index(grid)] = 0.0
        return mass

    def matrix(self, grid: Grid) -> Tensor:
        matrix, site = self.operator.matrix(grid).clone(), self._index(grid)
        matrix[site], matrix[:, site] = 0.0, 0.0
        return matrix

    def factor(self, grid: Grid) -> Factor:
        """The field of the operator inside, minus what its value at the site tells of the
        others.
        """
        site = self._index(grid)
        if not bool(self.operator.mass(grid).all()):
            raise ValueError(
                f"{self}: {self.operator} holds a site at zero already; one fixes the gauge."
            )
        return PinnedFactor(self.operator.factor(grid), site, lambda: self.matrix(grid))

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        field = at_least_float32(field)
        free = torch.ones_like(self.mass(grid := grid_of_field(field, axes)))
        free.view(-1)[self._index(grid)] = 0.0
        return self.operator.energy(field * free.to(field), axes)

    def __repr__(self) -> str:
        return f"Pinned({self.operator}, site={list(self.site)})"
