"""Operators of the regular grid: the Laplacian under three boundary conditions, functions of its
spectrum, and the identity.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from chaosgate.field.operator import (
    Constants,
    Factor,
    Grid,
    Operator,
    at_least_float32,
    grid_of_field,
    positive,
)
from chaosgate.field.spectral import Axis, Cosine, Hartley, Sine, SpectralFactor


class GridLaplacian(Operator):
    r"""Sum of one-dimensional Laplacians, one per axis, each with one edge weight.

    .. math:: Q = p\, D_H^\top D_H \otimes I + q\, I \otimes D_W^\top D_W

    on two axes, and similarly on one and three. A subclass gives the boundary condition by its axis
    basis and the differences :math:`D_n` over the edges of n sites in a row.
    """

    axis: type[Axis]

    @abstractmethod
    def differences(self, field: Tensor) -> Tensor:
        """Differences of a field (outer, n, inner) over every edge along the middle axis."""

    def edge_weights(self, grid: Grid) -> tuple[float, ...]:
        """The weight of the edges along each axis."""
        return (1.0,) * len(grid)

    def _jumps(self, fields: Tensor, grid: Grid) -> Iterator[tuple[float, Tensor]]:
        """The weight and the differences (fields, edges) along each axis."""
        for index, weight in enumerate(self.edge_weights(grid)):
            lines = fields.reshape(-1, grid[index], math.prod(grid[index + 1 :]))
            yield (
                weight,
                self.differences(lines).reshape(math.prod(fields.shape) // math.prod(grid), -1),
            )

    def matrix(self, grid: Grid) -> Tensor:
        """Computed from the differences of the unit fields of all sites."""
        jumps = self._jumps(_eye(math.prod(grid)), grid)
        return torch.stack([weight * (jump @ jump.T) for weight, jump in jumps]).sum(0)

    def factor(self, grid: Grid) -> SpectralFactor:
        """Diagonal in the product of the axis bases."""
        axes = [self.axis(side) for side in grid]
        lines = [
            weight * axis.eigenvalues()
            for axis, weight in zip(axes, self.edge_weights(grid), strict=True)
        ]
        return SpectralFactor(axes, reduce(lambda total, line: total[..., None] + line, lines))

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        """Weighted squared differences over the edges (eq. dirichlet-energy); no matrix."""
        jumps = self._jumps(at_least_float32(field), grid_of_field(field, axes))
        energies = [0.5 * weight * jump.square().sum(1) for weight, jump in jumps]
        return torch.stack(energies).sum(0).view(field.shape[: field.ndim - axes])


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64, device="cpu")


class DirichletLaplacian(GridLaplacian):
    r"""Graph Laplacian of the H x W grid, zero on an auxiliary outer boundary (eq.
    dirichlet_laplacian).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2(H+1)} + 4\sin^2\frac{\pi \ell}{2(W+1)} > 0

    so the Green kernel :math:`G_U = L_U^{-1}` exists without gauge fixing (eq. dirichlet-eigs). On
    a sequence or a volume the sum has one or three terms, as for the other grids.

    >>> round(DirichletLaplacian().mean_variance((7, 7)), 3)
    0.397
    """

    axis = Sine

    def differences(self, field: Tensor) -> Tensor:
        """The n + 1 differences, including both edges to the boundary."""
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
        self.vertical = positive("the vertical weight", vertical)
        self.horizontal = positive("the horizontal weight", horizontal)
        self.depth = None if depth is None else positive("the depth weight", depth)

    def edge_weights(self, grid: Grid) -> tuple[float, ...]:
        depth = () if self.depth is None else (self.depth,)
        weights = (*depth, self.vertical, self.horizontal)
        if len(grid) != len(weights):
            raise ValueError(
                f"{self} has weights for {len(weights)} axes; grid {tuple(grid)} has {len(grid)}. "
                "Two axes take vertical and horizontal, three also depth; on one axis a weight is "
                "a choice of beta."
            )
        return weights


class Neumann(GridLaplacian):
    r"""Graph Laplacian of the H x W grid with free borders, zero-mean gauge (paper, app.
    variational_derivation).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2H} + 4\sin^2\frac{\pi \ell}{2W}, \qquad k, \ell
        \ge 0

    A constant field has no energy, so fields have spatial mean zero and the Green kernel is the
    Moore-Penrose inverse.
    """

    axis = Cosine

    def differences(self, field: Tensor) -> Tensor:
        """The n - 1 differences over inner edges."""
        return field.diff(dim=1)


class Periodic(GridLaplacian):
    r"""Graph Laplacian of the H x W torus, zero-mean gauge (paper, app. variational_derivation).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{H} + 4\sin^2\frac{\pi \ell}{W}, \qquad k, \ell
        \ge 0

    Of these operators, only this one has the same field variance at every site. On an axis of two
    sites both edges join the same pair and count twice; on an axis of one site there is no edge.
    """

    axis = Hartley

    def differences(self, field: Tensor) -> Tensor:
        """The n differences around the ring."""
        return field - field.roll(1, 1)


class Spectral(Operator):
    r"""A function of the Laplacian, :math:`Q = f(L)`: the same eigenvectors, other eigenvalues.

    .. math:: Q = \sum_k f(\lambda_k)\, e_k e_k^\top

    The field has variance :math:`1/f(\lambda)` at eigenvalue :math:`\lambda`, so :math:`f` sets the
    noise at each spatial scale. Sampling costs the same as for the Laplacian. Named forms are
    :class:`Fractional`, :class:`BandLimited` and :class:`MultiScale`.

    Args:
        function: :math:`f`, elementwise on a tensor of eigenvalues. Positive, except that it may
            be zero at eigenvalue zero (Neumann, Periodic); this mode then gets no noise.
        base: The Laplacian :math:`L`; None is the Dirichlet Laplacian.

    >>> heat = Spectral(lambda eigenvalue: torch.exp(2 * eigenvalue))
    >>> torch.allclose(heat.green((3,)), torch.matrix_exp(-2 * DirichletLaplacian().matrix((3,))))
    True
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], base: GridLaplacian | None = None
    ) -> None:
        self.function, self.base = function, base or DirichletLaplacian()

    def factor(self, grid: Grid) -> SpectralFactor:
        laplacian = self.base.factor(grid)
        values = self.function(laplacian.eigenvalues)
        at_gauge = (values == 0) & (laplacian.eigenvalues == 0)
        wrong = ~(values.isfinite() & (values > 0) | at_gauge)
        if wrong.any():
            raise ValueError(
                f"{self}: the function must be positive and finite; at eigenvalue "
                f"{float(laplacian.eigenvalues[wrong][0]):.4g} it is {float(values[wrong][0]):.4g}."
            )
        return SpectralFactor(laplacian.axes, values)

    def matrix(self, grid: Grid) -> Tensor:
        factor = self.factor(grid)
        basis = factor.basis()
        return basis * factor.spectrum() @ basis.T


class Fractional(Spectral):
    r"""A power of the Laplacian, :math:`f(\lambda) = (\lambda + m)^s`.

    Power 1 is the Laplacian itself, 0 white noise, 2 a smoother field with longer correlations.

    Args:
        power: :math:`s`, at least 0.
        mass: :math:`m`, at least 0; limits the range of the correlations to about
            :math:`m^{-1/2}` sites.
        base: The Laplacian; None is the Dirichlet Laplacian.
    """

    def __init__(self, power: float, mass: float = 0.0, base: GridLaplacian | None = None) -> None:
        if not (math.isfinite(power) and power >= 0 and math.isfinite(mass) and mass >= 0):
            raise ValueError(f"Fractional: power and mass must be >= 0; got {power} and {mass}.")
        self.power, self.mass = power, mass
        super().__init__(lambda eigenvalue: (eigenvalue + mass) ** power, base)


class BandLimited(Spectral):
    r"""Noise in one band of scales: :math:`f = 1` for eigenvalues in [low, high], else ``outside``.

    A wave with a period of p sites along one axis has the eigenvalue :math:`4\sin^2(\pi/p)`.

    Args:
        low: Smallest eigenvalue of the band.
        high: Largest eigenvalue of the band.
        outside: :math:`f` outside of the band, above 1; the variance there is ``1/outside``.
        base: The Laplacian; None is the Dirichlet Laplacian.
    """

    def __init__(
        self, low: float, high: float, outside: float = 100.0, base: GridLaplacian | None = None
    ) -> None:
        if not (low < high and outside > 1):
            raise ValueError(
                "BandLimited: low must be below high, and outside above 1; got "
                f"low={low}, high={high}, outside={outside}."
            )
        self.low, self.high, self.outside = low, high, outside
        super().__init__(self._cost, base)

    def _cost(self, eigenvalues: Tensor) -> Tensor:
        inside = (eigenvalues >= self.low) & (eigenvalues <= self.high)
        return torch.where(inside, 1.0, self.outside).to(eigenvalues)


class MultiScale(Spectral):
    r"""A sum of independent massive fields, one per scale: :math:`1/f(\lambda) = \sum_i w_i /
    (\lambda + m_i)`.

    Args:
        masses: :math:`m_i`, positive; mass m has a range of about :math:`m^{-1/2}` sites.
        weights: :math:`w_i`, positive; 1 by default.
        base: The Laplacian; None is the Dirichlet Laplacian.
    """

    def __init__(
        self,
        masses: Sequence[float],
        weights: Sequence[float] | None = None,
        base: GridLaplacian | None = None,
    ) -> None:
        self.masses = [positive("a mass of MultiScale", mass) for mass in masses]
        given = [1.0] * len(masses) if weights is None else weights
        self.weights = [positive("a weight of MultiScale", weight) for weight in given]
        if not self.masses or len(self.masses) != len(self.weights):
            raise ValueError(
                f"MultiScale: one weight per mass; got {len(self.masses)} masses and "
                f"{len(self.weights)} weights."
            )
        super().__init__(self._cost, base)

    def _cost(self, eigenvalues: Tensor) -> Tensor:
        pairs = zip(self.masses, self.weights, strict=True)
        return torch.stack([w / (eigenvalues + m) for m, w in pairs]).sum(0).reciprocal()


class ScalarFactor(Factor):
    r"""A multiple :math:`c I` of the identity: independent sites."""

    def __init__(self, grid: Grid, scale: float) -> None:
        self.grid, self.scale, self.rank = grid, scale, math.prod(grid)
        self.logdet = self.rank * math.log(scale)
        self.mean_variance = 1 / scale
        self.variance = torch.full(grid, self.mean_variance, dtype=torch.float64, device="cpu")

    def green(self) -> Tensor:
        return self.variance.flatten().diag()

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        return (torch.tensor(self.scale**-0.5, device=device, dtype=dtype),)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        return white * constants[0]

    def shifted(self, mu: float) -> "ScalarFactor":
        return ScalarFactor(self.grid, self.scale + mu)


class Identity(Operator):
    r"""White noise, :math:`Q = I`: independent sites. A control without correlation."""

    def matrix(self, grid: Grid) -> Tensor:
        return _eye(math.prod(grid))

    def factor(self, grid: Grid) -> Factor:
        return ScalarFactor(grid, 1.0)

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        return 0.5 * at_least_float32(field).square().flatten(-axes).sum(-1)
