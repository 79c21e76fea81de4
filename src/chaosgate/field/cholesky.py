r"""Operators without a fast transform: block-tridiagonal Cholesky factorisation in a bandwidth-reducing order."""

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from chaosgate.field.factor import Constants, Factor, Grid

MIN_BLOCK = 32
"""Smallest block: below it, calling a product costs more than its arithmetic."""

ONE_BLOCK_SITES = 256
"""Up to this many sites the whole map is one product; measured, see ``chaosgate.bench.field``."""

SYMMETRY_TOLERANCE = 1e-10
"""Relative asymmetry, and relative size of Q applied to the constants, that count as rounding."""


class CholeskyFactor(Factor):
    r"""Factor of a sparse or dense symmetric matrix, with an optional gauge.

    Sites are reordered so that the matrix is block-tridiagonal with diagonal blocks :math:`D_i` and lower blocks
    :math:`B_i`; a dense matrix is one block. With

    .. math:: L_i L_i^\top = D_i - C_{i-1} C_{i-1}^\top, \qquad C_i = B_i L_i^{-\top}

    the map :math:`A = L^{-\top}` is a backward sweep over the blocks, :math:`x_i = L_i^{-\top} z_i - M_i^\top x_{i+1}`
    with :math:`M_i = C_i L_i^{-1}`: matrix products alone, on any device, in :math:`O(n b)` memory for bandwidth b.

    Under a gauge one site is left out of the factorisation. Pinned, it stays zero. For the zero-mean gauge the spatial
    mean is then subtracted, which is exact: if Q annihilates the constants only, and :math:`G_0` is the Green kernel
    pinned anywhere, :math:`Q^{+} = P G_0 P` with :math:`P` the projection on mean zero, and the pseudo-determinant is
    n times the pinned determinant (matrix-tree theorem).

    Args:
        matrix: Symmetric (n, n).
        grid: Height and width, H W = n.
        name: How errors call the operator.
        pinned: The site left out, or None.
        centered: Subtract the mean: ``matrix`` annihilates the constants.
    """

    def __init__(self, matrix: csr_array, grid: Grid, name: str, pinned: int | None = None, centered: bool = False):
        n = matrix.shape[0]
        self.grid, self.name, self.pinned, self.centered, self.csr = grid, name, pinned, centered, matrix
        self.rank = n - (pinned is not None)
        free = np.delete(np.arange(n), [] if pinned is None else pinned)
        self.order, width = _narrow_order(matrix, free)
        size = max(width, MIN_BLOCK)
        if self.rank <= ONE_BLOCK_SITES or 2 * size >= self.rank:
            size = self.rank
        self.bounds = [(start, min(start + size, self.rank)) for start in range(0, self.rank, size)]
        self._factorise(coo_array(matrix[self.order][:, self.order]).tocsr())

    @classmethod
    def of_matrix(cls, matrix: Tensor, grid: Grid, name: str) -> "CholeskyFactor":
        """Check a dense matrix and factorise it, under the zero-mean gauge if it annihilates the constants."""
        n = grid[0] * grid[1]
        matrix = torch.as_tensor(matrix, dtype=torch.float64, device="cpu")
        if tuple(matrix.shape) != (n, n):
            raise ValueError(f"{name} on grid {grid} needs a matrix ({n}, {n}); got {tuple(matrix.shape)}.")
        if not bool(matrix.isfinite().all()):
            raise ValueError(f"{name} on grid {grid} has entries that are not finite.")
        size = float(matrix.abs().max())
        asymmetry = float((matrix - matrix.T).abs().max())
        if asymmetry > SYMMETRY_TOLERANCE * size:
            raise ValueError(
                f"{name} is not symmetric on grid {grid}: entries differ by {asymmetry:.3g} from their mirror image. "
                "Only the symmetric part of an operator has an energy; use (Q + Q.T) / 2."
            )
        sparse = csr_array(((matrix + matrix.T) / 2).numpy())
        null = float(matrix.sum(1).abs().max()) <= SYMMETRY_TOLERANCE * size
        return cls(sparse, grid, name, pinned=0 if null else None, centered=null)

    def _factorise(self, matrix: csr_array) -> None:
        self.diagonal: list[Tensor] = []
        self.inverse: list[Tensor] = []  # L_i^{-1}
        self.coupling: list[Tensor] = []  # M_i
        lower: Tensor | None = None
        floor = 1e-13 * float(abs(matrix.diagonal()).max(initial=0.0))
        for index, (start, stop) in enumerate(self.bounds):
            block = torch.from_numpy(matrix[start:stop, start:stop].toarray())
            if lower is not None:
                block = block - lower @ lower.T
            root, failed = torch.linalg.cholesky_ex(block)
            if int(failed) or float(root.diagonal().square().min()) <= floor:
                raise ValueError(self._not_definite())
            inverse = torch.linalg.solve_triangular(root, torch.eye(len(root), dtype=root.dtype), upper=False)
            self.diagonal.append(root.diagonal())
            self.inverse.append(inverse)
            if index + 1 < len(self.bounds):
                after = self.bounds[index + 1]
                lower = torch.from_numpy(matrix[after[0] : after[1], start:stop].toarray()) @ inverse.T
                self.coupling.append(lower @ inverse)

    def _not_definite(self) -> str:
        if self.centered:
            return (
                f"{self.name} on grid {self.grid} annihilates the constants and more (or is indefinite): the zero-mean "
                "gauge fixes one direction only. Is the graph connected? Massive(operator, mu) lifts every zero."
            )
        return (
            f"{self.name} is not positive definite on grid {self.grid}: its energy must be positive for every field "
            "that is not zero. Massive(operator, mu) lifts zero eigenvalues; negative ones are not an energy."
        )

    def _dense(self) -> Tensor:
        return torch.from_numpy(self.csr.toarray())

    def spectrum(self) -> Tensor:
        values = torch.linalg.eigvalsh(self._dense())
        values[: len(values) - self.rank] = 0.0
        return values

    def green(self) -> Tensor:
        n = len(self._dense())
        root = self.color(
            torch.eye(n, dtype=torch.float64).view(n, *self.grid),
            self.constants(torch.device("cpu"), torch.float64),
        ).view(n, n)
        return root.T @ root

    def variance(self) -> Tensor:
        return self.green().diagonal().view(self.grid)

    def logdet(self) -> float:
        value = 2 * sum(float(diagonal.log().sum()) for diagonal in self.diagonal)
        return value + float(np.log(self.rank + 1)) if self.centered else value

    def constants(self, device: torch.device, dtype: torch.dtype) -> Constants:
        places = torch.from_numpy(np.argsort(self.order)).to(device)
        blocks = [block.to(device=device, dtype=dtype) for block in self.inverse + self.coupling]
        return (places, *blocks)

    def color(self, white: Tensor, constants: Constants) -> Tensor:
        places, blocks = constants[0], constants[1:]
        count = len(self.bounds)
        flat = white.flatten(-2)[..., : self.rank]
        parts: list[Tensor] = []
        for index in reversed(range(count)):
            start, stop = self.bounds[index]
            part = flat[..., start:stop] @ blocks[index]
            if parts:
                part = part - parts[-1] @ blocks[count + index]
            parts.append(part)
        field = torch.cat(parts[::-1], -1)[..., places]
        if self.pinned is not None:
            zero = torch.zeros_like(field[..., :1])
            field = torch.cat([field[..., : self.pinned], zero, field[..., self.pinned :]], -1)
        if self.centered:
            field = field - field.mean(-1, keepdim=True)
        return field.view(white.shape)

    def shifted(self, mu: float) -> "CholeskyFactor":
        n = self.csr.shape[0]
        shift = csr_array((np.full(n, mu), (np.arange(n), np.arange(n))), shape=(n, n))
        return CholeskyFactor(csr_array(self.csr + shift), self.grid, f"Massive({self.name}, mu={mu})")


def _narrow_order(matrix: csr_array, free: np.ndarray) -> tuple[np.ndarray, int]:
    """The given order of the sites or the reverse Cuthill-McKee order, whichever is narrower, and its bandwidth."""
    inner = matrix[free][:, free]
    other = free[reverse_cuthill_mckee(csr_array(inner), symmetric_mode=True)]
    return min(((order, _bandwidth(matrix[order][:, order])) for order in (free, other)), key=lambda pair: pair[1])


def _bandwidth(matrix: csr_array) -> int:
    entries = coo_array(matrix)
    return int(abs(entries.row - entries.col).max(initial=0))
