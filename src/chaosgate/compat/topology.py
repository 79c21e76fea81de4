r"""Superlevel sets and their Betti numbers: whether a region stays in one piece (paper, app.
topology).

.. math:: S_t(f) = \{x : f(x) \ge t\}, \qquad \beta_0 = \#\text{components}, \qquad \beta_1 = |E| -
|V| + \beta_0

of the induced subgraph. On a grid every filled square of four sites is a cycle of that graph. Maps
are (..., \*grid); the grid is the last ``axes`` dimensions.
"""

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from chaosgate.compat.roughness import SiteGraph


def superlevel(f: Tensor, threshold: Tensor | float) -> Tensor:
    r""":math:`S_t(f)` as a boolean map (..., \*grid); ``threshold`` is one number, or one per map
    (...).
    """
    if isinstance(threshold, Tensor):
        threshold = threshold.view(*threshold.shape, *[1] * (f.ndim - threshold.ndim))
    return f >= threshold


def sandwich_width(gate: Tensor, axes: int = 2) -> Tensor:
    r""":math:`\|\log\xi\|_\infty` per gate: the :math:`\eta` of prop. superlevel_sandwich."""
    return gate.log().abs().flatten(-axes).amax(-1)


def oscillation(psi: Tensor, axes: int = 2) -> Tensor:
    r""":math:`\mathrm{osc}(\psi) = \max\psi - \min\psi` per field.

    The sample-wise gate has :math:`\|\log\xi\|_\infty \le |\gamma|\,\mathrm{osc}(\psi)` (prop.
    gch_random_sandwich).
    """
    flat = psi.flatten(-axes)
    return flat.amax(-1) - flat.amin(-1)


def sandwich_violations(
    h: Tensor, gated: Tensor, threshold: Tensor | float, eta: Tensor | float, axes: int = 2
) -> Tensor:
    r"""Sites that break :math:`S_{te^\eta}(h) \subseteq S_t(\xi h) \subseteq S_{te^{-\eta}}(h)`,
    counted per map (...).

    Args:
        h: Positive maps.
        gated: The maps behind a positive gate.
        threshold: t, one number or one per map.
        eta: Half-width of the band in the logarithm, one number or one per map.
        axes: Of the grid.
    """
    width = torch.as_tensor(eta, dtype=h.dtype, device=h.device)
    inside = superlevel(gated, threshold)
    lost = superlevel(h, threshold * width.exp()) & ~inside
    gained = inside & ~superlevel(h, threshold * (-width).exp())
    return (lost | gained).flatten(-axes).sum(-1)


def betti_numbers(kept: Tensor, graph: SiteGraph) -> tuple[Tensor, Tensor]:
    r""":math:`\beta_0` and :math:`\beta_1` of the induced subgraphs on kept sites, two int64
    tensors (...).

    All maps (..., \*grid) together are one sparse graph, whose components SciPy finds in linear
    time on the CPU.

    >>> from chaosgate.compat.roughness import cycle_graph
    >>> ring = torch.ones(2, 6, dtype=torch.bool)
    >>> ring[1, 3] = False
    >>> betti_numbers(ring, cycle_graph(6))
    (tensor([1, 1]), tensor([1, 0]))
    """
    maps, n = graph.flat(kept).bool().reshape(-1, graph.num_sites), graph.num_sites
    first, second = graph.edges.T.to(maps.device)
    joined = maps[:, first] & maps[:, second]
    sample, edge = (index.cpu().numpy() for index in joined.nonzero(as_tuple=True))
    ends = graph.edges.numpy()[edge] + n * sample[:, None]
    size = maps.numel()
    union = coo_array(
        (np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(size, size)
    )
    count, label = connected_components(union, directed=False)
    # A component lies in one map, and a site that is not kept is a component by itself.
    home, alive = np.empty(count, dtype=np.int64), np.empty(count, dtype=bool)
    home[label], alive[label] = np.arange(size) // n, maps.flatten().cpu().numpy()
    components = torch.from_numpy(np.bincount(home[alive], minlength=len(maps))).to(maps.device)
    cycles = joined.sum(-1) - maps.sum(-1) + components
    shape = kept.shape[: -len(graph.grid)]
    return components.view(shape), cycles.view(shape)


def cycle_fracture(q: float, n: int) -> float:
    r"""Probability :math:`1 - q^n` that dropout breaks a cycle of n sites (thm. cycle_fracture)."""
    return float(1 - q**n)
