"""What a deployed perturbation does to a representation (paper, sec. geometry_theory and app.
topology).

The observables are functions of tensors on grids of one, two and three axes: log-ratios and
orderings (``log_ratio``), roughness and coherence (``roughness``), superlevel sets (``topology``).
``probe`` measures them inside a network; ``verify`` compares a gate with the paper's statements.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chaosgate.compat.matching import matched_gates
from chaosgate.compat.observables import (
    SiteGraph,
    all_pairs,
    betti_numbers,
    coherence,
    cycle_fracture,
    cycle_graph,
    dropout_amplification,
    dropout_energy,
    green_metric,
    grid_graph,
    intrinsic_energy,
    lift,
    log_margin,
    log_ratio_covariance,
    log_ratio_deformation,
    log_ratio_variance,
    oscillation,
    random_pairs,
    ranking_preserved,
    ranking_probability,
    ranking_tail_bound,
    roughness_budget,
    sandwich_violations,
    sandwich_width,
    superlevel,
    weighted_mass,
)

if TYPE_CHECKING:
    from chaosgate.compat.callback import CompatibilityProbe
    from chaosgate.compat.probe import Probe, ProbeReading

# Only the callback needs Lightning, only the probe matplotlib.
_LATE = {"CompatibilityProbe": "callback", "Probe": "probe", "ProbeReading": "probe"}

__all__ = [
    "CompatibilityProbe",
    "Probe",
    "ProbeReading",
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
    "matched_gates",
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


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"chaosgate.compat.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
