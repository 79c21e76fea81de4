"""Operators of weighted graphs, of grids with weighted edges, and of graphs of features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chaosgate.field.cholesky import CholeskyFactor
from chaosgate.field.grids import DirichletLaplacian
from chaosgate.field.law import Law, MaxEntLaw
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


def as_weights(name: str, weights: Weights) -> Tensor:
    """Weights as a float64 tensor on the CPU, or an error if one is not positive and finite."""
    values = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach().clone()
    wrong = ~(values.isfinite() & (values > 0))
    if wrong.any():
        raise ValueError(f"{name} must be positive and finite; got {float(values[wrong][0])}.")
    return values


class Graph(Operator):
    r"""Laplacian of a connected weighted graph with a gauge (paper, sec. dgff, and app.
    variational_derivation).

    .. math:: \tfrac12\langle\psi, Q\psi\rangle
        = \tfrac12\sum_{\{x, y\}} c_{xy} (\psi_x - \psi_y)^2 + \tfrac12\sum_x b_x \psi_x^2

    One of three options makes it invertible. Boundary: an edge of weight :math:`b_x` joins vertex x
    to a value fixed at zero. Pinned vertex: the field is zero at this vertex, whose row and column
    of :math:`Q` are zero. Zero-mean gauge (default): fields have mean zero and the Green kernel is
    the Moore-Penrose inverse.

    The n vertices are the sites of any grid of n sites, e.g. (n,), with the last axis fastest.

    Args:
        edges: Pairs of vertices, shape (m, 2), numbered from 0. Weights of repeated edges are
            added.
        weights: One positive weight per edge; 1 by default.
        boundary: Vertices with an edge to the boundary: a mapping from vertex to weight, or a
            list (weight 1).
        pinned: The vertex at which fields are zero.
        num_vertices: Number of vertices; by default one more than the largest in ``edges``.
    """

    def __init__(
        self,
        edges: Tensor | Sequence[Sequence[int]],
        weights: Tensor | Sequence[float] | None = None,
        boundary: Mapping[int, float] | Sequence[int] = (),
        pinned: int | None = None,
        num_vertices: int | None = None,
    ) -> None:
        self.edges = torch.as_tensor(edges, device="cpu").detach().clone()
        if self.edges.ndim != 2 or self.edges.shape[1] != 2 or self.edges.is_floating_point():
            raise ValueError(
                f"edges must be whole numbers of shape (m, 2); got {tuple(self.edges.shape)}."
            )
        m, joined = len(self.edges), self.edges.flatten().tolist()
        n = max(joined, default=-1) + 1 if num_vertices is None else num_vertices
        self.num_vertices = n
        self.weights = as_weights("edge weights", torch.ones(m) if weights is None else weights)
        if len(self.weights) != m:
            raise ValueError(f"{m} edges need as many weights; got {len(self.weights)}.")
        ties = dict(boundary if isinstance(boundary, Mapping) else dict.fromkeys(boundary, 1.0))
        self.pinned = pinned
        named = {*joined, *ties, *([] if pinned is None else [pinned])}
        if outside := [vertex for vertex in sorted(named) if not 0 <= vertex < n]:
            raise ValueError(
                f"a graph has vertices 0 to num_vertices - 1, here 0 to {n - 1}; edges, boundary "
                f"or pinned name {outside[:3]}."
            )
        self.boundary = torch.zeros(n, dtype=torch.float64, device="cpu")
        self.boundary[list(ties)] = as_weights("boundary weights", list(ties.values()))

    def laplacian(self) -> csr_array:
        """The operator as a sparse (n, n) matrix."""
        from scipy.sparse import csr_array, diags_array

        n = self.num_vertices
        first, second = self.edges.T.numpy()
        off = csr_array((self.weights.numpy(), (first, second)), shape=(n, n))
        off = off + off.T
        full = diags_array(off.sum(1) + self.boundary.numpy()) - off
        free = diags_array(self.free((n,)).numpy())
        return csr_array(free @ full @ free)

    def _on(self, grid: Grid) -> None:
        n = self.num_vertices
        if math.prod(grid) != n:
            raise ValueError(
                f"{self} needs a grid of {n} sites, such as ({n},); got {tuple(grid)}."
            )

    def free(self, grid: Grid) -> Tensor:
        """One, except zero at the pinned vertex."""
        free = super().free(grid)
        if self.pinned is not None:
            free.view(-1)[self.pinned] = 0.0
        return free

    def matrix(self, grid: Grid) -> Tensor:
        """The dense form of :meth:`laplacian`."""
        self._on(grid)
        return torch.from_numpy(self.laplacian().toarray())

    def factor(self, grid: Grid) -> Factor:
        """Sparse, in an order of small bandwidth."""
        self._on(grid)
        centered = self.pinned is None and not self.boundary.any()
        pinned = 0 if centered else self.pinned
        return CholeskyFactor(self.laplacian(), grid, str(self), pinned, centered)

    def energy(self, field: Tensor, axes: int = 2) -> Tensor:
        """Weighted squared differences over the edges; no matrix."""
        self._on(grid_of_field(field, axes))
        flat = at_least_float32(field).flatten(-axes)
        flat = flat * self.free((self.num_vertices,)).to(flat)
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


class EdgeWeighted(Graph):
    r"""Dirichlet Laplacian of one grid with a positive weight on every edge (eq.
    dirichlet_laplacian).

    .. math:: (Q\psi)(x) = \sum_{y \sim x} c_{xy}\,(\psi(x) - \bar\psi(y))

    with :math:`\bar\psi = 0` on the outer boundary. Large weights make neighbors similar; small
    weights allow jumps of the field.

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
        horizontal: Weights = (),
        depth: Weights | None = None,
    ) -> None:
        named = {"depth": depth, "vertical": vertical, "horizontal": horizontal}
        weights = {name: as_weights(name, w) for name, w in named.items() if w is not None}
        *before, last = weights["horizontal"].shape
        grid = self.grid = (*before, last - 1)
        found = [tuple(w.shape) for w in weights.values()]
        if found != [
            tuple(n + (i == axis) for i, n in enumerate(grid)) for axis in range(len(grid))
        ]:
            raise ValueError(
                "the edge weights of an H x W grid have shapes (H + 1, W) and (H, W + 1), those of "
                "a sequence (W + 1,), of a volume (D + 1, H, W), (D, H + 1, W) and (D, H, W + 1); "
                f"got {found} for {list(weights)}."
            )
        site = torch.arange(math.prod(grid)).view(grid)
        rim = torch.zeros(grid, dtype=torch.float64)
        edges, inner = [], []
        for axis, (n, w) in enumerate(zip(grid, weights.values(), strict=True)):
            pairs = site.narrow(axis, 0, n - 1), site.narrow(axis, 1, n - 1)
            edges.append(torch.stack([end.flatten() for end in pairs], 1))
            inner.append(w.narrow(axis, 1, n - 1).flatten())
            for end, place in ((0, 0), (n - 1, n)):
                rim.select(axis, end).add_(w.select(axis, place))
        ties = {x: float(rim.view(-1)[x]) for x in rim.view(-1).nonzero().flatten().tolist()}
        super().__init__(torch.cat(edges), torch.cat(inner), ties, num_vertices=site.numel())

    def _on(self, grid: Grid) -> None:
        if tuple(grid) != self.grid:
            raise ValueError(
                f"{self} has weights for its own grid only, not for {tuple(grid)}. "
                "Give weights of that size, or attach the gate where the feature map fits."
            )

    def __repr__(self) -> str:
        return f"EdgeWeighted(grid={self.grid})"


class FeatureGraph(DirichletLaplacian):
    r"""Dirichlet Laplacian whose inner edges follow the features of each sample: noise that is
    smooth inside an object and can change at its border.

    .. math:: c_{xy} = \max\Big(f, \exp\frac{-|h(x) - h(y)|^2}{2 b^2 d}\Big)

    with the squared distance over all channels, :math:`d` its mean over the edges of the sample,
    :math:`b` the bandwidth and :math:`f` the floor. Edges to the boundary have weight 1, and the
    weights have no gradient. On constant features this is the Dirichlet Laplacian; the rank,
    variance and entropy of a law on this operator are computed from it. Fields are scaled per
    sample to its mean site variance, so that a strength has the same meaning.

    A gate factorizes one matrix per sample and step, on grids of at most 256 sites. Inside
    another operator (Massive, Pinned, Spectral) this is the Dirichlet Laplacian.

    Args:
        bandwidth: :math:`b`; with a smaller one, weights decrease faster with the distance.
        floor: :math:`f`, in (0, 1].
    """

    LARGEST = 256

    def __init__(self, bandwidth: float = 1.0, floor: float = 0.01) -> None:
        self.bandwidth, self.floor = positive("bandwidth", bandwidth), positive("floor", floor)

    def edge_weights_of(self, h: Tensor) -> list[Tensor]:
        r"""Weights of the inner edges along each axis, for features (B, C, \*grid)."""
        h, axes = at_least_float32(h.detach()), range(2, h.ndim)
        distances = [h.diff(dim=axis).square().sum(1) for axis in axes]
        total = torch.stack([d.flatten(1).sum(1) for d in distances]).sum(0)
        edges = max(1, sum(d[0].numel() for d in distances))
        scale = 2 * self.bandwidth**2 * (total / edges).clamp_min(torch.finfo(h.dtype).tiny)
        scale = scale.view(-1, *[1] * len(axes))
        return [(-d / scale).exp().clamp_min(self.floor) for d in distances]

    def laplacian_of(self, h: Tensor) -> Tensor:
        r"""The operator of each sample, (B, n, n)."""
        grid, n = h.shape[2:], math.prod(h.shape[2:])
        site = torch.arange(n, device=h.device).view(grid)
        # the boundary's edges, and the off-diagonal part; the diagonal makes inner rows sum to zero
        rim = self.matrix(tuple(grid)).sum(1).to(h)
        matrix = rim.new_zeros(len(h), n, n)
        for axis, weights in enumerate(self.edge_weights_of(h)):
            ends = [site.narrow(axis, i, grid[axis] - 1).flatten() for i in (0, 1)]
            for first, second in (ends, ends[::-1]):
                matrix[:, first, second] = -weights.flatten(1).to(matrix)
        return matrix + torch.diag_embed(rim - matrix.sum(2))

    def color_by_features(self, white: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Fields from white noise (B c, n), c per sample, and their site variances."""
        root = torch.linalg.cholesky(self.laplacian_of(h.to(white.dtype)))
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand_as(root)
        inverse = torch.linalg.solve_triangular(root, eye, upper=False)
        variance = inverse.square().sum(1)
        target = self.mean_variance(tuple(h.shape[2:]))
        scale = target / variance.mean(1, keepdim=True)
        count = len(white) // max(1, len(h))
        fields = white.view(len(h), count, -1) @ inverse * scale.sqrt()[:, None]
        return fields.flatten(0, 1), (scale * variance).repeat_interleave(count, 0)

    def check_law(self, law: Law, grid: Grid) -> None:
        """Raise an error if fields cannot follow the features."""
        if not isinstance(law, MaxEntLaw) or law.grid != grid or law.n > self.LARGEST:
            raise ValueError(
                f"{self} needs the Gaussian law on the grid of the features, of at most "
                f"{self.LARGEST} sites (one factorization per sample); got {law} for features on "
                f"{grid}. Attach the gate at a later stage, without base_size."
            )
