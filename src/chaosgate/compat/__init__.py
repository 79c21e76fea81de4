"""What a deployed perturbation does to a representation (paper, sec. geometry_theory and app. topology).

Observables, each as a closed form where there is one and as a measurement on given maps; a verifier of the paper's
statements; a probe that measures the same things inside a network.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chaosgate.compat.log_ratio import (
    all_pairs,
    dropout_ranking_probability,
    green_metric,
    is_signed,
    lift,
    log_margin,
    log_ratio_covariance,
    log_ratio_deformation,
    log_ratio_variance,
    log_ratios,
    pair_differences,
    positive_pairs,
    positive_share,
    random_pairs,
    ranking_preserved,
    ranking_probability,
    ranking_tail_bound,
    require_evidence,
    require_positive,
)
from chaosgate.compat.probe.matching import matched_gates
from chaosgate.compat.probe.measure import Probe
from chaosgate.compat.probe.reading import MethodReading, ProbeReading, StageReading
from chaosgate.compat.roughness import (
    SiteGraph,
    coherence,
    cycle_graph,
    dropout_amplification,
    dropout_energy,
    grid_graph,
    interior_graph,
    intrinsic_energy,
    roughness_budget,
    weighted_mass,
)
from chaosgate.compat.topology import (
    betti_numbers,
    cycle_fracture,
    oscillation,
    sandwich_violations,
    sandwich_width,
    superlevel,
)

if TYPE_CHECKING:
    from chaosgate.compat.probe.callback import CompatibilityProbe

__all__ = [
    "CompatibilityProbe",
    "MethodReading",
    "Probe",
    "ProbeReading",
    "SiteGraph",
    "StageReading",
    "all_pairs",
    "betti_numbers",
    "coherence",
    "cycle_fracture",
    "cycle_graph",
    "dropout_amplification",
    "dropout_energy",
    "dropout_ranking_probability",
    "green_metric",
    "grid_graph",
    "interior_graph",
    "intrinsic_energy",
    "is_signed",
    "lift",
    "log_margin",
    "log_ratio_covariance",
    "log_ratio_deformation",
    "log_ratio_variance",
    "log_ratios",
    "matched_gates",
    "oscillation",
    "pair_differences",
    "positive_pairs",
    "positive_share",
    "random_pairs",
    "ranking_preserved",
    "ranking_probability",
    "ranking_tail_bound",
    "require_evidence",
    "require_positive",
    "roughness_budget",
    "sandwich_violations",
    "sandwich_width",
    "superlevel",
    "weighted_mass",
]


def __getattr__(name: str) -> Any:
    if name == "CompatibilityProbe":  # the only thing here that needs Lightning
        return import_module("chaosgate.compat.probe.callback").CompatibilityProbe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
