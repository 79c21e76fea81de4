"""Operators of weighted graphs, of grids with weighted edges, and of the features themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.grids import DirichletLaplacian
from chaosgate.field.operator import (
    Factor,
    Grid,
    Operator,
    at_least_float32,
    grid_of_field,
    positive,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Weights = Tensor | Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]]
"""Weights on one, two or three axes, as a tensor or as nested lists."""

Boundary = Mapping[int, float] | Sequence[int] | Sequence[Sequence[float]]


def as_weights(name: str, weights: Weights) -> Tensor:
    """Weights as a float64 tensor on the CPU, or an error that names one that is not positive and
    finite.
    """
    values = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach().clone()
    wrong = ~(values.isfinite() & (values > 0))
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be positive and finite; entry {place} is {float(values[place])}."
        )
    return values


class Graph(Operator):
    r"""Laplacian of a connected weighted graph with a gauge (paper, sec. dgff, and app.
    variational_derivation).

    .. math:: \tfrac12\langle\psi, Q\psi\rangle
        = \tfrac12\sum_{\{x, y\}} c_{xy} (\psi_x - \psi_y)^2 + \tfrac12\sum_x b_x \psi_x^2

    One of three things makes it invertible. A boundary: vertex x is tied with weight :math:`b_x` to
    a value held at zero. A pinned vertex, itself held at zero: its row and column of :math:`Q` are
    zero and fields vanish there. By default the zero-mean gauge: fields have mean zero and the
    Green kernel is the Moore-Penrose inverse.

    The n vertices are the sites of any grid of n sites, the last axis fastest; (n,) is the natural
    one.

    Args:
        edges: Pairs of vertices, shape (m, 2), numbered from 0. Edges named twice add up.
        weights: One positive weight per edge; 1 by default.
        boundary: Vertices tied to zero: a mapping from vertex to weight, a list of [vertex,
            weight], or a list of vertices (weight 1).
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
        pairs = torch.as_tensor(edges, device="cpu").detach()
        if pairs.numel() == 0:
            pairs = torch.zeros(0, 2, dtype=torch.int64)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
            raise ValueError(
                f"edges are pairs of whole numbers, shape (m, 2); got {tuple(pairs.shape)}."
            )
        self.edges = pairs.long().clone()
        largest = int(self.edges.max()) if len(self.edges) else -1
        n = self.num_vertices = largest + 1 if num_vertices is None else num_vertices
        self.weights = as_weights(
            "edge weights", torch.ones(len(self.edges)) if weights is None else weights
        )
        if self.weights.shape != (len(self.edges),):
            raise ValueError(
                f"{len(self.edges)} edges need as many weights; got shape "
                f"{tuple(self.weights.shape)}."
            )
        self.pinned = pinned
        ties = _boundary_pairs(boundary)
        self._check_vertices(ties)
        self.boundary = torch.zeros(n, dtype=torch.float64, device="cpu")
        for vertex, weight in ties:
            self.boundary[vertex] += weight
        self._check_connected()

    def _check_vertices(self, ties: list[tuple[int, float]]) -> None:
        n, pinned = self.num_vertices, [] if self.pinned is None else [self.pinned]
        named = {*self.edges.flatten().tolist(), *pinned, *(vertex for vertex, _ in ties)}
        outside = sorted(vertex for vertex in named if not 0 <= vertex < n)
        if n < 1 or outside:
            raise ValueError(
                f"a graph has vertices 0 to num_vertices - 1, here 0 to {n - 1}; edges, boundary "
                f"or pinned name {outside[:3] or 'none'}."
            )
        if bool((self.edges[:, 0] == self.edges[:, 1]).any()):
            raise ValueError(
                "edges: an edge from a vertex to itself costs no energy. Leave it out."
            )
        if pinned and ties:
            raise ValueError("a graph has a boundary or a pinned vertex, not both.")
        if n == 1 and not ties:
            raise ValueError("one vertex without a boundary carries no field: the gauge fixes it.")

    def _check_connected(self) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        # The boundary counts as one more vertex: parts may be connected through it.
        n = self.num_vertices
        tied = self.boundary.nonzero().flatten()
        ends = torch.cat([self.edges, torch.stack([tied, torch.full_like(tied, n)], 1)]).T.numpy()
        size = n + bool(len(tied))
        adjacency = coo_array((torch.ones(ends.shape[1]).numpy(), tuple(ends)), shape=(size, size))
        parts = connected_components(adjacency, directed=False, return_labels=False)
        if parts > 1:
            raise ValueError(
                f"the graph is not connected: it has {parts} parts, of which a gauge can fix one. "
                "Join them with edges, tie each of them to a boundary, or use one operator per "
                "part."
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
        n = self.num_vertices
        if math.prod(grid) != n:
            raise ValueError(
                f"{self} needs a grid of {n} sites, such as ({n},); got {tuple(grid)}."
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
        text = f"edges={len(self.edges)}, num_vertices={self.num_vertices}"
        if self.pinned is not None:
            text += f", pinned={self.pinned}"
        if tied := int((self.boundary > 0).sum()):
            text += f", boundary={tied}"
        return f"Graph({text})"


def _boundary_pairs(boundary: Boundary | None) -> list[tuple[int, float]]:
    """Vertices and weights of the ties to zero."""
    items: list[Any] = list(
        boundary.items() if isinstance(boundary, Mapping) else () if boundary is None else boundary
    )
    pairs = [
        (item, 1.0) if isinstance(item, int) else (int(item[0]), float(item[1])) for item in items
    ]
    as_weights("boundary weights", [weight for _, weight in pairs])
    return pairs


class EdgeWeighted(Operator):
    r"""Dirichlet Laplacian of one grid with a positive weight on every edge (eq.
    dirichlet_laplacian).

    .. math:: (Q\psi)(x) = \sum_{y \sim x} c_{xy}\,(\psi(x) - \bar\psi(y))

    with :math:`\bar\psi = 0` on the outer boundary. Heavy edges tie sites together; light ones let
    the field tear.

    Args:
        vertical: Weights (H + 1, W) of the edges that join rows: entry (i, j) joins rows i - 1 and
            i, counted from 0, so that the first and the last row of weights lead to the boundary.
            None on a sequence.
        horizontal: Weights (H, W + 1) of the edges that join columns; (W + 1,) on a sequence.
        depth: Weights (D + 1, H, W) of the edges that join the slices of a volume, on which the
            other two are (D, H + 1, W) and (D, H, W + 1).
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
        axes = list(named)[3 - len(shapes) :]
        sides = [shape[i] - 1 for i, shape in enumerate(shapes.values()) if i < len(shape)]
        fitting = {
            name: tuple(side + (axis == other) for other, side in enumerate(sides))
            for axis, name in enumerate(axes)
        }
        if shapes != fitting:
            found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(
                "the edge weights of an H x W grid have shapes (H + 1, W) and (H, W + 1), those of "
                "a sequence (W + 1,), of a volume (D + 1, H, W), (D, H + 1, W) and (D, H, W + 1); "
                f"got {found}."
            )
        self.grid: Grid = tuple(sides)

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
                ties = site.select(axis, end).flatten(), given.select(axis, place).flatten()
                boundary.extend(zip(*(tie.tolist() for tie in ties), strict=True))
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
                f"{self} has the weights of its own grid only; asked for grid {tuple(grid)}. "
                "Give weights of that size, or attach the gate where the feature map fits."
            )

    def __repr__(self) -> str:
        return f"EdgeWeighted(grid={self.grid})"


class FeatureGraph(DirichletLaplacian):
    r"""Dirichlet Laplacian whose inner edges follow the features of each sample: noise that is
    smooth inside an object and can change at its border.

    .. math:: c_{xy} = \max\Big(f, \exp\frac{-|h(x) - h(y)|^2}{2 b^2 d}\Big)

    with the squared distance over all channels, :math:`d` its mean over the edges of the sample,
    :math:`b` the bandwidth and :math:`f` the floor. Edges to the boundary weigh 1, and features
    carry no gradient here. On constant features this is the Dirichlet Laplacian, whose numbers
    (rank, variance, entropy) a law on this operator has. Fields are scaled per sample to the mean
    site variance of the Dirichlet Laplacian, so that a strength means the same.

    A gate factorises one matrix per sample and step, on grids of at most 256 sites. Inside
    another operator (Massive, Pinned, Spectral) it is the Dirichlet Laplacian.

    Args:
        bandwidth: :math:`b`; smaller ones make weights fall faster with distance.
        floor: :math:`f`, in (0, 1].
    """

    LARGEST = 256

    def __init__(self, bandwidth: float = 1.0, floor: float = 0.01) -> None:
        self.bandwidth, self.floor = positive("bandwidth", bandwidth), positive("floor", floor)

    def edge_weights_of(self, h: Tensor) -> list[Tensor]:
        r"""Weights of the inner edges along each axis, for features (B, C, \*grid)."""
        h, axes = at_least_float32(h.detach()), range(1, h.ndim - 1)
        distances = [h.diff(dim=axis + 1).square().sum(1) for axis in axes]
        total = torch.stack([d.flatten(1).sum(1) for d in distances]).sum(0)
        edges = max(1, sum(d[0].numel() for d in distances))
        scale = 2 * self.bandwidth**2 * (total / edges).clamp_min(torch.finfo(h.dtype).tiny)
        shape = (-1, *[1] * len(axes))
        return [(-d / scale.view(shape)).exp().clamp_min(self.floor) for d in distances]

    def laplacian_of(self, h: Tensor) -> Tensor:
        r"""The operator of each sample, (B, n, n)."""
        grid, batch = h.shape[2:], h.shape[0]
        site = torch.arange(math.prod(grid), device=h.device).view(grid)
        # the boundary's edges, and the off-diagonal part; the diagonal makes inner rows sum to zero
        rim = self.matrix(tuple(grid)).sum(1).to(h)
        matrix = torch.zeros(batch, site.numel(), site.numel(), dtype=rim.dtype, device=h.device)
        for axis, weights in enumerate(self.edge_weights_of(h)):
            n = grid[axis]
            first = site.narrow(axis, 0, n - 1).flatten()
            second = site.narrow(axis, 1, n - 1).flatten()
            matrix[:, first, second] = -weights.flatten(1).to(matrix)
            matrix[:, second, first] = -weights.flatten(1).to(matrix)
        return matrix + torch.diag_embed(rim - matrix.sum(2))

    def color_by_features(self, white: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of white noise (B c, n) to fields, c per sample, and their site variances."""
        root = torch.linalg.cholesky(self.laplacian_of(h.to(white.dtype)))
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand_as(root)
        inverse = torch.linalg.solve_triangular(root, eye, upper=False)
        variance = inverse.square().sum(1)
        target = self.mean_variance(tuple(h.shape[2:]))
        scale = target / variance.mean(1, keepdim=True)
        count = len(white) // max(1, len(h))
        fields = white.view(len(h), count, -1) @ inverse * scale.sqrt()[:, None]
        return fields.flatten(0, 1), (scale * variance).repeat_interleave(count, 0)

    def check_law(self, law: Any, grid: Grid) -> None:
        """Raise where fields cannot follow the features."""
        if law.family != "N(0, (beta Q)^-1)" or law.grid != grid or law.n > self.LARGEST:
            raise ValueError(
                f"{self} needs the Gaussian law on the grid of the features, of at most "
                f"{self.LARGEST} sites (one factorisation per sample); got {law} for features on "
                f"{grid}. Attach the gate at a later stage, without base_size."
            )

    def __repr__(self) -> str:
        return f"FeatureGraph(bandwidth={self.bandwidth}, floor={self.floor})"
