"""The observables of one stage: of its maps, and of what a gate makes of them."""

import math

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from chaosgate.compat.energy import coherence, dropout_amplification, intrinsic_energy, weighted_mass
from chaosgate.compat.log_ratio import random_pairs
from chaosgate.compat.positive import is_signed
from chaosgate.compat.probe.evidence import Evidence
from chaosgate.compat.probe.prediction import RatioMetric, keep_probability, log_ratio_law
from chaosgate.compat.probe.reading import MethodReading, StageReading
from chaosgate.compat.site_graph import grid_graph
from chaosgate.compat.topology import betti_numbers, superlevel
from chaosgate.field import Grid
from chaosgate.field.white import Noise, advance
from chaosgate.gate import Gate

TOPOLOGY_SITES = 1 << 20
"""Sites of the superlevel sets that are analysed per gate; more maps than that holds are left out."""


class StageMaps:
    """The maps of one stage, and everything about them that does not depend on a gate.

    Args:
        stage: The name asked for.
        module: The module behind it.
        h: Maps (B, C, H, W).
        num_pairs: How many pairs of sites are compared.
        key: Selects the pairs, and the noise of the gates.
    """

    def __init__(self, stage: str, module: str, h: Tensor, num_pairs: int, key: Tensor) -> None:
        self.stage, self.module, self.h, self.key = stage, module, h, key
        self.grid = (int(h.shape[-2]), int(h.shape[-1]))
        self.graph = grid_graph(self.grid)
        self.pairs = random_pairs(self.graph.num_sites, num_pairs, Noise(advance(key, 0)))
        self.evidence = None if is_signed(h) else Evidence(h, self.pairs, self.graph)
        self.energy = intrinsic_energy(h, self.graph).double().sum()
        self.coherence = _ratio(weighted_mass(h, self.graph).double().sum(), 2 * self.energy)

    def reading(self, coarsest: Grid) -> StageReading:
        """The stage without any gate; ``coarsest`` is the smallest grid among the stages that are compared."""
        kappa = coherence(self.h, self.graph)
        alive = kappa[~kappa.isnan()]
        pooled, graph = adaptive_avg_pool2d(self.h, coarsest), grid_graph(coarsest)
        pooled_energy = intrinsic_energy(pooled, graph).double().sum()
        low, median, high = [math.nan] * 3 if self.evidence is None else self.evidence.margins()
        return StageReading(
            stage=self.stage,
            module=self.module,
            grid=self.grid,
            maps=self.h.shape[0] * self.h.shape[1],
            signed=self.evidence is None,
            positive_share=float((self.h > 0).double().mean()),
            coherence=self.coherence,
            coherence_median=float(alive.median()) if len(alive) else math.nan,
            coherence_pooled=_ratio(weighted_mass(pooled, graph).double().sum(), 2 * pooled_energy),
            roughness=_ratio(self.energy, self.h.double().square().sum()),
            margin_low=low,
            margin_median=median,
            margin_high=high,
        )

    def behind(self, method: str, gate: Gate, draws: int, metric: RatioMetric | None) -> MethodReading:
        """The stage behind a gate.

        Args:
            method: Name of the method.
            gate: The gate.
            draws: How many gates per image.
            metric: R_G under the gate's operator, where the paper predicts log-ratios.
        """
        gated = [self.gated(gate, draw) for draw in range(draws)]
        injected = sum(float((after - self.h).double().square().sum()) for after in gated) / draws
        inflated = sum(float(intrinsic_energy(after, self.graph).double().sum()) for after in gated) / draws
        numbers = {
            "energy": injected / max(float(self.h.double().square().sum()), 1e-300),
            "inflation": inflated / float(self.energy) if float(self.energy) > 0 else math.nan,
        }
        keep = keep_probability(gate)
        if keep is not None:
            numbers["inflation_predicted"] = float(dropout_amplification(self.coherence, keep))
        if self.evidence is not None:
            numbers |= self.evidence.measured(gated) | self._topology(gated[0])
            if keep is not None:
                numbers |= self.evidence.under_dropout(keep)
            elif metric is not None:
                laws = [log_ratio_law(gate, self.grid, *part) for part in (metric.pairs, metric.edges)]
                numbers |= self.evidence.under_law(*laws)
        words = f"{type(gate).__name__}({gate.extra_repr()})"
        return MethodReading(stage=self.stage, method=method, gate=words, **numbers)

    def gated(self, gate: Gate, draw: int) -> Tensor:
        """The maps under one numbered draw of a gate."""
        return gate.perturb(self.h, Noise(advance(self.key, draw + 1)))

    def _topology(self, after: Tensor) -> dict[str, float]:
        """Betti numbers of superlevel sets at the mean of each map, before and after one gate."""
        most = max(1, TOPOLOGY_SITES // self.graph.num_sites)
        maps, behind = (f.flatten(0, 1)[:most] for f in (self.h, after))
        level = maps.mean((-2, -1))
        alive = level > 0
        if not bool(alive.any()):
            return {}
        maps, behind, level = maps[alive], behind[alive], level[alive]
        components, loops = betti_numbers(superlevel(maps, level), self.graph)
        components_after, loops_after = betti_numbers(superlevel(behind, level), self.graph)
        same = (components == components_after) & (loops == loops_after)
        return {
            "topology": float(same.double().mean()),
            "components": _ratio(components_after.sum(), components.sum()),
            "loops": _ratio(loops_after.sum(), loops.sum()),
        }


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    return float(torch.as_tensor(numerator).double() / torch.as_tensor(denominator).double())
