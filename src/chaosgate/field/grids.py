"""Operators of the regular grid: the Laplacian under three boundary conditions, functions of its
spectrum, and the identity.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
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

    .. math:: Q = p\, T_H \otimes I + q\, I \otimes T_W

    on two axes; the same on one and three. A subclass names the boundary condition by its axis
    basis and its row matrix :math:`T_n`.
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

    def factor(self, grid: Grid) -> SpectralFactor:
        """Diagonal in the product of the axis bases."""
        if self.axis.has_zero_mode and math.prod(grid) == 1:
            raise ValueError(
                f"{self} on grid {grid} has no field: its only site is fixed by the zero-mean "
                "gauge."
            )
        axes = [self.axis(side) for side in grid]
        lines = [
            weight * axis.eigenvalues()
            for axis, weight in zip(axes, self.edge_weights(grid), strict=True)
        ]
        return SpectralFactor(axes, reduce(lambda total, line: total[..., None] + line, lines))

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
    r"""Graph Laplacian of the H x W grid, zero on an auxiliary outer boundary (eq.
    dirichlet_laplacian).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2(H+1)} + 4\sin^2\frac{\pi \ell}{2(W+1)} > 0

    so the Green kernel :math:`G_U = L_U^{-1}` exists without gauge fixing (eq. dirichlet-eigs). On
    a sequence or a volume the sum has one or three terms, here and for the other grids.

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
                f"{self} has weights for {len(self.weights)} axes; grid {tuple(grid)} has "
                f"{len(grid)}. Two axes take vertical and horizontal, three also depth; on one "
                "axis a weight is a choice of beta."
            )
        return self.weights

    def __repr__(self) -> str:
        *depth, vertical, horizontal = self.weights
        third = f", depth={depth[0]}" if depth else ""
        return f"Anisotropic(vertical={vertical}, horizontal={horizontal}{third})"


class Neumann(GridLaplacian):
    r"""Graph Laplacian of the H x W grid with free borders, zero-mean gauge (paper, app.
    variational_derivation).

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{2H} + 4\sin^2\frac{\pi \ell}{2W}, \qquad k, \ell
        \ge 0

    The constant field costs no energy, so fields are taken of spatial mean zero and the Green
    kernel is the Moore-Penrose inverse.
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

    .. math:: \lambda_{k\ell} = 4\sin^2\frac{\pi k}{H} + 4\sin^2\frac{\pi \ell}{W}, \qquad k, \ell
        \ge 0

    The only one of these fields whose variance is the same at every site. On an axis of two sites
    the edge there and the edge back join the same pair and count twice; on an axis of one site
    there is no edge.
    """

    axis = Hartley

    def row(self, n: int) -> Tensor:
        """Circulant."""
        shift = _eye(n).roll(1, 0)
        return 2 * _eye(n) - shift - shift.T

    def differences(self, field: Tensor) -> Tensor:
        """Around the ring: n."""
        return field - field.roll(1, 1)


class Spectral(Operator):
    r"""A function of the Laplacian, :math:`Q = f(L)`: the same eigenvectors, other eigenvalues.

    .. math:: Q = \sum_k f(\lambda_k)\, e_k e_k^\top

    The field has variance :math:`1/f(\lambda)` at eigenvalue :math:`\lambda`, so :math:`f` decides
    how much noise each spatial scale gets. It costs no more than the Laplacian.
    :class:`Fractional`, :class:`BandLimited` and :class:`MultiScale` are the named forms.

    Args:
        function: :math:`f`, elementwise on a tensor of eigenvalues. Positive, except that it may
            be zero at eigenvalue zero (Neumann, Periodic): that mode then stays under the gauge.
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
        allowed = values.isfinite() & (
            (values > 0) | ((values == 0) & (laplacian.eigenvalues == 0))
        )
        if not bool(allowed.all()):
            wrong = float(laplacian.eigenvalues[~allowed][0])
            raise ValueError(
                f"{self}: the function must be positive and finite; at eigenvalue {wrong:.4g} it "
                f"is {float(values[~allowed][0]):.4g}."
            )
        return SpectralFactor(laplacian.axes, values)

    def matrix(self, grid: Grid) -> Tensor:
        factor = self.factor(grid)
        basis = factor.basis()
        return basis * factor.spectrum() @ basis.T

    def __repr__(self) -> str:
        return f"Spectral({getattr(self.function, '__name__', self.function)}, base={self.base})"


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
            raise ValueError(f"Fractional: power and mass are at least 0; got {power} and {mass}.")
        self.power, self.mass_term = power, mass
        super().__init__(lambda eigenvalue: (eigenvalue + mass) ** power, base)

    def __repr__(self) -> str:
        return f"Fractional(power={self.power}, mass={self.mass_term}, base={self.base})"


class BandLimited(Spectral):
    r"""Noise in one band of scales: :math:`f = 1` for eigenvalues in [low, high], else ``outside``.

    The eigenvalue of a wave of p sites per period along one axis is :math:`4\sin^2(\pi/p)`.

    Args:
        low: Smallest eigenvalue of the band.
        high: Largest eigenvalue of the band.
        outside: The cost of other waves, above 1: their variance is ``1/outside`` of that inside.
        base: The Laplacian; None is the Dirichlet Laplacian.
    """

    def __init__(
        self, low: float, high: float, outside: float = 100.0, base: GridLaplacian | None = None
    ) -> None:
        if not (low < high and outside > 1):
            raise ValueError(
                "BandLimited: low is below high, and outside above 1; got "
                f"low={low}, high={high}, outside={outside}."
            )
        self.low, self.high, self.outside = low, high, outside
        super().__init__(self._cost, base)

    def _cost(self, eigenvalues: Tensor) -> Tensor:
        inside = (eigenvalues >= self.low) & (eigenvalues <= self.high)
        return torch.where(inside, 1.0, self.outside).to(eigenvalues)

    def __repr__(self) -> str:
        band = f"low={self.low}, high={self.high}, outside={self.outside}"
        return f"BandLimited({band}, base={self.base})"


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
        self.masses = tuple(positive("a mass of MultiScale", mass) for mass in masses)
        given = [1.0] * len(self.masses) if weights is None else weights
        self.weights = tuple(positive("a weight of MultiScale", weight) for weight in given)
        if not self.masses or len(self.masses) != len(self.weights):
            raise ValueError(
                f"MultiScale: one weight per mass; got {len(self.masses)} masses and "
                f"{len(self.weights)} weights."
            )
        super().__init__(self._cost, base)

    def _cost(self, eigenvalues: Tensor) -> Tensor:
        pairs = zip(self.masses, self.weights, strict=True)
        return torch.stack([w / (eigenvalues + m) for m, w in pairs]).sum(0).reciprocal()

    def __repr__(self) -> str:
        scales = f"masses={list(self.masses)}, weights={list(self.weights)}"
        return f"MultiScale({scales}, base={self.base})"


class ScalarFactor(Factor):
    r"""A multiple :math:`c I` of the identity: every site on its own."""

    def __init__(self, grid: Grid, scale: float) -> None:
        self.grid, self.scale, self.rank = grid, scale, math.prod(grid)
        self.logdet = self.rank * math.log(scale)
        self.mean_variance = 1 / scale
        self.variance = torch.full(grid, self.mean_variance, dtype=torch.float64, device="cpu")

    def spectrum(self) -> Tensor:
        return torch.full((self.rank,), self.scale, dtype=torch.float64, device="cpu")

    def green(self) -> Tensor:
        return self.spectrum().reciprocal().diag()

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        return (torch.tensor(self.scale**-0.5, device=device, dtype=dtype),)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        return white * constants[0]

    def shifted(self, mu: float) -> "ScalarFactor":
        return ScalarFactor(self.grid, self.scale + mu)


class Identity(Operator):
    r"""White noise, :math:`Q = I`: every site on its own. The control in which no geometry is
    designed.
    """

    def matrix(self, grid: Grid) -> Tensor:
        return _eye(math.prod(grid))

    def factor(self, grid: Grid) -> Factor:
        return ScalarFactor(grid, 1.0)

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        return 0.5 * at_least_float32(field).square().flatten(-axes).sum(-1)
