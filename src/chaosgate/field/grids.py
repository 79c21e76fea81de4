"""Operators of the regular grid: the Laplacian under three boundary conditions, and the identity."""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid, positive
from chaosgate.field.axis import Axis, Cosine, Hartley, Sine
from chaosgate.field.factor import Factor, ScalarFactor, SpectralFactor
from chaosgate.field.operator import Operator, at_least_float32, grid_of_field


class GridLaplacian(Operator):
    r"""Sum of one-dimensional Laplacians, one per axis, each with one edge weight.

    .. math:: Q = p\, T_H \otimes I + q\, I \otimes T_W

    on two axes; the same on one and three. A subclass names the boundary condition by its axis basis and its row matrix
    :math:`T_n`.
    """

    axis: type[Axis]

    @abstractmethod
    def row(self, n: int) -> Tensor:
        """The one-dimensional Laplacian :math:`T_n` of n sites in a row, (n, n) float64."""

    @abstractmethod
    def differences(self, field: Tensor) -> Tensor:
        """Differences of a field (outer, n, inner) over every edge along the middle axis."""

    def edge_weights(self, grid: Grid) -> tuple[float, ...]:
        """The weight of the edges along each axis."""
        return (1.0,) * len(grid)

    def matrix(self, grid: Grid) -> Tensor:
        """The sum of Kronecker products, dense."""
        total = torch.zeros(math.prod(grid), math.prod(grid), dtype=torch.float64, device="cpu")
        for index, weight in enumerate(self.edge_weights(grid)):
            before, after = (_eye(math.prod(part)) for part in (grid[:index], grid[index + 1 :]))
            total += weight * torch.kron(torch.kron(before, self.row(grid[index])), after)
        return total

    def factor(self, grid: Grid) -> Factor:
        """Diagonal in the product of the axis bases."""
        if self.axis.has_zero_mode and math.prod(grid) == 1:
            raise ValueError(
                f"{self} on grid {grid} has no field: its only site is fixed by the zero-mean gauge."
            )
        return SpectralFactor([self.axis(side) for side in grid], self.edge_weights(grid))

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        """Weighted squared differences over the edges (eq. dirichlet-energy); no matrix."""
        grid, field = grid_of_field(field, axes), at_least_float32(field)
        total = torch.zeros(
            field.shape[: field.ndim - axes], dtype=field.dtype, device=field.device
        )
        for index, weight in enumerate(self.edge_weights(grid)):
            lines = field.reshape(-1, grid[index], math.prod(grid[index + 1 :]))
            squares = self.differences(lines).square().sum((1, 2))
            total = total + 0.5 * weight * squares.view(*total.shape, -1).sum(-1)
        return total


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64, device="cpu")


def row_matrix(n: int) -> Tensor:
    """Laplacian of n sites in a row with free ends, (n, n) float64."""
    off = torch.ones(n - 1, dtype=torch.float64, device="cpu")
    coupling = off.diag(1) + off.diag(-1)
    return coupling.sum(1).diag() - coupling


class DirichletLaplacian(GridLaplacian):
    r"""Graph Laplacian of the H x W grid, zero on an auxiliary outer boundary (eq. dirichlet_laplacian).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2(H+1)} + 4\sin^2\frac{\pi \ell}{2(W+1)} > 0

    so the Green kernel :math:`G_U = L_U^{-1}` exists without gauge fixing (eq. dirichlet-eigs). On a sequence or a
    volume the sum has one or three terms, here and for the other grids.

    >>> round(DirichletLaplacian().mean_variance((7, 7)), 3)
    0.397
    """

    axis = Sine

    def row(self, n: int) -> Tensor:
        """Both ends have one more neighbour, held at zero."""
        ends = torch.zeros(n, dtype=torch.float64, device="cpu")
        ends[0] += 1
        ends[-1] += 1  # twice the same site when n is 1
        return row_matrix(n) + ends.diag()

    def differences(self, field: Tensor) -> Tensor:
        """With the two edges to the boundary: n + 1."""
        return torch.nn.functional.pad(field, (0, 0, 1, 1)).diff(dim=1)


class Anisotropic(DirichletLaplacian):
    r"""Dirichlet Laplacian with one edge weight per axis (paper, sec. dgff and app. green_kernel).

    .. math:: \lambda_{k\ell} = 4p\sin^2\frac{\pi k}{2(H+1)} + 4q\sin^2\frac{\pi \ell}{2(W+1)} > 0

    The larger weight makes the field smoother along its axis.

    Args:
        vertical: Weight p of the edges that join rows.
        horizontal: Weight q of the edges that join columns.
        depth: Weight of the edges that join slices, for grids of three axes.
    """

    def __init__(self, vertical: float, horizontal: float, depth: float | None = None) -> None:
        weights = (
            positive("the vertical weight", vertical),
            positive("the horizontal weight", horizontal),
        )
        self.weights = weights if depth is None else (positive("the depth weight", depth), *weights)

    def edge_weights(self, grid: Grid) -> tuple[float, ...]:
        if len(grid) != len(self.weights):
            raise ValueError(
                f"{self} has weights for {len(self.weights)} axes; grid {tuple(grid)} has {len(grid)}. A grid of two "
                "axes takes vertical and horizontal, one of three also depth; on one axis a weight is a choice of beta."
            )
        return self.weights

    def __repr__(self) -> str:
        *depth, vertical, horizontal = self.weights
        return f"Anisotropic(vertical={vertical}, horizontal={horizontal}{''.join(f', depth={w}' for w in depth)})"


class Neumann(GridLaplacian):
    r"""Graph Laplacian of the H x W grid with free borders, zero-mean gauge (paper, app. variational_derivation).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2H} + 4\sin^2\frac{\pi \ell}{2W}, \qquad k, \ell \ge 0

    The constant field costs no energy, so fields are taken of spatial mean zero and the Green kernel is the
    Moore-Penrose inverse.
    """

    axis = Cosine

    def row(self, n: int) -> Tensor:
        """Both ends have one neighbour."""
        return row_matrix(n)

    def differences(self, field: Tensor) -> Tensor:
        """Inner edges only: n - 1."""
        return field.diff(dim=1)


class Periodic(GridLaplacian):
    r"""Graph Laplacian of the H x W torus, zero-mean gauge (paper, app. variational_derivation).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{H} + 4\sin^2\frac{\pi \ell}{W}, \qquad k, \ell \ge 0

    The only one of these fields whose variance is the same at every site. On an axis of two sites the edge there and
    the edge back join the same pair and count twice; on an axis of one site there is no edge.
    """

    axis = Hartley

    def row(self, n: int) -> Tensor:
        """Circulant."""
        shift = _eye(n).roll(1, 0)
        return 2 * _eye(n) - shift - shift.T

    def differences(self, field: Tensor) -> Tensor:
        """Around the ring: n."""
        return field - field.roll(1, 1)


class Identity(Operator):
    r"""White noise, :math:`Q = I`: every site on its own. The control in which no geometry is designed."""

    def matrix(self, grid: Grid) -> Tensor:
        return _eye(math.prod(grid))

    def factor(self, grid: Grid) -> Factor:
        return ScalarFactor(grid, 1.0)

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        return 0.5 * at_least_float32(field).square().flatten(-axes).sum(-1)
