r"""Operators without a fast transform: block-tridiagonal Cholesky factorization in a
bandwidth-reducing order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import vjp
from torch.nn.functional import pad

from chaosgate.field.operator import Constants, Factor, Grid

if TYPE_CHECKING:  # scipy is imported where it is used: the gates of everyday use need none of it
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

MIN_BLOCK = 32
"""Smallest block of a large matrix; for smaller ones, overhead exceeds the arithmetic."""

ONE_BLOCK_UP_TO = 256
"""Up to this many sites the whole map is one n x n product."""

ASYMMETRY, ROW_SUM = 1e-10, 1e-12
"""Rounding errors allowed in a float64 matrix, relative to its largest entry: an asymmetry, and a
row sum that counts as zero.

For a matrix of lower precision they are a million times as large.
"""

PIVOT = 1e-13
"""A pivot below this, relative to the largest entry, counts as zero: the matrix is singular to
rounding.
"""


def rounding(matrix: Tensor) -> float:
    """The factor on :data:`ASYMMETRY` and :data:`ROW_SUM` for a matrix of this type."""
    return 1.0 if matrix.dtype == torch.float64 else 1e6


def symmetric(matrix: Tensor, grid: Grid, name: str) -> Tensor:
    """The matrix in float64 on the CPU, if it is symmetric and fits the grid."""
    n, allowed = math.prod(grid), ASYMMETRY * rounding(matrix)
    matrix = matrix.detach().to(device="cpu", dtype=torch.float64)
    if tuple(matrix.shape) != (n, n):
        raise ValueError(
            f"{name} on grid {tuple(grid)} needs a matrix ({n}, {n}); got shape "
            f"{tuple(matrix.shape)}. Give a matrix for this grid, or attach the gate where the "
            "feature map has that size."
        )
    if not matrix.isfinite().all():
        raise ValueError(f"{name} on grid {grid} has entries that are not finite.")
    asymmetry = float((matrix - matrix.T).abs().max())
    if asymmetry > allowed * float(matrix.abs().max()):
        raise ValueError(
            f"{name} is not symmetric on grid {grid}: entries differ by {asymmetry:.3g} from "
            "their mirror image. Use (Q + Q.T) / 2 if that is meant."
        )
    return matrix


class CholeskyFactor(Factor):
    r"""Factor of a sparse or dense symmetric matrix, with a gauge if it is singular.

    Sites are reordered so that the matrix is block-tridiagonal with diagonal blocks :math:`D_i` and
    lower blocks :math:`B_i`; a dense matrix is one block. With

    .. math:: L_i L_i^\top = D_i - C_{i-1} C_{i-1}^\top, \qquad C_i = B_i L_i^{-\top}, \qquad M_i =
        C_i L_i^{-1}

    the map :math:`A = L^{-\top}` is a backward sweep, :math:`x_i = L_i^{-\top} z_i - M_i^\top
    x_{i+1}`: only matrix products, on any device, in :math:`O(nb)` memory for blocks of size b.
    Since :math:`z_i` and :math:`x_{i+1}` are independent, the same sweep gives the variances,
    :math:`G_{ii} = (L_i L_i^\top)^{-1} + M_i^\top G_{i+1,i+1} M_i`.

    With a gauge one site is left out and stays zero. For the zero-mean gauge the mean is then
    subtracted, which is exact: with :math:`G_0` the Green kernel pinned anywhere and :math:`P` the
    projection on mean zero, :math:`Q^{+} = P G_0 P`, and the pseudo-determinant is n times the
    pinned determinant (matrix-tree theorem).

    Args:
        matrix: Symmetric (n, n), in float64.
        grid: Any grid of n sites.
        name: Name of the operator in errors.
        pinned: The site left out, or None.
        centered: Subtract the mean, because the matrix maps constants to zero. Needs ``pinned``.
    """

    def __init__(
        self,
        matrix: csr_array,
        grid: Grid,
        name: str,
        pinned: int | None = None,
        centered: bool = False,
    ) -> None:
        self.matrix, self.grid, self.name = matrix, grid, name
        self.pinned, self.centered = pinned, centered
        self.n = math.prod(grid)
        free = np.delete(np.arange(self.n), [] if pinned is None else pinned)
        self.rank = len(free)
        order, bandwidth = narrow_order(matrix, free)
        size = max(bandwidth, MIN_BLOCK)
        if self.rank <= ONE_BLOCK_UP_TO or 2 * size >= self.rank:
            size = self.rank
        self.sizes = [min(size, self.rank - start) for start in range(0, self.rank, size)]
        self._factorise(matrix[order][:, order])
        # where each site is in the factor's order; the pinned one is last
        places = np.argsort(order if pinned is None else np.append(order, pinned))
        self.places = torch.from_numpy(places)
        self.variance = self._variance()
        self.mean_variance = float(self.variance.mean())

    @classmethod
    def of_matrix(cls, matrix: Tensor, grid: Grid, name: str) -> CholeskyFactor:
        """Factorize a dense matrix, with the zero-mean gauge if it maps constants to zero."""
        from scipy.sparse import csr_array

        checked = symmetric(matrix, grid, name)
        largest = float(checked.abs().max())
        row_sum = float(checked.sum(1).abs().max())
        centered = len(checked) > 1 and row_sum <= ROW_SUM * rounding(matrix) * largest
        sparse = csr_array(((checked + checked.T) / 2).numpy())
        return cls(sparse, grid, name, pinned=0 if centered else None, centered=centered)

    def _factorise(self, matrix: csr_array) -> None:
        """The inverses of the :math:`L_i`, the :math:`M_i`, and the determinant."""
        floor = PIVOT * float(abs(matrix).max())
        self.inverses: list[Tensor] = []
        self.couplings: list[Tensor] = []
        self.logdet = math.log(self.n) if self.centered else 0.0
        schur, start = torch.zeros((), dtype=torch.float64), 0
        for size, following in zip(self.sizes, [*self.sizes[1:], 0], strict=True):
            stop = start + size
            block = torch.from_numpy(matrix[start:stop, start:stop].toarray()) - schur
            root, failed = torch.linalg.cholesky_ex(block)
            if int(failed) or float(root.diagonal().square().min()) <= floor:
                raise ValueError(
                    f"{self.name} on grid {self.grid} is not positive definite"
                    + " on the fields of mean zero" * self.centered
                    + ": every non-zero field must have positive energy. If it is a graph, "
                    "is it connected? Massive(operator, mu) lifts zero eigenvalues."
                )
            inverse = torch.linalg.solve_triangular(root, torch.eye(size).double(), upper=False)
            self.inverses.append(inverse)
            self.logdet += 2 * float(root.diagonal().log().sum())
            if following:
                below = torch.from_numpy(matrix[stop : stop + following, start:stop].toarray())
                lower = below @ inverse.T
                self.couplings.append(lower @ inverse)
                schur = lower @ lower.T
            start = stop

    def _variance(self) -> Tensor:
        kernel = torch.zeros(1, 1, dtype=torch.float64)
        couplings = [*self.couplings, kernel.expand(1, self.sizes[-1])]
        parts: list[Tensor] = []
        for inverse, coupling in reversed(list(zip(self.inverses, couplings, strict=True))):
            carried = coupling.T @ kernel @ coupling
            kernel = inverse.T @ inverse + carried
            parts.append(kernel.diagonal())
        parts[-1] = self.inverses[0].square().sum(0) + carried.diagonal()
        variance = pad(torch.cat(parts[::-1]), (0, self.n - self.rank))[self.places]
        if self.centered:  # the diagonal of P G_0 P, from the row sums of G_0
            ones = torch.ones(self.rank, dtype=torch.float64)
            adjoint = vjp(self._sweep, ones, ones)[1]  # type: ignore[no-untyped-call]
            sums = pad(self._sweep(adjoint), (0, 1))[self.places]
            variance = variance - 2 * sums / self.n + sums.sum() / self.n**2
        return variance.view(self.grid)

    def _sweep(
        self, white: Tensor, inverses: Sequence[Tensor] = (), couplings: Sequence[Tensor] = ()
    ) -> Tensor:
        """The backward sweep on free sites (..., rank), in the factor's order."""
        blocks = zip(
            torch.split(white, self.sizes, -1),
            inverses or self.inverses,
            [*(couplings or self.couplings), None],
            strict=True,
        )
        parts: list[Tensor] = []
        for part, inverse, coupling in reversed(list(blocks)):
            field = part @ inverse
            parts.append(field if coupling is None else field - parts[-1] @ coupling)
        return torch.cat(parts[::-1], -1)

    def _place(self, fields: Tensor, places: Tensor) -> Tensor:
        """Put free sites (..., rank) where they belong, (..., n), and apply the gauge."""
        fields = pad(fields, (0, self.n - self.rank))[..., places]
        return fields - fields.mean(-1, keepdim=True) if self.centered else fields

    def _root(self) -> Tensor:
        """The map as a matrix, from white noise (rows) to sites (columns)."""
        basis = torch.eye(self.n, self.rank, dtype=torch.float64, device="cpu")
        return self._place(self._sweep(basis), self.places)

    def green(self) -> Tensor:
        """The Green kernel, from the map as a matrix."""
        root = self._root()
        return root.T @ root

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The map as a matrix if there is one block; else the order of sites and the blocks."""
        if len(self.sizes) == 1:
            return (self._root().to(dtype).to(device),)
        blocks = (block.to(dtype).to(device) for block in self.inverses + self.couplings)
        return (self.places.to(device), *blocks)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        """One product, or a backward sweep over the blocks; with a gauge the last number of the
        white noise is not used.
        """
        if len(self.sizes) == 1:
            return white @ constants[0]
        places, blocks, count = constants[0], constants[1:], len(self.sizes)
        fields = self._sweep(white[..., : self.rank], blocks[:count], blocks[count:])
        return self._place(fields, places)

    def shifted(self, mu: float) -> CholeskyFactor:
        """A mass replaces the zero-mean gauge; an explicitly pinned site stays pinned, without
        mass.
        """
        from scipy.sparse import csr_array, diags_array

        pinned = None if self.centered else self.pinned
        masses = np.full(self.n, mu)
        if pinned is not None:
            masses[pinned] = 0.0
        matrix = csr_array(self.matrix + diags_array(masses))
        return CholeskyFactor(matrix, self.grid, f"massive {self.name}", pinned)


def narrow_order(matrix: csr_array, sites: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """The given or the reverse Cuthill-McKee order of the sites, whichever has the smaller
    bandwidth, and this bandwidth.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    def bandwidth(order: NDArray[np.int64]) -> int:
        rows, columns = matrix[order][:, order].nonzero()
        return int(abs(rows - columns).max(initial=0))

    inner = csr_array(matrix[sites][:, sites])
    narrow = sites[reverse_cuthill_mckee(inner, symmetric_mode=True)]
    order = min(sites, narrow, key=bandwidth)
    return order, bandwidth(order)
