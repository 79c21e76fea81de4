"""Designed internal noise for neural networks.

Choose an operator, derive the maximum-entropy Gaussian log-field, realise it as a positive mean-one
gate, attach the gate to a backbone, and measure what it does to calibration. Sub-packages follow
the order of the paper: ``field`` (the law), ``gate`` (the perturbation), ``inject`` (the network),
``compat`` (what it does there).

The names below load on first use, so that ``import chaosgate`` and ``chaosgate --help`` stay quick.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("chaosgate")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

_MODULES = ("compat", "corruptions", "data", "field", "gate", "inject", "metrics", "study", "train")
_HOMES = (
    "run.advice",
    "field",
    "gate",
    "inject",
    "data",
    "train.task",
    "compat",
    "compat.strength",
)

__all__ = [
    "Anisotropic",
    "Attachment",
    "CIFAR10",
    "CIFAR100",
    "CompatibilityProbe",
    "CorrelatedGaussian",
    "CovarianceFunction",
    "CovarianceMatrix",
    "Dense",
    "DirichletLaplacian",
    "DropBlock",
    "Dropout",
    "EdgeWeighted",
    "FashionMNIST",
    "Gate",
    "GaussianChaos",
    "Graph",
    "IIDGaussian",
    "ImageClassifier",
    "ImageFolder",
    "ImageNet",
    "ImageNetC",
    "Kernel",
    "Law",
    "Massive",
    "Matern",
    "MaxEntLaw",
    "Mechanism",
    "Neumann",
    "NoiseInjection",
    "Operator",
    "OxfordPets",
    "Periodic",
    "Pinned",
    "Ramp",
    "StudentT",
    "__version__",
    "advise",
    "attach",
    "audit",
    "compat",
    "corruptions",
    "data",
    "design",
    "field",
    "gate",
    "inject",
    "load_noise_state_dict",
    "metrics",
    "noise_state_dict",
    "resolve_stages",
    "sites",
    "study",
    "suggest_strength",
    "train",
]

if TYPE_CHECKING:
    from chaosgate import compat, corruptions, data, field, gate, inject, metrics, study, train
    from chaosgate.compat import *
    from chaosgate.compat.strength import *
    from chaosgate.data import CIFAR10, CIFAR100, FashionMNIST, ImageFolder, ImageNet, ImageNetC
    from chaosgate.data import OxfordPets as OxfordPets
    from chaosgate.field import *
    from chaosgate.gate import *
    from chaosgate.inject import *
    from chaosgate.run.advice import *
    from chaosgate.train.task import *


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
        return next(getattr(home, name) for home in homes if hasattr(home, name))
    raise AttributeError(f"module 'chaosgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
