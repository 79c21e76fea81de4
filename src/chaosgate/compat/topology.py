r"""Superlevel sets and their Betti numbers: whether a region stays in one piece (paper, app. topology).

.. math:: S_t(f) = \{x : f(x) \ge t\}, \qquad \beta_0 = \#\text{components}, \qquad \beta_1 = |E| - |V| + \beta_0

seen as the induced subgraph. On a grid every filled square of four sites is a cycle of that graph.
"""

import torch
from torch import Tensor

from chaosgate.compat.site_graph import SiteGraph


def superlevel(f: Tensor, threshold: Tensor | float) -> Tensor:
    """:math:`S_t(f)` as a boolean map (..., H, W); ``threshold`` is one number, or one per map (...)."""
    if isinstance(threshold, Tensor):
        threshold = threshold[..., None, None]
    return f >= threshold


def sandwich_width(gate: Tensor) -> Tensor:
    r""":math:`\|\log\xi\|_\infty` per gate (..., H, W): the :math:`\eta` of prop. superlevel_sandwich."""
    return gate.log().abs().amax((-2, -1))


def oscillation(psi: Tensor) -> Tensor:
    r""":math:`\mathrm{osc}(\psi) = \max\psi - \min\psi` per field (..., H, W).

    The sample-wise gate has :math:`\|\log\xi\|_\infty \le |\gamma|\,\mathrm{osc}(\psi)` (prop. gch_random_sandwich).
    """
    return psi.amax((-2, -1)) - psi.amin((-2, -1))


def sandwich_violations(h: Tensor, gated: Tensor, threshold: Tensor | float, eta: Tensor | float) -> Tensor:
    r"""Sites that break :math:`S_{te^\eta}(h) \subseteq S_t(\xi h) \subseteq S_{te^{-\eta}}(h)`, counted per map (...).

    Args:
        h: Positive maps (..., H, W).
        gated: The maps behind a positive gate.
        threshold: t, one number or one per map.
        eta: Half-width of the band in the logarithm, one number or one per map.
    """
    width = torch.as_tensor(eta, dtype=h.dtype, device=h.device)
    inside = superlevel(gated, threshold)
    lost = superlevel(h, threshold * width.exp()) & ~inside
    gained = inside & ~superlevel(h, threshold * (-width).exp())
    return (lost | gained).sum((-2, -1))


def betti_numbers(kept: Tensor, graph: SiteGraph) -> tuple[Tensor, Tensor]:
    r""":math:`\beta_0` and :math:`\beta_1` of the induced subgraphs on kept sites, for a batch of maps at once.

    Components are found by hooking every root to the smallest root next to it and compressing paths, for all maps
    together; the number of rounds grows with the logarithm of the number of sites.

    Args:
        kept: Boolean maps (..., H, W).
        graph: The graph that the sites come from.

    Returns:
        Two int64 tensors of shape (...).

    >>> from chaosgate.compat.site_graph import cycle_graph
    >>> ring = torch.ones(2, 1, 6, dtype=torch.bool)
    >>> ring[1, 0, 3] = False
    >>> betti_numbers(ring, cycle_graph(6))
    (tensor([1, 1]), tensor([1, 0]))
    """
    flat = graph.flat(kept).bool()
    maps = flat.reshape(-1, graph.num_sites)
    first, second = graph.edges.T.to(maps.device)
    joined = maps[:, first] & maps[:, second]
    sample, edge = joined.nonzero(as_tuple=True)
    offset = sample * graph.num_sites
    roots = _roots(maps.numel(), offset + first[edge], offset + second[edge])
    is_root = (roots == torch.arange(maps.numel(), device=maps.device)).view_as(maps)
    components = (is_root & maps).sum(-1)
    cycles = joined.sum(-1) - maps.sum(-1) + components
    shape = kept.shape[:-2]
    return components.view(shape), cycles.view(shape)


def _roots(count: int, first: Tensor, second: Tensor) -> Tensor:
    """For every vertex the smallest vertex of its component."""
    parent = torch.arange(count, device=first.device)
    while True:
        a, b = parent[first], parent[second]
        apart = a != b
        if not bool(apart.any()):
            return parent
        first, second, a, b = first[apart], second[apart], a[apart], b[apart]
        parent = parent.scatter_reduce(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
        while not torch.equal(above := parent[parent], parent):  # a parent is never larger than its child: no loops
            parent = above


def cycle_fracture(q: float, n: int) -> float:
    r"""Probability :math:`1 - q^n` that dropout breaks a cycle of n sites (thm. cycle_fracture)."""
    return float(1 - q**n)
