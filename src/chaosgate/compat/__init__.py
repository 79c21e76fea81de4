"""The effect of a perturbation on a representation (paper, sec. geometry_theory and app.
topology).

The observables are functions of tensors on grids of one, two and three axes: log-ratios and
orderings (``log_ratio``), roughness and coherence (``roughness``), superlevel sets (``topology``).
``probe`` measures them inside a network; ``verify`` compares a gate with the paper's formulas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chaosgate.compat import observables
from chaosgate.compat.matching import matched_gates
from chaosgate.compat.observables import *  # noqa: F403

if TYPE_CHECKING:
    from chaosgate.compat.callback import CompatibilityProbe
    from chaosgate.compat.probe import Probe, ProbeReading

# Only the callback needs Lightning, only the probe matplotlib.
_LATE = {"CompatibilityProbe": "callback", "Probe": "probe", "ProbeReading": "probe"}

__all__ = ["CompatibilityProbe", "Probe", "ProbeReading", "matched_gates"]
__all__ += observables.__all__


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"chaosgate.compat.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
