r"""Observables: the effect of a perturbation on a map, as functions of tensors.

Maps are (..., \*grid); the grid is the last ``axes`` dimensions, one, two or three. Sites are
numbered with the last axis fastest; ``pairs`` are site numbers (m, 2).

*Roughness.* The intrinsic energy of a map on the graph of its sites,

.. math:: \mathcal E_{\mathrm{int}}(f) = \tfrac12 \sum_{\{x,y\}} c_{xy}\,(f(x) - f(y))^2

Unlike the energy of the design problem it has no outer boundary, so constants have energy zero and
it measures relative geometry (eq. intrinsic_energy).

*Topology.* Superlevel sets and their Betti numbers (paper, app. topology):

.. math::
    S_t(f) = \{x : f(x) \ge t\}, \qquad \beta_0 = \#\text{components}, \qquad \beta_1 =
    |E| - |V| + \beta_0

of the induced subgraph. On a grid every filled square of four sites is a cycle of that graph.

*Log-ratios.* How much stronger one site is than another. With the sample-wise gate the change of a
log-ratio is Gaussian for every map (thm. samplewise_logratio):

.. math::
    \Delta_{xy} = \log\frac{\tilde h(x)}{\tilde h(y)} - \log\frac{h(x)}{h(y)}
    \sim \mathcal N\big(0, \tau R_G(x, y)\big)

The larger the margin, the more likely the gate keeps an ordering (cor. ranking_stability). With a
mask the probability does not depend on the margin (cor. dropout_margin_blind).

Logarithms need positive maps (paper, sec. geometry_theory, "Positivity domain"). On maps after a
ReLU the formulas hold at positive sites, or everywhere after a lift :math:`h + \varepsilon`.
Signed maps raise an error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from chaosgate.field import Grid, MaxEntLaw, Operator
from chaosgate.field.operator import as_grid
from chaosgate.field.white import Noise
from chaosgate.gate import Gate, Mechanism, Multiplicative, SampleWise, Wick

__all__ = [
    "SiteGraph",
    "all_pairs",
    "betti_numbers",
    "coherence",
    "cycle_fracture",
    "cycle_graph",
    "dropout_amplification",
    "dropout_energy",
    "green_metric",
    "grid_graph",
    "intrinsic_energy",
    "lift",
    "log_margin",
    "log_ratio_covariance",
    "log_ratio_deformation",
    "log_ratio_variance",
    "oscillation",
    "random_pairs",
    "ranking_preserved",
    "ranking_probability",
    "ranking_tail_bound",
    "roughness_budget",
    "sandwich_violations",
    "sandwich_width",
    "superlevel",
    "weighted_mass",
]

_BASIS_CHUNK = 512


# -- roughness ---------------------------------------------------------------------------------


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
    edges = torch.stack([first, (first + 1) % n], 1)
    return SiteGraph((n,), edges, torch.ones(n, dtype=torch.float64))


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
    return 0.5 * float((graph.weights * green_metric(covariance, graph.edges)).sum())


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

    Large if a map has mass but varies little between sites; infinite for a constant map,
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


# -- topology ----------------------------------------------------------------------------------


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
    r"""Sites that violate :math:`S_{te^\eta}(h) \subseteq S_t(\xi h) \subseteq S_{te^{-\eta}}(h)`,
    counted per map (...).

    Args:
        h: Positive maps.
        gated: The maps after a positive gate.
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

    SciPy finds the components of all maps (..., \*grid) in linear time on the CPU.

    >>> from chaosgate.compat import cycle_graph
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
    union = coo_array((np.ones(len(ends), np.int8), tuple(ends.T)), shape=(size, size))
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


# -- log-ratios --------------------------------------------------------------------------------


def all_pairs(num_sites: int) -> Tensor:
    """Every unordered pair of different sites once, shape (n (n - 1) / 2, 2)."""
    return torch.combinations(torch.arange(num_sites), 2)


def random_pairs(num_sites: int, count: int, noise: Noise) -> Tensor:
    """``count`` independent uniform pairs of different sites, (count, 2); all pairs if there are
    fewer.
    """
    if num_sites < 2:
        raise ValueError(f"a pair needs two sites; the grid has {num_sites}.")
    if count >= num_sites * (num_sites - 1) // 2:
        return all_pairs(num_sites).to(noise.device)
    uniform = noise.uniform((2, count), torch.float64)
    first = (uniform[0] * num_sites).long()
    step = 1 + (uniform[1] * (num_sites - 1)).long()
    return torch.stack([first, (first + step) % num_sites], 1)


def pair_differences(field: Tensor, pairs: Tensor, axes: int = 2) -> Tensor:
    r""":math:`f(x) - f(y)` of fields (..., \*grid), shape (..., m)."""
    flat = field.flatten(-axes)
    return flat[..., pairs[:, 0]] - flat[..., pairs[:, 1]]


def log_ratios(h: Tensor, pairs: Tensor, axes: int = 2) -> Tensor:
    r""":math:`\log h(x) - \log h(y)`, shape (..., m).

    A zero at one site gives plus or minus infinity; zeros at both sites, or a negative value, give
    NaN.
    """
    return pair_differences(h.log(), pairs, axes)


def log_ratio_deformation(before: Tensor, after: Tensor, pairs: Tensor, axes: int = 2) -> Tensor:
    r"""Measured :math:`\Delta_{xy}` (eq. samplewise_logratio), (..., m); not finite if a site
    was deleted.
    """
    return log_ratios(after, pairs, axes) - log_ratios(before, pairs, axes)


def log_margin(h: Tensor, pairs: Tensor, axes: int = 2) -> Tensor:
    r""":math:`\delta_{xy} = |\log h(x) - \log h(y)|`, shape (..., m) (eq. log_margin)."""
    return log_ratios(h, pairs, axes).abs()


def positive_pairs(h: Tensor, pairs: Tensor, axes: int = 2) -> Tensor:
    """Whether both sites of a pair are positive: boolean, shape (..., m)."""
    positive = (h > 0).flatten(-axes)
    return positive[..., pairs[:, 0]] & positive[..., pairs[:, 1]]


def ranking_preserved(before: Tensor, after: Tensor, pairs: Tensor, axes: int = 2) -> Tensor:
    """Whether the larger of two sites is strictly larger afterwards: boolean, shape (..., m).

    A tie afterwards counts as not preserved, e.g. if a mask deletes both sites; so does a tie
    before.
    """
    first, then = (pair_differences(field, pairs, axes).sign() for field in (before, after))
    return first * then > 0


def green_metric(green: Tensor, pairs: Tensor) -> Tensor:
    r""":math:`R_G(x, y) = G(x, x) + G(y, y) - 2 G(x, y)` of a kernel (n, n), shape (m,) (eq.
    green_metric).
    """
    first, second = pairs.T
    diagonal = green.diagonal()
    return diagonal[first] + diagonal[second] - 2 * green[first, second]


def log_ratio_variance(green: Tensor, pairs: Tensor, tau: float) -> Tensor:
    r"""Predicted :math:`\mathrm{Var}(\Delta_{xy}) = \tau R_G(x, y)`, (m,) (eq.
    samplewise_logratio_var).
    """
    return tau * green_metric(green, pairs)


def log_ratio_covariance(green: Tensor, pairs: Tensor, tau: float) -> Tensor:
    r"""Joint covariance of the deformations of m pairs, shape (m, m).

    .. math:: \mathrm{Cov}(\Delta_{xy}, \Delta_{uv}) = \tau\,\big(G(x,u) - G(x,v) - G(y,u) +
    G(y,v)\big)
    """
    rows = green[pairs[:, 0]] - green[pairs[:, 1]]
    return tau * (rows[:, pairs[:, 0]] - rows[:, pairs[:, 1]])


def ranking_probability(margin: Tensor, variance: Tensor, shift: Tensor | float = 0.0) -> Tensor:
    r"""Probability that a gate keeps an ordering, :math:`\Phi(\delta/\sqrt{\tau R_G})` (eq.
    ranking_stability_exact).

    Args:
        margin: Log-margins :math:`\delta > 0`.
        variance: :math:`\tau R_G(x, y) > 0`, of a shape that broadcasts with the margins.
        shift: Mean of the deformation in the direction of the ordering: zero for the sample-wise
            gate, :math:`-\tfrac{\gamma^2}2(v(x)-v(y))` for the Wick gate.
    """
    probability: Tensor = torch.special.ndtr((margin + shift) / variance.sqrt())
    return probability


def ranking_tail_bound(margin: Tensor, variance: Tensor) -> Tensor:
    r"""Bound :math:`\exp(-\delta^2/2\tau R_G)` on the probability of losing an ordering (eq.
    ranking_stability_tail).
    """
    return torch.exp(-margin.square() / (2 * variance))


def pair_variances(operator: Operator, grid: Grid, pairs: Tensor) -> Tensor:
    r""":math:`R_G(x, y)` of pairs (m, 2), shape (m,), float64, without the n x n Green kernel.

    Computed as :math:`\sum_k (A_{xk} - A_{yk})^2` with the linear map of the sampler, :math:`A
    A^\top = G`, in parts.
    """
    n = math.prod(grid)
    total = torch.zeros(len(pairs), dtype=torch.float64)
    for start in range(0, n, _BASIS_CHUNK):
        basis = torch.eye(min(_BASIS_CHUNK, n - start), n - start, dtype=torch.float64)
        basis = torch.cat([basis.new_zeros(len(basis), start), basis], 1)
        fields = operator.color(basis.view(-1, *grid), len(grid)).flatten(1)
        total += (fields[:, pairs[:, 0]] - fields[:, pairs[:, 1]]).square().sum(0)
    return total


def chaos_operator(gate: Gate, grid: Grid) -> Operator | None:
    """The operator of a gate with Gaussian log-ratios on this grid (thm. samplewise_logratio),
    else None.

    The gate must be a sample-wise or Wick gate of a Gaussian field on the grid of the features,
    applied as a product, with the same strength for all samples.
    """
    if not isinstance(gate, Mechanism) or not isinstance(gate.realization, SampleWise | Wick):
        return None
    if gate.injection != Multiplicative() or getattr(gate, "match", None) is not None:
        return None
    law = gate.field_on(grid).law
    return law.operator if isinstance(law, MaxEntLaw) and law.grid == grid else None


def log_ratio_law(gate: Gate, grid: Grid, pairs: Tensor, metric: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance (m,) of :math:`\Delta_{xy}` under a gate that has a
    :func:`chaos_operator`.

    The variance is :math:`\tau R_G` (thm. samplewise_logratio). The mean is zero for the
    sample-wise gate and :math:`-\tfrac\tau2(G_{xx}-G_{yy})` for the Wick gate, because its
    correction differs between sites.

    Args:
        gate: The gate.
        grid: Of the features.
        pairs: Site numbers (m, 2).
        metric: Their :math:`R_G` under the gate's operator.
    """
    operator = chaos_operator(gate, grid)
    if operator is None:
        name = type(gate).__name__
        raise ValueError(f"the paper gives no law of log-ratios for {name} on grid {grid}.")
    assert isinstance(gate, Mechanism)
    realization: Any = gate.realization
    factor = 1.0 if gate.factor is None else float(gate.factor)
    tau = gate.field_on(grid).law.tau(realization.gamma * factor)
    mean = torch.zeros_like(metric)
    if isinstance(realization, Wick):
        variance = operator.variance(grid).flatten()
        mean = -0.5 * tau * (variance[pairs[:, 0]] - variance[pairs[:, 1]])
    return mean, tau * metric


def is_signed(h: Tensor) -> bool:
    """Whether any value is negative or not a number."""
    return not bool((h >= 0).all())


def lift(h: Tensor, epsilon: float = 0.01, axes: int = 2) -> Tensor:
    r""":math:`h + \varepsilon \bar h` with :math:`\bar h` the spatial mean of each map.

    The lift is relative to the map, so rescaling a map does not change its log-ratios. A zero map
    stays zero.

    >>> import torch
    >>> lift(torch.tensor([[0.0, 2.0]]), 0.5)
    tensor([[0.5000, 2.5000]])
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"the lift epsilon must be positive and finite; got {epsilon}.")
    if is_signed(h):
        raise ValueError(
            f"log-ratios need non-negative maps; {float((h < 0).double().mean()):.1%} of these "
            "values are negative. Use a stage after a ReLU."
        )
    return h + epsilon * h.mean(tuple(range(-axes, 0)), keepdim=True)
