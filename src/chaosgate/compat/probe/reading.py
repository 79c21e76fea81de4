"""What one look at one stage gives: numbers about its maps, and about each gate on them."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from chaosgate.field import Grid


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
