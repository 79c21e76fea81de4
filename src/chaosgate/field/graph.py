"""Operators of weighted graphs (tokens, meshes, anything that has neighbours), and of grids with weighted edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from chaosgate.field.arguments import Grid, Weights, as_weights
from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.factor import Factor
from chaosgate.field.operator import Operator, at_least_float32, grid_of_field

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Boundary = Mapping[int, float] | Sequence[int] | Sequence[Sequence[float]]


class Graph(Operator):
    r"""Laplacian of a connected weighted graph with a gauge (paper, sec. dgff, and app. variational_derivation).

    .. math:: \tfrac12\langle\psi, Q\psi\rangle
        = \tfrac12\sum_{\{x, y\}} c_{xy} (\psi_x - \psi_y)^2 + \tfrac12\sum_x b_x \psi_x^2

    One of three things makes it invertible. A boundary: vertex x is tied with weight :math:`b_x` to a place held at
    zero. A pinned vertex, itself held at zero: its row and column of :math:`Q` are zero and fields vanish there. By
    default the zero-mean gauge: fields have mean zero and the Green kernel is the Moore-Penrose inverse.

    The n vertices are the sites of any grid of n sites, the last axis fastest; (n,) is the natural one.

    Args:
        edges: Pairs of vertices, shape (m, 2), numbered from 0. Edges named twice add up.
        weights: One positive weight per edge; 1 by default.
        boundary: Vertices tied to zero: a mapping from vertex to weight, a list of [vertex, weight], or a list of
            vertices (weight 1).
        pinned: The vertex held at zero.
        num_vertices: Number of vertices; by default one more than the largest in ``edges``.
    """

    def __init__(
        self,
        edges: Tensor | Sequence[Sequence[int]],
        weights: Tensor | Sequence[float] | None = None,
        boundary: Boundary | None = None,
        pinned: int | None = None,
        num_vertices: int | None = None,
    ) -> None:
        self.edges = torch.as_tensor(edges, device="cpu").detach().clone()
        if self.edges.numel() == 0:
            self.edges = torch.zeros(0, 2, dtype=torch.int64, device="cpu")
        if self.edges.ndim != 2 or self.edges.shape[1] != 2 or self.edges.is_floating_point():
            raise ValueError(
                f"edges are pairs of whole numbers, shape (m, 2); got {tuple(self.edges.shape)}."
            )
        self.edges = self.edges.long()
        largest = int(self.edges.max()) if len(self.edges) else -1
        self.num_vertices = largest + 1 if num_vertices is None else num_vertices
        if self.num_vertices < 1:
            raise ValueError(
                f"edges join vertices, of which a graph has at least one; got {len(self.edges)} edges and "
                f"num_vertices={num_vertices}."
            )
        self.weights = as_weights(
            "edge weights", torch.ones(len(self.edges)) if weights is None else weights
        )
        self.boundary = _boundary_weights(boundary, self.num_vertices)
        self.pinned = pinned
        self._check()

    def _check(self) -> None:
        n = self.num_vertices
        outside = self.edges[((self.edges < 0) | (self.edges >= n)).any(1)]
        if n < 1 or len(outside):
            raise ValueError(
                f"edges join vertices 0 to {n - 1} (num_vertices={n}); got {outside[:3].tolist()}."
            )
        if self.weights.shape != (len(self.edges),):
            raise ValueError(
                f"{len(self.edges)} edges need as many weights; got shape {tuple(self.weights.shape)}."
            )
        loops = self.edges[self.edges[:, 0] == self.edges[:, 1]]
        if len(loops):
            raise ValueError(
                f"edges: vertex {int(loops[0, 0])} has an edge to itself, which costs no energy. Leave it out."
            )
        if self.pinned is not None and bool(self.boundary.any()):
            raise ValueError(
                "a graph with a boundary needs no pinned vertex. Give boundary or pinned, not both."
            )
        if self.pinned is not None and not 0 <= self.pinned < n:
            raise ValueError(
                f"cannot pin vertex {self.pinned}: the graph has vertices 0 to {n - 1}."
            )
        if n == 1 and not bool(self.boundary.any()):
            raise ValueError("one vertex without a boundary carries no field: the gauge fixes it.")
        # The boundary counts as one more vertex: parts of the graph may hang together through it.
        tied = self.boundary.nonzero().flatten()
        ends = torch.cat([self.edges, torch.stack([tied, torch.full_like(tied, n)], 1)]).numpy()
        size = n + bool(len(tied))
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        adjacency = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(size, size))
        parts = connected_components(adjacency, directed=False, return_labels=False)
        if parts > 1:
            raise ValueError(
                f"the graph is not connected: it has {parts} parts, of which a gauge can fix one. Join them with "
                "edges, tie each of them to a boundary, or use one operator per part."
            )

    def laplacian(self) -> csr_array:
        """The operator as a sparse (n, n) matrix."""
        from scipy.sparse import csr_array, diags_array

        n = self.num_vertices
        first, second = self.edges.T.numpy()
        off = csr_array((self.weights.numpy(), (first, second)), shape=(n, n))
        off = off + off.T
        full = diags_array(off.sum(1) + self.boundary.numpy()) - off
        free = diags_array(self.mass((n,)).numpy())
        return csr_array(free @ full @ free)

    def _on(self, grid: Grid) -> None:
        if math.prod(grid) != self.num_vertices:
            n = self.num_vertices
            raise ValueError(
                f"{self} lives on grids of {n} sites, such as ({n},); grid {tuple(grid)} is another size."
            )

    def mass(self, grid: Grid) -> Tensor:
        """One everywhere but at the pinned vertex."""
        mass = super().mass(grid)
        if self.pinned is not None:
            mass.view(-1)[self.pinned] = 0.0
        return mass

    def matrix(self, grid: Grid) -> Tensor:
        """The dense form of :meth:`laplacian`."""
        self._on(grid)
        return torch.from_numpy(self.laplacian().toarray())

    def factor(self, grid: Grid) -> Factor:
        """Sparse, in an order of small bandwidth."""
        self._on(grid)
        centered = self.pinned is None and not bool(self.boundary.any())
        return CholeskyFactor(
            self.laplacian(), grid, str(self), 0 if centered else self.pinned, centered
        )

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        """Weighted squared differences over the edges; no matrix."""
        self._on(grid_of_field(field, axes))
        flat = at_least_float32(field).flatten(-axes)
        if self.pinned is not None:
            flat = flat * self.mass((self.num_vertices,)).to(flat)
        first, second = self.edges.T.to(flat.device)
        jumps = (self.weights.to(flat) * (flat[..., first] - flat[..., second]).square()).sum(-1)
        return 0.5 * (jumps + (self.boundary.to(flat) * flat.square()).sum(-1))

    def __repr__(self) -> str:
        gauge = "" if self.pinned is None else f", pinned={self.pinned}"
        tied = int((self.boundary > 0).sum())
        return f"Graph(edges={len(self.edges)}, num_vertices={self.num_vertices}{f', boundary={tied}' if tied else gauge})"


def _boundary_weights(boundary: Boundary | None, n: int) -> Tensor:
    """One weight per vertex, zero where there is no boundary."""
    items: list[Any] = (
        list(boundary.items()) if isinstance(boundary, Mapping) else list(boundary or [])
    )
    pairs = [
        (item, 1.0) if isinstance(item, int) else (int(item[0]), float(item[1])) for item in items
    ]
    weights = as_weights("boundary weights", [weight for _, weight in pairs])
    total = torch.zeros(n, dtype=torch.float64, device="cpu")
    for (vertex, _), weight in zip(pairs, weights, strict=True):
        if not 0 <= vertex < n:
            raise ValueError(
                f"cannot tie vertex {vertex} to the boundary: the graph has vertices 0 to {n - 1}."
            )
        total[vertex] += weight
    return total


class EdgeWeighted(Operator):
    r"""Dirichlet Laplacian of one grid with a positive weight on every edge (eq. dirichlet_laplacian).

    .. math:: (Q\psi)(x) = \sum_{y \sim x} c_{xy}\,(\psi(x) - \bar\psi(y))

    with :math:`\bar\psi = 0` on the outer boundary. Heavy edges tie sites together; light ones let the field tear.

    Args:
        vertical: Weights (H + 1, W) of the edges that join rows: entry (i, j) joins rows i - 1 and i, counted from
            0, so that the first and the last row of weights lead to the boundary. None on a sequence.
        horizontal: Weights (H, W + 1) of the edges that join columns; (W + 1,) on a sequence.
        depth: Weights (D + 1, H, W) of the edges that join the slices of a volume, on which the other two are
            (D, H + 1, W) and (D, H, W + 1).
    """

    def __init__(
        self,
        vertical: Weights | None = None,
        horizontal: Weights | None = None,
        depth: Weights | None = None,
    ) -> None:
        named = {"depth": depth, "vertical": vertical, "horizontal": horizontal}
        self.weights = {
            name: as_weights(name, given) for name, given in named.items() if given is not None
        }
        shapes = {name: tuple(weights.shape) for name, weights in self.weights.items()}
        axes = len(shapes)
        if (
            horizontal is None
            or (vertical is None and depth is not None)
            or any(len(shape) != axes for shape in shapes.values())
        ):
            raise ValueError(self._misfit(shapes))
        self.grid: Grid = tuple(shape[index] - 1 for index, shape in enumerate(shapes.values()))
        for index, shape in enumerate(shapes.values()):
            if shape != tuple(side + (axis == index) for axis, side in enumerate(self.grid)):
                raise ValueError(self._misfit(shapes))

    @staticmethod
    def _misfit(shapes: dict[str, tuple[int, ...]]) -> str:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        return (
            "the edge weights of an H x W grid have shapes (H + 1, W) and (H, W + 1), those of a sequence (W + 1,), of "
            f"a volume (D + 1, H, W), (D, H + 1, W) and (D, H, W + 1); got {found}."
        )

    def graph(self) -> Graph:
        """The same operator as a graph, with every site on the rim tied to the boundary."""
        site = torch.arange(math.prod(self.grid)).view(self.grid)
        edges: list[Tensor] = []
        weights: list[Tensor] = []
        boundary: list[tuple[int, float]] = []
        for axis, given in enumerate(self.weights.values()):
            n = self.grid[axis]
            pairs = site.narrow(axis, 0, n - 1), site.narrow(axis, 1, n - 1)
            edges.append(torch.stack([end.flatten() for end in pairs], 1))
            weights.append(given.narrow(axis, 1, n - 1).flatten())
            for end, place in ((0, 0), (n - 1, n)):
                ties = (
                    site.select(axis, end).flatten().tolist(),
                    given.select(axis, place).flatten().tolist(),
                )
                boundary.extend(zip(*ties, strict=True))
        return Graph(torch.cat(edges), torch.cat(weights), boundary, num_vertices=site.numel())

    def matrix(self, grid: Grid) -> Tensor:
        """The matrix of :meth:`graph`."""
        self._on(grid)
        return torch.from_numpy(self.graph().laplacian().toarray())

    def factor(self, grid: Grid) -> Factor:
        """Sparse: on two axes the bandwidth is the shorter side of the grid."""
        self._on(grid)
        return CholeskyFactor(self.graph().laplacian(), grid, str(self))

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        """Weighted squared differences over the edges (eq. dirichlet-energy); no matrix."""
        self._on(grid_of_field(field, axes))
        field = at_least_float32(field)
        total = torch.zeros(
            field.shape[: field.ndim - axes], dtype=field.dtype, device=field.device
        )
        for index, weights in enumerate(self.weights.values()):
            ends = [0, 0] * (axes - 1 - index) + [1, 1]
            jumps = weights.to(field) * pad(field, ends).diff(dim=index - axes).square()
            total = total + 0.5 * jumps.flatten(-axes).sum(-1)
        return total

    def _on(self, grid: Grid) -> None:
        if tuple(grid) != self.grid:
            raise ValueError(
                f"{self} was given weights for its own grid only; asked for grid {tuple(grid)}. "
                "Give weights of that size, or attach the gate where the feature map fits."
            )

    def __repr__(self) -> str:
        return f"EdgeWeighted(grid={self.grid})"
