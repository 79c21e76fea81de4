"""Operators, the maximum-entropy laws they determine, and samplers of these laws (paper, sections 4
and 5).

Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaosgate.field.graph import *
    from chaosgate.field.grids import *
    from chaosgate.field.law import *
    from chaosgate.field.matrices import *
    from chaosgate.field.operator import *
    from chaosgate.field.pinned import *

__all__ = [
    "Anisotropic",
    "BandLimited",
    "CovarianceFunction",
    "CovarianceMatrix",
    "Dense",
    "DirichletLaplacian",
    "EdgeWeighted",
    "FeatureGraph",
    "Fractional",
    "Graph",
    "Grid",
    "Identity",
    "Kernel",
    "Law",
    "Massive",
    "Matern",
    "MaxEntLaw",
    "MultiScale",
    "Neumann",
    "Operator",
    "Periodic",
    "Pinned",
    "Spectral",
    "StudentT",
]

MODULES = "operator grids law matrices graph pinned".split()


def __getattr__(name: str) -> Any:
    for module in MODULES if name in __all__ else ():
        home = import_module(f"{__name__}.{module}")
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
