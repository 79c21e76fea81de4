"""A grid with a weight on every edge (paper, sec. dgff)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from chaosgate.field.arguments import Grid, as_grid, as_weights
from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.factor import Factor
from chaosgate.field.graph import Graph
from chaosgate.field.operator import Operator, at_least_float32


class EdgeWeighted(Operator):
    r"""Dirichlet Laplacian of one grid with a positive weight on every edge (eq. dirichlet_laplacian).

    .. math:: (Q\psi)(x) = \sum_{y \sim x} c_{xy}\,(\psi(x) - \bar\psi(y))

    with :math:`\bar\psi = 0` on the outer boundary. Heavy edges tie sites together; light ones let the field tear.

    Args:
        vertical: Weights (H + 1, W) of the edges that join rows: entry (i, j) joins rows i - 1 and i, counted from
            0, so that the first and the last row of weights lead to the boundary.
        horizontal: Weights (H, W + 1) of the edges that join columns, likewise.
    """

    def __init__(
        self, vertical: Tensor | Sequence[Sequence[float]], horizontal: Tensor | Sequence[Sequence[float]]
    ) -> None:
        self.vertical, self.horizontal = as_weights("vertical", vertical), as_weights("horizontal", horizontal)
        shapes = tuple(self.vertical.shape), tuple(self.horizontal.shape)
        self.grid: Grid = (shapes[0][0] - 1, shapes[1][-1] - 1)
        if shapes != ((self.grid[0] + 1, self.grid[1]), (self.grid[0], self.grid[1] + 1)):
            raise ValueError(
                "the edge weights of an H x W grid have shapes (H + 1, W) and (H, W + 1); "
                f"got vertical {shapes[0]} and horizontal {shapes[1]}."
            )

    def graph(self) -> Graph:
        """The same operator as a graph, with every site on the rim tied to the boundary."""
        site = torch.arange(self.grid[0] * self.grid[1]).view(self.grid)
        down = torch.stack([site[:-1].flatten(), site[1:].flatten()], 1)
        right = torch.stack([site[:, :-1].flatten(), site[:, 1:].flatten()], 1)
        weights = torch.cat([self.vertical[1:-1].flatten(), self.horizontal[:, 1:-1].flatten()])
        ends = torch.cat([site[0], site[-1], site[:, 0], site[:, -1]]).tolist()
        ties = [self.vertical[0], self.vertical[-1], self.horizontal[:, 0], self.horizontal[:, -1]]
        boundary = list(zip(ends, torch.cat(ties).tolist(), strict=True))
        return Graph(torch.cat([down, right]), weights, boundary, num_vertices=site.numel())

    def matrix(self, grid: Grid) -> Tensor:
        """The matrix of :meth:`graph`."""
        self._on(grid)
        return torch.from_numpy(self.graph().laplacian().toarray())

    def factor(self, grid: Grid) -> Factor:
        """Sparse: the bandwidth is the shorter side of the grid."""
        self._on(grid)
        return CholeskyFactor(self.graph().laplacian(), grid, str(self))

    def energy(self, field: Tensor) -> Tensor:
        """Weighted squared differences over the edges (eq. dirichlet-energy); no matrix."""
        self._on(as_grid(field.shape[-2:]))
        field = at_least_float32(field)
        down = self.vertical.to(field) * pad(field, (0, 0, 1, 1)).diff(dim=-2).square()
        right = self.horizontal.to(field) * pad(field, (1, 1)).diff(dim=-1).square()
        return 0.5 * (down.sum((-2, -1)) + right.sum((-2, -1)))

    def _on(self, grid: Grid) -> None:
        if tuple(grid) != self.grid:
            raise ValueError(
                f"{self} was given weights for its own grid only; asked for grid {tuple(grid)}. "
                "Give weights of that size, or attach the gate where the feature map fits."
            )

    def __repr__(self) -> str:
        return f"EdgeWeighted(grid={self.grid})"
