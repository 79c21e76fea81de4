r"""Roughness: the graph of the sites, the intrinsic energy of a map on it, and what gates add to that energy.

.. math:: \mathcal E_{\mathrm{int}}(f) = \tfrac12 \sum_{\{x,y\}} c_{xy}\,(f(x) - f(y))^2

Unlike the energy of the design problem it has no outer boundary, so constants are free and it measures relative
geometry (eq. intrinsic_energy).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.field import Grid, Operator


@dataclass(frozen=True, eq=False)
class SiteGraph:
    r"""Interior edges :math:`E_{\mathrm{int}}` with weights :math:`c_{xy} > 0` (eq. intrinsic_energy).

    Fields on it have shape (..., H, W) with H W sites, flattened row by row; (1, n) is the natural shape for graphs
    that are not grids.

    Args:
        num_sites: Number of sites n.
        edges: Pairs of sites, shape (m, 2), int64; each pair once.
        weights: One positive weight per edge, shape (m,), float64.
    """

    num_sites: int
    edges: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        ends = self.edges
        if ends.ndim != 2 or ends.shape[1] != 2 or ends.is_floating_point() or len(self.weights) != len(ends):
            raise ValueError(
                f"edges are pairs of sites (m, 2) with m weights; got shapes {tuple(ends.shape)} and "
                f"{tuple(self.weights.shape)}."
            )
        if len(ends) and (int(ends.min()) < 0 or int(ends.max()) >= self.num_sites):
            raise ValueError(f"edges join sites 0 to {self.num_sites - 1}; got {int(ends.min())} to {int(ends.max())}.")
        if bool((ends[:, 0] == ends[:, 1]).any()):
            raise ValueError("an edge joins two different sites; leave loops out.")
        if not bool((self.weights > 0).all()):
            raise ValueError("edge weights are positive; leave out edges of weight zero.")

    def degrees(self) -> Tensor:
        r"""Intrinsic weighted degrees :math:`d_x^{\mathrm{int}} = \sum_{y \sim x} c_{xy}`, shape (n,), float64."""
        degrees = torch.zeros(self.num_sites, dtype=torch.float64)
        return degrees.index_add(0, self.edges.T.flatten(), self.weights.repeat(2))

    def laplacian(self) -> Tensor:
        r""":math:`L_{\mathrm{int}}`, dense (n, n), float64; its rows sum to zero."""
        matrix = torch.zeros(self.num_sites, self.num_sites, dtype=torch.float64)
        first, second = self.edges.T
        matrix.index_put_((first, second), -self.weights, accumulate=True)
        return matrix + matrix.T + self.degrees().diag()

    def flat(self, field: Tensor) -> Tensor:
        """The field (..., H, W) as (..., n), or an error that names both sizes."""
        sites = field.shape[-2] * field.shape[-1] if field.ndim >= 2 else -1
        if sites != self.num_sites:
            raise ValueError(
                f"fields on this graph are (..., H, W) with H W = {self.num_sites}; got shape {tuple(field.shape)}."
            )
        return field.flatten(-2)


def grid_graph(grid: Sequence[int]) -> SiteGraph:
    """Nearest neighbours on an H x W grid, all weights one.

    >>> grid_graph((2, 3)).degrees().tolist()
    [2.0, 3.0, 2.0, 2.0, 3.0, 2.0]
    """
    site = torch.arange(grid[0] * grid[1]).view(*grid)
    down = torch.stack([site[:-1].flatten(), site[1:].flatten()], 1)
    right = torch.stack([site[:, :-1].flatten(), site[:, 1:].flatten()], 1)
    edges = torch.cat([down, right])
    return SiteGraph(site.numel(), edges, torch.ones(len(edges), dtype=torch.float64))


def cycle_graph(n: int) -> SiteGraph:
    """The cycle :math:`C_n` of thm. cycle_fracture, at least three sites."""
    if n < 3:
        raise ValueError(f"a cycle has at least three sites; got {n}.")
    first = torch.arange(n)
    return SiteGraph(n, torch.stack([first, (first + 1) % n], 1), torch.ones(n, dtype=torch.float64))


def interior_graph(operator: Operator, grid: Grid) -> SiteGraph:
    r"""The edges of an operator between sites, :math:`c_{xy} = -Q(x, y)`; masses and ties to a boundary fall away.

    A matrix with a positive entry off its diagonal is not a graph Laplacian plus a mass, and is refused.
    """
    couplings = -torch.triu(operator.matrix(grid), diagonal=1)
    if float(couplings.min()) < -1e-12 * float(couplings.abs().max()):
        raise ValueError(
            f"{operator} has positive entries off its diagonal, so it has no edge weights. Measure roughness on "
            "grid_graph(grid) instead."
        )
    edges = (couplings > 0).nonzero()
    return SiteGraph(len(couplings), edges, couplings[edges[:, 0], edges[:, 1]])


def intrinsic_energy(field: Tensor, graph: SiteGraph) -> Tensor:
    r""":math:`\mathcal E_{\mathrm{int}}` of fields (..., H, W), shape (...); float32 at least."""
    flat = _flat(field, graph)
    first, second = graph.edges.T.to(flat.device)
    jumps = flat[..., first] - flat[..., second]
    return 0.5 * (graph.weights.to(flat) * jumps.square()).sum(-1)


def roughness_budget(covariance: Tensor, graph: SiteGraph) -> float:
    r""":math:`\varepsilon_{\mathrm{int}} = \tfrac12\mathrm{tr}(L_{\mathrm{int}} C)` of a field with covariance (n, n).

    The sample-wise gate adds exactly :math:`\gamma^2\varepsilon_{\mathrm{int}}` to the expected intrinsic energy of the
    log-map, whatever the map (eq. samplewise_intrinsic_budget).
    """
    first, second = graph.edges.T
    diagonal = covariance.diagonal()
    variances = diagonal[first] + diagonal[second] - 2 * covariance[first, second]
    return 0.5 * float((graph.weights * variances).sum())


def weighted_mass(h: Tensor, graph: SiteGraph) -> Tensor:
    r""":math:`\sum_x d_x^{\mathrm{int}} h(x)^2` of maps (..., H, W), shape (...)."""
    flat = _flat(h, graph)
    return (graph.degrees().to(flat) * flat.square()).sum(-1)


def dropout_energy(h: Tensor, q: float, graph: SiteGraph) -> Tensor:
    r"""Expected intrinsic energy of maps (..., H, W) whose sites are kept independently with probability q.

    .. math::
        \mathbb E\,\mathcal E_{\mathrm{int}}(m_q \odot h)
        = \mathcal E_{\mathrm{int}}(h) + \frac{1-q}{2q}\sum_x d_x^{\mathrm{int}} h(x)^2

    (eq. dropout_energy_inflation); holds for signed maps too.
    """
    return intrinsic_energy(h, graph) + (1 - q) / (2 * q) * weighted_mass(h, graph)


def coherence(h: Tensor, graph: SiteGraph) -> Tensor:
    r"""Coherence score :math:`\kappa(h) = \sum_x d_x h(x)^2 / 2\mathcal E_{\mathrm{int}}(h)` of maps, shape (...).

    Large when a map carries mass but varies little from site to site; infinite for a constant map, not a number for a
    map that is zero everywhere (eq. coherence_score).
    """
    return weighted_mass(h, graph) / (2 * intrinsic_energy(h, graph))


def dropout_amplification(kappa: Tensor | float, q: float) -> Tensor | float:
    r"""Factor :math:`1 + \tfrac{1-q}{q}\kappa` of dropout on the expected intrinsic energy (eq. coherence_factor)."""
    return 1 + (1 - q) / q * kappa


def _flat(field: Tensor, graph: SiteGraph) -> Tensor:
    return graph.flat(field).to(torch.promote_types(field.dtype, torch.float32))
