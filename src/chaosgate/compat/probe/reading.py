"""What one measurement at one stage gives: numbers about its maps, and about each gate on them."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from chaosgate.compat.log_ratio import is_signed, random_pairs
from chaosgate.compat.probe.evidence import Evidence, RatioMetric, keep_probability, log_ratio_law
from chaosgate.compat.roughness import coherence, dropout_amplification, grid_graph, intrinsic_energy, weighted_mass
from chaosgate.compat.topology import betti_numbers, superlevel
from chaosgate.field import Grid
from chaosgate.field.white import Noise, advance
from chaosgate.gate import Gate


@dataclass(frozen=True)
class StageReading:
    r"""A stage without any gate. Maps are single channels of single images.

    Attributes:
        stage: The name asked for.
        module: The module behind it.
        grid: Height and width.
        maps: Number of maps looked at.
        signed: Whether any value is negative; then there is no log-geometry here, and its numbers are not numbers.
        positive_share: Share of sites with a positive value, beside every number about logarithms.
        coherence: :math:`\kappa` of all maps together, mass over roughness.
        coherence_median: Of the single maps.
        coherence_pooled: :math:`\kappa` of all maps after average pooling to the coarsest grid among the stages. Kappa
            compares neighbours, which are further apart on a coarse grid; this one compares stages at one distance.
        roughness: Intrinsic energy divided by the squared norm.
        margin_low: A tenth of the log-margins between positive sites lie below.
        margin_median: Half of them.
        margin_high: Nine tenths.
    """

    stage: str
    module: str
    grid: Grid
    maps: int
    signed: bool
    positive_share: float
    coherence: float
    coherence_median: float
    coherence_pooled: float
    roughness: float
    margin_low: float
    margin_median: float
    margin_high: float


@dataclass(frozen=True)
class MethodReading:
    """A gate at a stage. A prediction is not a number where the paper makes none.

    Attributes:
        stage: The name asked for.
        method: Name of the method; the gate of the run has ``(attached)`` behind it.
        gate: The module in words, with its strength.
        energy: Injected energy over energy of the features, as realised.
        deformation: Root mean square of the finite deformations of log-ratios.
        deformation_predicted: By thm. samplewise_logratio.
        finite: Share of log-ratios that stay finite.
        finite_predicted: One, or q^2 for dropout.
        ranking: Share of orderings that survive.
        ranking_predicted: By cor. ranking_stability, or q for dropout.
        inflation: Factor on the intrinsic energy.
        inflation_predicted: By cor. coherence_factor for dropout.
        added_roughness: Mean growth of a squared log-difference between neighbours; infinite where sites were deleted.
        added_roughness_predicted: By cor. samplewise_intrinsic.
        topology: Share of superlevel sets (at the mean of each map) whose Betti numbers stay the same.
        components: Number of components after, over before.
        loops: Number of independent cycles after, over before.
        logit_change: Relative change of the network's output.
        agreement: Share of images whose top class stays the same.
    """

    stage: str
    method: str
    gate: str
    energy: float
    deformation: float = math.nan
    deformation_predicted: float = math.nan
    finite: float = math.nan
    finite_predicted: float = math.nan
    ranking: float = math.nan
    ranking_predicted: float = math.nan
    inflation: float = math.nan
    inflation_predicted: float = math.nan
    added_roughness: float = math.nan
    added_roughness_predicted: float = math.nan
    topology: float = math.nan
    components: float = math.nan
    loops: float = math.nan
    logit_change: float = math.nan
    agreement: float = math.nan


@dataclass(frozen=True)
class ProbeReading:
    """All stages and methods of one look."""

    stages: tuple[StageReading, ...]
    methods: tuple[MethodReading, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, a row per stage (``kind: stage``) and one per method (``kind: method``); no NaN, no infinity."""
        both = [{"kind": "stage", **asdict(s)} for s in self.stages]
        both += [{"kind": "method", **asdict(m)} for m in self.methods]
        return [{name: _plain(value) for name, value in row.items()} for row in both]

    def scalars(self) -> dict[str, float]:
        """The finite numbers, by names for a logger: ``L4/coherence``, ``L4/dropout/ranking``."""
        named = [(s.stage, asdict(s)) for s in self.stages]
        named += [(f"{m.stage}/{m.method}", asdict(m)) for m in self.methods]
        return {
            f"{prefix}/{name}": value
            for prefix, values in named
            for name, value in values.items()
            if isinstance(value, float) and math.isfinite(value)
        }

    def of(self, stage: str, method: str) -> MethodReading:
        """The reading of one method at one stage."""
        return next(m for m in self.methods if (m.stage, m.method) == (stage, method))

    def method_names(self) -> list[str]:
        """In the order of the first stage."""
        return list(dict.fromkeys(m.method for m in self.methods))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


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
        pooled, graph = adaptive_avg_pool2d(self.h, (coarsest[0], coarsest[1])), grid_graph(coarsest)
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
