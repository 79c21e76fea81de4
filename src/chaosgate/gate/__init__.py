"""From a field to a perturbation of a feature map: realizations, Gaussian Chaos, baselines,
controls.

Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaosgate.gate.base import *
    from chaosgate.gate.desiderata import *
    from chaosgate.gate.dropout import *
    from chaosgate.gate.gaussian import *
    from chaosgate.gate.gaussian_chaos import *
    from chaosgate.gate.matched import *
    from chaosgate.gate.mechanism import *
    from chaosgate.gate.realization import *

__all__ = [
    "Additive",
    "CorrelatedGaussian",
    "DesignError",
    "DropBlock",
    "Dropout",
    "Gate",
    "GaussianChaos",
    "IIDGaussian",
    "IIDLogNormal",
    "Matched",
    "Mechanism",
    "Multiplicative",
    "Plain",
    "SampleWise",
    "Signed",
    "SignedCorrelated",
    "Wick",
    "design",
    "gate_kernel",
    "load_noise_state_dict",
    "noise_state_dict",
    "samplewise",
    "signed",
    "small_gamma_expansion",
    "wick",
    "wick_moment",
]

MODULES = "base realization mechanism gaussian_chaos dropout gaussian matched desiderata".split()


def __getattr__(name: str) -> Any:
    for module in MODULES if name in __all__ else ():
        home = import_module(f"{__name__}.{module}")
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
