"""Operators of the regular grid: the Laplacian under three boundary conditions, and the identity."""

from abc import abstractmethod

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid, positive
from chaosgate.field.axis import Axis, Cosine, Hartley, Sine
from chaosgate.field.factor import Factor
from chaosgate.field.operator import Operator, at_least_float32
from chaosgate.field.scalar import ScalarFactor
from chaosgate.field.spectral import SpectralFactor


class GridLaplacian(Operator):
    r"""Sum of a vertical and a horizontal one-dimensional Laplacian, each with one edge weight.

    .. math:: Q = p\, T_H \otimes I + q\, I \otimes T_W

    A subclass names the boundary condition by its axis basis and its row matrix :math:`T_n`.
    """

    axis: type[Axis]
    weights: tuple[float, float] = (1.0, 1.0)

    @abstractmethod
    def row(self, n: int) -> Tensor:
        """The one-dimensional Laplacian :math:`T_n` of n sites in a row, (n, n) float64."""

    def matrix(self, grid: Grid) -> Tensor:
        """The sum of two Kronecker products, dense."""
        eyes = [torch.eye(side, dtype=torch.float64, device="cpu") for side in grid]
        vertical = self.weights[0] * torch.kron(self.row(grid[0]), eyes[1])
        return vertical + self.weights[1] * torch.kron(eyes[0], self.row(grid[1]))

    def factor(self, grid: Grid) -> Factor:
        """Diagonal in the product of the two axis bases."""
        if self.axis.has_zero_mode and grid == (1, 1):
            raise ValueError(f"{self} on grid (1, 1) has no field: its only site is fixed by the zero-mean gauge.")
        return SpectralFactor(self.axis(grid[0]), self.axis(grid[1]), self.weights)

    def energy(self, field: Tensor) -> Tensor:
        """Weighted squared differences over the edges (eq. dirichlet-energy); no matrix."""
        field = at_least_float32(field)
        squares = [self.differences(field, dim).square().sum((-2, -1)) for dim in (-2, -1)]
        return 0.5 * (self.weights[0] * squares[0] + self.weights[1] * squares[1])

    @abstractmethod
    def differences(self, field: Tensor, dim: int) -> Tensor:
        """Differences of a field (..., H, W) over every edge along ``dim``."""


def row_matrix(n: int) -> Tensor:
    """Laplacian of n sites in a row with free ends, (n, n) float64."""
    off = torch.ones(n - 1, dtype=torch.float64, device="cpu")
    coupling = off.diag(1) + off.diag(-1)
    return coupling.sum(1).diag() - coupling


class DirichletLaplacian(GridLaplacian):
    r"""Graph Laplacian of the H x W grid, zero on an auxiliary outer boundary (eq. dirichlet_laplacian).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2(H+1)} + 4\sin^2\frac{\pi \ell}{2(W+1)} > 0

    so the Green kernel :math:`G_U = L_U^{-1}` exists without gauge fixing (eq. dirichlet-eigs).

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

    def differences(self, field: Tensor, dim: int) -> Tensor:
        """With the two edges to the boundary: n + 1 along ``dim``."""
        return torch.nn.functional.pad(field, (1, 1) if dim == -1 else (0, 0, 1, 1)).diff(dim=dim)


class Anisotropic(DirichletLaplacian):
    r"""Dirichlet Laplacian with one edge weight per axis (paper, sec. dgff and app. green_kernel).

    .. math:: \lambda_{k\ell} = 4p\sin^2\frac{\pi k}{2(H+1)} + 4q\sin^2\frac{\pi \ell}{2(W+1)} > 0

    The larger weight makes the field smoother along its axis.

    Args:
        vertical: Weight p of the edges that join rows.
        horizontal: Weight q of the edges that join columns.
    """

    def __init__(self, vertical: float, horizontal: float) -> None:
        self.weights = (positive("the vertical weight", vertical), positive("the horizontal weight", horizontal))

    def __repr__(self) -> str:
        return f"Anisotropic(vertical={self.weights[0]}, horizontal={self.weights[1]})"


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

    def differences(self, field: Tensor, dim: int) -> Tensor:
        """Inner edges only: n - 1 along ``dim``."""
        return field.diff(dim=dim)


class Periodic(GridLaplacian):
    r"""Graph Laplacian of the H x W torus, zero-mean gauge (paper, app. variational_derivation).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{H} + 4\sin^2\frac{\pi \ell}{W}, \qquad k, \ell \ge 0

    The only one of these fields whose variance is the same at every site. On an axis of two sites the edge there and
    the edge back join the same pair and count twice; on an axis of one site there is no edge.
    """

    axis = Hartley

    def row(self, n: int) -> Tensor:
        """Circulant."""
        shift = torch.eye(n, dtype=torch.float64, device="cpu").roll(1, 0)
        return 2 * torch.eye(n, dtype=torch.float64, device="cpu") - shift - shift.T

    def differences(self, field: Tensor, dim: int) -> Tensor:
        """Around the ring: n along ``dim``."""
        return field - field.roll(1, dim)


class Identity(Operator):
    r"""White noise, :math:`Q = I`: every site on its own. The control in which no geometry is designed."""

    def matrix(self, grid: Grid) -> Tensor:
        """The identity."""
        return torch.eye(grid[0] * grid[1], dtype=torch.float64, device="cpu")

    def factor(self, grid: Grid) -> Factor:
        """A scalar."""
        return ScalarFactor(grid, 1.0)

    def energy(self, field: Tensor) -> Tensor:
        """Half the sum of squares."""
        return 0.5 * at_least_float32(field).square().sum((-2, -1))
