r"""Operators without a fast transform: block-tridiagonal Cholesky factorisation in a
bandwidth-reducing order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from chaosgate.field.operator import Constants, Factor, Grid

if TYPE_CHECKING:  # scipy is imported where it is used: the gates of everyday use need none of it
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

MIN_BLOCK = 32
"""Smallest block of a large matrix: below it, calling a product costs more than its arithmetic."""

ONE_BLOCK_UP_TO = 256
"""Up to this many sites the whole map is one n x n product."""

ASYMMETRY, ROW_SUM = 1e-10, 1e-12
"""What counts as rounding in a float64 matrix, relative to its largest entry: an asymmetry, a row
sum that means zero.

A matrix computed in a shorter type is allowed a million times as much.
"""

PIVOT = 1e-13
"""A pivot below this, relative to the largest entry, counts as zero: the matrix is singular to
rounding.
"""


class CholeskyFactor(Factor):
    r"""Factor of a sparse or dense symmetric matrix, if need be under a gauge.

    Sites are reordered so that the matrix is block-tridiagonal with diagonal blocks :math:`D_i` and
    lower blocks :math:`B_i`; a dense matrix is one block. With

    .. math:: L_i L_i^\top = D_i - C_{i-1} C_{i-1}^\top, \qquad C_i = B_i L_i^{-\top}, \qquad M_i =
        C_i L_i^{-1}

    the map :math:`A = L^{-\top}` is a backward sweep, :math:`x_i = L_i^{-\top} z_i - M_i^\top
    x_{i+1}`: matrix products alone, on any device, in :math:`O(nb)` memory for blocks of size b.
    Since :math:`z_i` and :math:`x_{i+1}` are independent, the same sweep gives the variances,
    :math:`G_{ii} = (L_i L_i^\top)^{-1} + M_i^\top G_{i+1,i+1} M_i`.

    Under a gauge one site is left out and stays zero. For the zero-mean gauge the mean is then
    subtracted, which is
    exact: with :math:`G_0` the Green kernel pinned anywhere and :math:`P` the projection on mean
        zero,
    :math:`Q^{+} = P G_0 P`, and the pseudo-determinant is n times the pinned determinant
    (matrix-tree theorem).

    Args:
        matrix: Symmetric (n, n), in float64.
        grid: Any grid of n sites.
        name: How errors call the operator.
        pinned: The site left out, or None.
        centered: The matrix annihilates the constants: subtract the mean. Needs a ``pinned`` site.
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
        self.rank = self.n - (pinned is not None)
        free = np.delete(np.arange(self.n), [] if pinned is None else pinned)
        self.order, bandwidth = narrow_order(matrix, free)
        size = max(bandwidth, MIN_BLOCK)
        if self.rank <= ONE_BLOCK_UP_TO or 2 * size >= self.rank:
            size = self.rank
        self.bounds = [(start, min(start + size, self.rank)) for start in range(0, self.rank, size)]
        self.inverses, self.couplings, self.logdet = self._factorise()
        if centered:
            self.logdet += math.log(self.n)
        self.variance = self._variance()
        self.mean_variance = float(self.variance.mean())

    @classmethod
    def of_matrix(cls, matrix: Tensor, grid: Grid, name: str) -> CholeskyFactor:
        """Check a dense matrix and factorise it, under the zero-mean gauge if it annihilates the
        constants.
        """
        n = math.prod(grid)
        coarse = 1.0 if matrix.dtype == torch.float64 else 1e6
        matrix = matrix.detach().to(device="cpu", dtype=torch.float64)
        if tuple(matrix.shape) != (n, n):
            raise ValueError(
                f"{name} on grid {grid} needs a matrix ({n}, {n}); got {tuple(matrix.shape)}."
            )
        if not bool(matrix.isfinite().all()):
            raise ValueError(f"{name} on grid {grid} has entries that are not finite.")
        size = float(matrix.abs().max())
        asymmetry = float((matrix - matrix.T).abs().max())
        if asymmetry > ASYMMETRY * coarse * size:
            raise ValueError(
                f"{name} is not symmetric on grid {grid}: entries differ by {asymmetry:.3g} from "
                "their mirror image. Use (Q + Q.T) / 2 if that is meant."
            )
        annihilates = n > 1 and float(matrix.sum(1).abs().max()) <= ROW_SUM * coarse * size
        from scipy.sparse import csr_array

        sparse = csr_array(((matrix + matrix.T) / 2).numpy())
        return cls(sparse, grid, name, pinned=0 if annihilates else None, centered=annihilates)

    def _factorise(self) -> tuple[list[Tensor], list[Tensor], float]:
        matrix = self.matrix[self.order][:, self.order]
        floor = PIVOT * float(abs(matrix).max())
        inverses: list[Tensor] = []
        couplings: list[Tensor] = []
        logdet = 0.0
        schur = torch.zeros((), dtype=torch.float64, device="cpu")
        for start, stop in self.bounds:
            block = torch.from_numpy(matrix[start:stop, start:stop].toarray()) - schur
            root, failed = torch.linalg.cholesky_ex(block)
            if int(failed) or float(root.diagonal().square().min()) <= floor:
                raise ValueError(self._not_definite())
            inverse = torch.linalg.solve_triangular(
                root, torch.eye(stop - start, dtype=torch.float64), upper=False
            )
            inverses.append(inverse)
            logdet += 2 * float(root.diagonal().log().sum())
            if stop < self.rank:
                size = self.bounds[0][1]  # of every block but perhaps the last
                lower = (
                    torch.from_numpy(matrix[stop : stop + size, start:stop].toarray()) @ inverse.T
                )
                couplings.append(lower @ inverse)
                schur = lower @ lower.T
        return inverses, couplings, logdet

    def _not_definite(self) -> str:
        if self.centered:
            return (
                f"{self.name} on grid {self.grid} annihilates the constants, and is zero or "
                "negative on another field too; the zero-mean gauge fixes one direction only. Is "
                "the graph connected?"
            )
        return (
            f"{self.name} is not positive definite on grid {self.grid}: every field other than "
            "zero must have positive energy. Massive(operator, mu) lifts zero eigenvalues."
        )

    def _variance(self) -> Tensor:
        parts: list[Tensor] = []
        kernel = torch.zeros((), dtype=torch.float64, device="cpu")
        for index in reversed(range(len(self.bounds))):
            inverse = self.inverses[index]
            carried = self.couplings[index].T @ kernel @ self.couplings[index] if parts else kernel
            if index == 0:  # only its diagonal is wanted, and it may be the whole matrix
                parts.append(inverse.square().sum(0) + (carried.diagonal() if parts else carried))
            else:
                kernel = inverse.T @ inverse + carried
                parts.append(kernel.diagonal())
        variance = torch.zeros(self.n, dtype=torch.float64, device="cpu")
        variance[torch.from_numpy(self.order)] = torch.cat(parts[::-1])
        if self.centered:  # diagonal of P G_0 P
            sums = self._apply_green(torch.ones(self.n, dtype=torch.float64, device="cpu"))
            variance = variance - 2 * sums / self.n + sums.sum() / self.n**2
        return variance.view(self.grid)

    def _apply_green(self, vector: Tensor) -> Tensor:
        """The pinned Green kernel times a vector, by the sweep of :meth:`color` and its adjoint."""
        ordered = vector[torch.from_numpy(self.order)]
        remaining = [ordered[start:stop] for start, stop in self.bounds]
        for index, coupling in enumerate(self.couplings):
            remaining[index + 1] = remaining[index + 1] - coupling @ remaining[index]
        white = torch.cat(
            [inverse @ part for inverse, part in zip(self.inverses, remaining, strict=True)]
        )
        result = torch.zeros_like(vector)
        result[torch.from_numpy(self.order)] = self._sweep(white, self.inverses, self.couplings)
        return result

    def _sweep(self, white: Tensor, inverses: list[Tensor], couplings: list[Tensor]) -> Tensor:
        parts: list[Tensor] = []
        for index in reversed(range(len(self.bounds))):
            start, stop = self.bounds[index]
            part = white[..., start:stop] @ inverses[index]
            parts.append(part - parts[-1] @ couplings[index] if parts else part)
        return torch.cat(parts[::-1], -1)

    def _place(self, fields: Tensor, places: Tensor) -> Tensor:
        """Put free sites (..., rank) where they belong, (..., n), and apply the gauge."""
        if self.pinned is not None:
            fields = torch.nn.functional.pad(
                fields, (0, 1)
            )  # the pinned site, last in the factor's order
        fields = fields[..., places]
        return fields - fields.mean(-1, keepdim=True) if self.centered else fields

    def _places(self) -> Tensor:
        order = self.order if self.pinned is None else np.append(self.order, self.pinned)
        return torch.from_numpy(np.argsort(order))

    def _root(self) -> Tensor:
        """The map as a matrix, from white noise (rows) to sites (columns)."""
        if len(self.bounds) == 1:
            root = torch.nn.functional.pad(self.inverses[0], (0, 0, 0, self.n - self.rank))
        else:
            basis = torch.eye(self.n, self.rank, dtype=torch.float64, device="cpu")
            root = self._sweep(basis, self.inverses, self.couplings)
        return self._place(root, self._places())

    def spectrum(self) -> Tensor:
        """Ascending, from the dense matrix."""
        values: Tensor = torch.linalg.eigvalsh(torch.from_numpy(self.matrix.toarray()))
        return torch.cat(
            [torch.zeros(self.n - self.rank, dtype=values.dtype), values[self.n - self.rank :]]
        )

    def green(self) -> Tensor:
        """From the map as a matrix."""
        root = self._root()
        return root.T @ root

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        """The map as a matrix if there is one block; else where the sites belong, and the
        blocks.
        """
        if len(self.bounds) == 1:
            return (self._root().to(dtype).to(device),)
        blocks = (block.to(dtype).to(device) for block in self.inverses + self.couplings)
        return (self._places().to(device), *blocks)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        """One product, or a backward sweep over the blocks; under a gauge the last number of the
        white is not used.
        """
        if len(self.bounds) == 1:
            return white @ constants[0]
        places, blocks = constants[0], list(constants[1:])
        count = len(self.bounds)
        fields = self._sweep(white[..., : self.rank], blocks[:count], blocks[count:])
        return self._place(fields, places)

    def shifted(self, mu: float) -> CholeskyFactor:
        """A mass takes the place of the zero-mean gauge; a site pinned on purpose stays pinned,
        without mass.
        """
        pinned = None if self.centered else self.pinned
        masses = np.full(self.n, mu)
        if pinned is not None:
            masses[pinned] = 0.0
        from scipy.sparse import csr_array, diags_array

        return CholeskyFactor(
            csr_array(self.matrix + diags_array(masses)), self.grid, f"massive {self.name}", pinned
        )


def narrow_order(matrix: csr_array, sites: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """The given order of the sites or its reverse Cuthill-McKee order, whichever is narrower, and
    its bandwidth.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    inner = csr_array(matrix[sites][:, sites])
    orders = [sites, sites[reverse_cuthill_mckee(inner, symmetric_mode=True)]]
    widths = []
    for order in orders:
        rows, columns = matrix[order][:, order].nonzero()
        widths.append(int(abs(rows - columns).max(initial=0)))
    narrow = widths[1] < widths[0]
    return orders[narrow], widths[narrow]
