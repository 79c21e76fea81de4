"""Log-geometry of the maps of a stage: what the paper predicts for a gate, and what is measured behind it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import (
    log_ratios,
    pair_differences,
    positive_pairs,
    ranking_probability,
    require_evidence,
)
from chaosgate.compat.roughness import SiteGraph
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


QUANTILES = (0.1, 0.5, 0.9)

MOST_EDGES = 512
"""Edges at which roughness of the log-maps is read; on larger grids every n-th."""


class Evidence:
    """Non-negative maps and the pairs of their sites at which logarithms exist. Signed maps are refused.

    Args:
        h: Maps (B, C, H, W).
        pairs: Site numbers (m, 2) at which log-ratios and orderings are read.
        graph: The graph of the sites; some of its edges are the pairs at which roughness is read.
    """

    def __init__(self, h: Tensor, pairs: Tensor, graph: SiteGraph) -> None:
        require_evidence(h)
        self.pairs = pairs
        self.edges = graph.edges[:: math.ceil(len(graph.edges) / MOST_EDGES)].to(h.device)
        self.positive = positive_pairs(h, pairs)
        self.joined = positive_pairs(h, self.edges)
        self.ratios = log_ratios(h, pairs)
        self.steps = log_ratios(h, self.edges)[self.joined].double()
        self.order = pair_differences(h, pairs).sign()
        self.ordered = self.positive & (self.order != 0)

    def margins(self) -> list[float]:
        """Quantiles of the log-margins between positive sites."""
        margins = self.ratios[self.positive].abs().double()
        if not len(margins):
            return [math.nan] * len(QUANTILES)
        thinned = margins[:: math.ceil(len(margins) / (1 << 20))]  # torch.quantile takes no more than 16 million
        quantiles: list[float] = torch.quantile(thinned, thinned.new_tensor(QUANTILES)).tolist()
        return quantiles

    def measured(self, gated: Sequence[Tensor]) -> dict[str, float]:
        """Numbers of :class:`~chaosgate.compat.probe.reading.MethodReading` for several draws of a gate."""
        squares, finite, kept, growth = 0.0, 0, 0, 0.0
        for after in gated:
            logs = after.log()
            deformation = (pair_differences(logs, self.pairs) - self.ratios)[self.positive].double()
            is_finite = deformation.isfinite()
            finite += int(is_finite.sum())
            squares += float(deformation[is_finite].square().sum())
            kept += int(((pair_differences(after, self.pairs) * self.order > 0) & self.ordered).sum())
            steps = pair_differences(logs, self.edges)[self.joined].double()
            growth += float(steps.square().nan_to_num(math.inf, math.inf).sum() - self.steps.square().sum())
        return {
            "deformation": math.sqrt(squares / finite) if finite else math.nan,
            "finite": _share(finite, int(self.positive.sum()) * len(gated)),
            "ranking": _share(kept, int(self.ordered.sum()) * len(gated)),
            "added_roughness": _share(growth, len(self.steps) * len(gated)),
        }

    def under_dropout(self, q: float) -> dict[str, float]:
        """The same as predicted for independent deletion of sites (thm. binary_mask_singularity)."""
        return {"finite_predicted": q**2, "ranking_predicted": q, "added_roughness_predicted": math.inf}

    def under_law(self, pairs: LogRatioLaw, edges: LogRatioLaw) -> dict[str, float]:
        """The same as predicted for a gate with Gaussian log-ratios (thm. samplewise_logratio).

        Args:
            pairs: Law of the deformations of ``self.pairs``.
            edges: Law of those of ``self.edges``.
        """
        if not bool(self.ordered.any()) or not bool(self.joined.any()):
            return {}
        mean, variance = pairs.mean.to(self.ratios), pairs.variance.to(self.ratios)
        chances = ranking_probability(self.ratios.abs(), variance, self.order * mean)
        second = (mean.square() + variance).expand_as(self.ratios)[self.positive]
        # E (s + d)^2 - s^2 with a step s and its deformation d; the sample-wise gate has no mean and no cross term.
        tilt, spread = (
            part.to(self.steps).expand_as(self.joined)[self.joined] for part in (edges.mean, edges.variance)
        )
        growth = 2 * self.steps * tilt + tilt.square() + spread
        return {
            "deformation_predicted": math.sqrt(float(second.double().mean())),
            "finite_predicted": 1.0,
            "ranking_predicted": float(chances[self.ordered].double().mean()),
            "added_roughness_predicted": float(growth.double().mean()),
        }


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan
