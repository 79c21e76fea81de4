r"""Roughness: the graph of the sites, the intrinsic energy of a map on it, and what gates add to
that energy.

.. math:: \mathcal E_{\mathrm{int}}(f) = \tfrac12 \sum_{\{x,y\}} c_{xy}\,(f(x) - f(y))^2

Unlike the energy of the design problem it has no outer boundary, so constants cost nothing and it
measures relative geometry (eq. intrinsic_energy).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.field import Grid
from chaosgate.field.arguments import as_grid


@dataclass(frozen=True, eq=False)
class SiteGraph:
    r"""Interior edges :math:`E_{\mathrm{int}}` with weights :math:`c_{xy} > 0` (eq.
    intrinsic_energy).

    Fields on it have shape (..., \*grid).

    Args:
        grid: Sites along each axis; ``(n,)`` for a graph that is not a grid.
        edges: Pairs of sites, shape (m, 2), int64; each pair once.
        weights: One positive weight per edge, shape (m,), float64.
    """

    grid: Grid
    edges: Tensor
    weights: Tensor

    @property
    def num_sites(self) -> int:
        return math.prod(self.grid)

    def degrees(self) -> Tensor:
        r"""Intrinsic weighted degrees :math:`d_x^{\mathrm{int}} = \sum_{y \sim x} c_{xy}`, shape
        (n,), float64.
        """
        degrees = torch.zeros(self.num_sites, dtype=torch.float64)
        return degrees.index_add(0, self.edges.T.flatten(), self.weights.repeat(2))

    def laplacian(self) -> Tensor:
        r""":math:`L_{\mathrm{int}}`, dense (n, n), float64; its rows sum to zero."""
        matrix = torch.zeros(self.num_sites, self.num_sites, dtype=torch.float64)
        first, second = self.edges.T
        matrix.index_put_((first, second), -self.weights, accumulate=True)
        return matrix + matrix.T + self.degrees().diag()

    def flat(self, field: Tensor) -> Tensor:
        r"""The field (..., \*grid) as (..., n)."""
        if tuple(field.shape[-len(self.grid) :]) != self.grid:
            raise ValueError(
                f"fields on this graph end in {self.grid}; got shape {tuple(field.shape)}."
            )
        return field.flatten(-len(self.grid))


def grid_graph(grid: Sequence[int]) -> SiteGraph:
    """Nearest neighbors on a grid of one, two or three axes, all weights one.

    >>> grid_graph((2, 3)).degrees().tolist()
    [2.0, 3.0, 2.0, 2.0, 3.0, 2.0]
    """
    sides = as_grid(grid)
    site = torch.arange(math.prod(sides)).view(*sides)
    edges = torch.cat(
        [
            torch.stack([site.narrow(axis, start, side - 1).flatten() for start in (0, 1)], 1)
            for axis, side in enumerate(sides)
        ]
    )
    return SiteGraph(sides, edges, torch.ones(len(edges), dtype=torch.float64))


def cycle_graph(n: int) -> SiteGraph:
    """The cycle :math:`C_n` of thm. cycle_fracture, at least three sites; fields are (..., n)."""
    first = torch.arange(n)
    return SiteGraph(
        (n,), torch.stack([first, (first + 1) % n], 1), torch.ones(n, dtype=torch.float64)
    )


def intrinsic_energy(field: Tensor, graph: SiteGraph) -> Tensor:
    r""":math:`\mathcal E_{\mathrm{int}}` of fields (..., \*grid), shape (...); float32 at least."""
    flat = _flat(field, graph)
    first, second = graph.edges.T.to(flat.device)
    jumps = flat[..., first] - flat[..., second]
    return 0.5 * (graph.weights.to(flat) * jumps.square()).sum(-1)


def roughness_budget(covariance: Tensor, graph: SiteGraph) -> float:
    r""":math:`\varepsilon_{\mathrm{int}} = \tfrac12\mathrm{tr}(L_{\mathrm{int}} C)` of a field with
    covariance (n, n).

    The sample-wise gate adds exactly :math:`\gamma^2\varepsilon_{\mathrm{int}}` to the expected
    intrinsic energy of any log-map (eq. samplewise_intrinsic_budget).
    """
    first, second = graph.edges.T
    diagonal = covariance.diagonal()
    variances = diagonal[first] + diagonal[second] - 2 * covariance[first, second]
    return 0.5 * float((graph.weights * variances).sum())


def weighted_mass(h: Tensor, graph: SiteGraph) -> Tensor:
    r""":math:`\sum_x d_x^{\mathrm{int}} h(x)^2` of maps (..., \*grid), shape (...)."""
    flat = _flat(h, graph)
    return (graph.degrees().to(flat) * flat.square()).sum(-1)


def dropout_energy(h: Tensor, q: float, graph: SiteGraph) -> Tensor:
    r"""Expected intrinsic energy of maps whose sites are kept independently with probability q,
    shape (...).

    .. math::
        \mathbb E\,\mathcal E_{\mathrm{int}}(m_q \odot h)
        = \mathcal E_{\mathrm{int}}(h) + \frac{1-q}{2q}\sum_x d_x^{\mathrm{int}} h(x)^2

    (eq. dropout_energy_inflation); holds for signed maps too.
    """
    return intrinsic_energy(h, graph) + (1 - q) / (2 * q) * weighted_mass(h, graph)


def coherence(h: Tensor, graph: SiteGraph) -> Tensor:
    r"""Coherence score :math:`\kappa(h) = \sum_x d_x h(x)^2 / 2\mathcal E_{\mathrm{int}}(h)`, shape
    (...).

    Large when a map carries mass but varies little from site to site; infinite for a constant map,
    NaN for a map that is zero everywhere (eq. coherence_score).
    """
    return weighted_mass(h, graph) / (2 * intrinsic_energy(h, graph))


def dropout_amplification(kappa: Tensor | float, q: float) -> Tensor | float:
    r"""Factor :math:`1 + \tfrac{1-q}{q}\kappa` of dropout on the expected intrinsic energy (eq.
    coherence_factor).
    """
    return 1 + (1 - q) / q * kappa


def _flat(field: Tensor, graph: SiteGraph) -> Tensor:
    return graph.flat(field).to(torch.promote_types(field.dtype, torch.float32))
