"""What an operator becomes on one grid: the numbers and the linear map that every law, gate and probe is built from."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from chaosgate.field.arguments import Grid
from chaosgate.field.axis import Axis

Constants = tuple[Tensor, ...]
"""What a sampler multiplies with, already in the dtype and on the device of the white noise."""

COMBINED_UP_TO = 128
"""Up to this many sites the scale and all transforms are one n x n product.

Measured on one CPU thread with 64 fields in float32: on 7 x 7 and 10 x 10 it takes half the time of one product per
axis, on 14 x 14 more than they do.
"""

CHUNK_SITES = 1 << 18
"""On a CPU, fields are transformed this many sites at a time, so that intermediate results stay in its cache."""


class Factor(ABC):
    r"""An operator :math:`Q` solved on one grid: spectrum, Green kernel, and a root of the Green kernel.

    Everything here is float64 on the CPU; only :meth:`constants` moves to another dtype or device.

    Attributes:
        grid: Sites along each axis.
        rank: Number of free directions: all n sites, or one fewer under a gauge.
        logdet: Logarithm of the product of the non-zero eigenvalues.
        variance: The diagonal of the Green kernel as a map, of the shape of the grid.
        mean_variance: Its mean.
    """

    grid: Grid
    rank: int
    logdet: float
    variance: Tensor
    mean_variance: float

    @abstractmethod
    def spectrum(self) -> Tensor:
        """All n eigenvalues, shape (n,); exactly zero on the direction that a gauge removes."""

    @abstractmethod
    def green(self) -> Tensor:
        r"""The (Moore-Penrose) inverse :math:`G = Q^{+}`, shape (n, n)."""

    @abstractmethod
    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The tensors that :meth:`color` needs; the caller keeps them.

        Cast before they move: not every device has float64.
        """

    @abstractmethod
    def color(self, white: Tensor, constants: Constants) -> Tensor:
        r"""Map white noise (B, \*grid) by :math:`A` with :math:`A A^\top = G`; torch alone, no wait for the host."""

    @abstractmethod
    def shifted(self, mu: float) -> "Factor":
        r"""The factor of :math:`Q + \mu I`, of the same structure."""


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


class SpectralFactor(Factor):
    r"""Operators that a product of one-dimensional bases diagonalises (paper, eq. dirichlet-eigs, alg. gch).

    On two axes the eigenvalues are :math:`\lambda_{k\ell} = p\,a_k + q\,b_\ell + \mu` with eigenvectors
    :math:`e_k \otimes f_\ell`, and white noise is read as spectral coefficients,
    :math:`\psi = E\,(Z \odot \lambda^{-1/2})\,F^\top`; on one or three axes the same. Memory is linear in the number of
    sites. The mode with eigenvalue zero, if there is one, gets no noise: that is the zero-mean gauge.

    Args:
        axes: The bases, one per axis.
        weights: Edge weights of the axes.
        shift: The mass :math:`\mu`.
    """

    def __init__(self, axes: Sequence[Axis], weights: Sequence[float], shift: float = 0.0) -> None:
        self.axes, self.weights, self.shift = tuple(axes), tuple(weights), shift
        self.grid = tuple(axis.n for axis in axes)
        self.n = math.prod(self.grid)
        lines = [weight * axis.eigenvalues() for axis, weight in zip(axes, weights, strict=True)]
        self.eigenvalues: Tensor = (
            reduce(lambda total, line: total[..., None] + line, lines) + shift
        )
        gauge = all(axis.has_zero_mode for axis in axes) and shift == 0.0
        self.rank = self.n - gauge
        self.inverses = self.eigenvalues.reciprocal()
        if gauge:
            self.inverses.view(-1)[0] = 0.0
        self.logdet = float(self.spectrum()[-self.rank :].log().sum())
        variance = self.inverses
        for index, axis in enumerate(self.axes):
            variance = axis.power(self._seen_from(index, variance))
        self.variance = variance.reshape(self.grid).contiguous()
        self.mean_variance = float(self.inverses.mean())
        self.combined = self.n <= COMBINED_UP_TO

    def _seen_from(self, index: int, fields: Tensor) -> Tensor:
        """Fields as (outer, n, inner) around one axis."""
        return fields.reshape(-1, self.grid[index], math.prod(self.grid[index + 1 :]))

    def spectrum(self) -> Tensor:
        """In the order of the frequencies, the last axis fastest."""
        return self.eigenvalues.flatten()

    def green(self) -> Tensor:
        """From the full basis; nothing else builds it, except on the smallest grids."""
        basis = self._full_basis()
        return basis * self.inverses.flatten() @ basis.T

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The combined map; or the scale, in the order in which the axes take their frequencies, and their bases."""
        scale = self.inverses.sqrt()
        if self.combined:
            tensors = [(self._full_basis() * scale.flatten()).T.contiguous()]
        else:
            for dim, axis in enumerate(self.axes):
                scale = scale.index_select(dim, axis.order())
            tensors = [scale, *(axis.constant() for axis in self.axes)]
        return tuple(
            tensor.to(dtype.to_complex() if tensor.is_complex() else dtype).to(device)
            for tensor in tensors
        )

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        """One product on the smallest grids, one or two per axis on the next, FFTs on the largest."""
        if self.combined:
            return white.flatten(1).mm(constants[0]).view(white.shape)
        step = max(1, CHUNK_SITES // self.n)
        if white.device.type != "cpu" or torch.compiler.is_compiling() or len(white) <= step:
            return self._by_axes(white, constants)
        out = torch.empty_like(white)
        for start in range(0, len(white), step):
            out[start : start + step] = self._by_axes(white[start : start + step], constants)
        return out

    def shifted(self, mu: float) -> "SpectralFactor":
        """Shifts every eigenvalue; the basis stays."""
        return SpectralFactor(self.axes, self.weights, self.shift + mu)

    def _full_basis(self) -> Tensor:
        return reduce(torch.kron, (axis.basis() for axis in self.axes))

    def _by_axes(self, white: Tensor, constants: Constants) -> Tensor:
        fields = white * constants[0]
        for index in reversed(range(len(self.axes))):
            fields = self.axes[index].synthesize(
                self._seen_from(index, fields), constants[1 + index]
            )
        return fields.reshape(white.shape)


class PinnedFactor(Factor):
    r"""A factor whose field is held at zero on one more site :math:`x_0`.

    The field loses what its value at the site tells about the others, :math:`\psi - k\,\psi(x_0)`. Where the constants
    cost nothing, :math:`k = 1`; elsewhere :math:`k = G(\cdot, x_0)/G(x_0, x_0)`, the conditional mean.
    The determinant is the Schur complement's: the product of the non-zero eigenvalues divided by n, or multiplied by
    :math:`G(x_0, x_0)`.

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
        r""":math:`G e_{x_0} = A A^\top e_{x_0}`; the adjoint of the linear map :math:`A` is its derivative."""
        constants = self.inside.constants(torch.device("cpu"), torch.float64)
        with torch.enable_grad():
            white = torch.zeros(1, *self.grid, dtype=torch.float64, requires_grad=True)
            (adjoint,) = torch.autograd.grad(
                self.inside.color(white, constants).flatten()[self.site], white
            )
        return self.inside.color(adjoint, constants).flatten().detach()

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
        fields = self.inside.color(white, constants[1:]).flatten(1)
        return (fields - fields[:, self.site, None] * constants[0]).view(white.shape)

    def shifted(self, mu: float) -> "PinnedFactor":
        """The mass goes inside: it is struck out at the pinned site with everything else."""

        def matrix() -> Tensor:
            masses = torch.full((math.prod(self.grid),), mu, dtype=torch.float64)
            masses[self.site] = 0.0
            return self._matrix() + masses.diag()

        return PinnedFactor(self.inside.shifted(mu), self.site, matrix)
