r"""Relative evidence of positive maps: how much stronger one site is than another, and what a gate
does to that.

Under the sample-wise gate the deformation of a log-ratio is Gaussian, whatever the map (thm.
samplewise_logratio):

.. math::
    \Delta_{xy} = \log\frac{\tilde h(x)}{\tilde h(y)} - \log\frac{h(x)}{h(y)}
    \sim \mathcal N\big(0, \tau R_G(x, y)\big)

The gate keeps an ordering the more surely the larger its margin. A mask keeps it with the same
probability at any margin (cor. ranking_stability, cor. dropout_margin_blind).

Logarithms need positive maps (paper, sec. geometry_theory, "Positivity domain"). On maps behind a
ReLU the statements hold at the positive sites, or everywhere after a lift :math:`h + \varepsilon`.
Signed maps are refused.

Maps are (..., \*grid); the grid is the last ``axes`` dimensions. Sites are numbered with the last
axis fastest; ``pairs`` are site numbers (m, 2).
"""

import math

import torch
from torch import Tensor

from chaosgate.field import Grid, MaxEntLaw, Operator
from chaosgate.field.white import Noise
from chaosgate.gate import Gate, Mechanism, Multiplicative, SampleWise, Wick

_BASIS_CHUNK = 512


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
    r"""Measured :math:`\Delta_{xy}` (eq. samplewise_logratio), (..., m); not finite where a site
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

    A tie afterwards is an ordering lost, as when a mask deletes both sites. A tie before is never
    kept.
    """
    return (
        pair_differences(after, pairs, axes).sign() * pair_differences(before, pairs, axes).sign()
        > 0
    )


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
    r"""Bound :math:`\exp(-\delta^2/2\tau R_G)` on the chance of losing an ordering (eq.
    ranking_stability_tail).
    """
    return torch.exp(-margin.square() / (2 * variance))


def pair_variances(operator: Operator, grid: Grid, pairs: Tensor) -> Tensor:
    r""":math:`R_G(x, y)` of pairs (m, 2), shape (m,), float64, without the n x n Green kernel.

    From the linear map of the sampler, :math:`\sum_k (A_{xk} - A_{yk})^2` with :math:`A A^\top =
    G`, a part of the basis at a time.
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
    """The operator behind a gate with Gaussian log-ratios on this grid (thm. samplewise_logratio),
    else None.

    That is a plain product with a sample-wise or Wick gate of a Gaussian field, sampled on the grid
    of the features, at one strength for all samples.
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
    if (
        operator is None
        or not isinstance(gate, Mechanism)
        or not isinstance(gate.realization, SampleWise | Wick)
    ):
        raise ValueError(
            f"the paper gives no law of log-ratios for {type(gate).__name__} on grid {grid}."
        )
    dial = 1.0 if gate.dial is None else float(gate.dial)
    tau = gate.field_on(grid).law.tau(gate.realization.gamma * dial)
    mean = torch.zeros_like(metric)
    if isinstance(gate.realization, Wick):
        variance = operator.variance(grid).flatten()
        mean = -0.5 * tau * (variance[pairs[:, 0]] - variance[pairs[:, 1]])
    return mean, tau * metric


def is_signed(h: Tensor) -> bool:
    """Whether any value is negative or not a number."""
    return not bool((h >= 0).all())


def lift(h: Tensor, epsilon: float = 0.01, axes: int = 2) -> Tensor:
    r""":math:`h + \varepsilon \bar h` with :math:`\bar h` the spatial mean of each map.

    The lift is relative to the map, so that rescaling a map does not change its log-ratios. A map
    that is zero everywhere stays zero.

    >>> import torch
    >>> lift(torch.tensor([[0.0, 2.0]]), 0.5)
    tensor([[0.5000, 2.5000]])
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"the lift epsilon must be positive and finite; got {epsilon}.")
    if is_signed(h):
        raise ValueError(
            f"log-ratios need non-negative maps; {float((h < 0).double().mean()):.1%} of these "
            "values are negative. Use a stage behind a ReLU."
        )
    return h + epsilon * h.mean(tuple(range(-axes, 0)), keepdim=True)
