"""What the paper predicts for a given gate on given pairs of sites, where it predicts something."""

from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.field import Grid, Operator
from chaosgate.gate import Dropout, Gate, Mechanism, Multiplicative, SampleWise, Wick

_BASIS_CHUNK = 512


@dataclass(frozen=True)
class LogRatioLaw:
    """Mean and variance of the Gaussian deformation of log-ratios, each (m,)."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class RatioMetric:
    """Pairs of sites (m, 2) with their R_G (m,) under one operator: those that are compared, and the edges."""

    pairs: tuple[Tensor, Tensor]
    edges: tuple[Tensor, Tensor]


def ratio_metric(operator: Operator, grid: Grid, pairs: Tensor, edges: Tensor) -> RatioMetric:
    """Both at once, on the CPU."""
    pairs, edges = pairs.cpu(), edges.cpu()
    both = pair_variances(operator, grid, torch.cat([pairs, edges]))
    return RatioMetric((pairs, both[: len(pairs)]), (edges, both[len(pairs) :]))


def pair_variances(operator: Operator, grid: Grid, pairs: Tensor) -> Tensor:
    r""":math:`R_G(x, y)` of pairs (m, 2), shape (m,), float64, without the n x n Green kernel.

    From the linear map of the sampler, :math:`\sum_k (A_{xk} - A_{yk})^2` with :math:`A A^\top = G`, a piece of the
    basis at a time.
    """
    n = grid[0] * grid[1]
    total = torch.zeros(len(pairs), dtype=torch.float64)
    for start in range(0, n, _BASIS_CHUNK):
        stop = min(start + _BASIS_CHUNK, n)
        basis = torch.zeros(stop - start, n, dtype=torch.float64)
        basis[torch.arange(stop - start), torch.arange(start, stop)] = 1.0
        fields = operator.color(basis.view(-1, *grid)).flatten(1)
        total += (fields[:, pairs[:, 0]] - fields[:, pairs[:, 1]]).square().sum(0)
    return total


def chaos_operator(gate: Gate, grid: Grid) -> Operator | None:
    """The operator behind a gate to which the log-ratio theorem applies on this grid, else None.

    It applies to plain products with a sample-wise or Wick gate that is sampled on the grid of the features, at one
    strength for all samples.
    """
    if not isinstance(gate, Mechanism) or not isinstance(gate.realization, SampleWise | Wick):
        return None
    if gate.injection != Multiplicative() or getattr(gate, "match", None) is not None:
        return None
    law = gate.field_on(grid).law
    return law.operator if law.grid == grid else None


def log_ratio_law(gate: Gate, grid: Grid, pairs: Tensor, metric: Tensor) -> LogRatioLaw:
    r"""The law of :math:`\Delta_{xy}` under a gate that has a :func:`chaos_operator` (thm. samplewise_logratio).

    The Wick gate adds the mean :math:`-\tfrac\tau2(G_{xx}-G_{yy})`, because its correction differs between sites.

    Args:
        gate: The gate.
        grid: Of the features.
        pairs: Site numbers (m, 2).
        metric: Their :math:`R_G` under the gate's operator.
    """
    operator = chaos_operator(gate, grid)
    if operator is None or not isinstance(gate, Mechanism) or not isinstance(gate.realization, SampleWise | Wick):
        raise ValueError(f"the paper gives no law of log-ratios for {type(gate).__name__} on grid {grid}.")
    dial = 1.0 if gate.dial is None else float(gate.dial)
    tau = gate.field_on(grid).law.tau(gate.realization.gamma * dial)
    mean = torch.zeros_like(metric)
    if isinstance(gate.realization, Wick):
        variance = operator.variance(grid).flatten()
        mean = -0.5 * tau * (variance[pairs[:, 0]] - variance[pairs[:, 1]])
    return LogRatioLaw(mean, tau * metric)


def keep_probability(gate: Gate) -> float | None:
    """The q of a gate that keeps every site of a channel independently, else None."""
    if not isinstance(gate, Dropout):
        return None
    return 1 - gate.p * (1.0 if gate.dial is None else float(gate.dial))
