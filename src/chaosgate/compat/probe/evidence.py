"""Log-geometry of the maps of a stage: measured behind a gate, and as the paper predicts it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import log_ratios, pair_differences, positive_pairs
from chaosgate.compat.positive import require_evidence
from chaosgate.compat.probe.prediction import LogRatioLaw
from chaosgate.compat.ranking import ranking_probability
from chaosgate.compat.site_graph import SiteGraph

QUANTILES = (0.1, 0.5, 0.9)

MOST_EDGES = 512
"""Edges at which roughness of the log-maps is read; on larger grids every so-manieth."""


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
