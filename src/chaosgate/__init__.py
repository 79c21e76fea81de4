"""Designed internal noise for neural networks.

Choose an operator, derive the maximum-entropy Gaussian log-field, realize it as a positive mean-one
gate, attach the gate to a backbone, and measure the effect on calibration. Sub-packages follow
the order of the paper: ``field`` (the law), ``gate`` (the perturbation), ``inject`` (the network),
``compat`` (the effect there).

The names below load on first use, so that ``import chaosgate`` and ``chaosgate --help`` are fast.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("chaosgate")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "unknown"

_MODULES = ["compat", "corruptions", "data", "field", "gate", "inject", "metrics", "study", "train"]
_NAMES = {
    "compat": "CompatibilityProbe",
    "compat.advice": "advise",
    "compat.strength": "suggest_strength",
    "data": "CIFAR10 CIFAR100 FashionMNIST ImageFolder ImageNet ImageNetC OxfordPets",
    "field": """Anisotropic CovarianceFunction CovarianceMatrix Dense DirichletLaplacian
        EdgeWeighted Graph Kernel Law Massive Matern MaxEntLaw Neumann Operator Periodic Pinned
        StudentT""",
    "gate": """CorrelatedGaussian DropBlock Dropout Gate GaussianChaos IIDGaussian Mechanism design
        load_noise_state_dict noise_state_dict""",
    "inject": "Adaptive Attachment NoiseInjection Ramp Schedule attach audit resolve_stages sites",
    "train.task": "ImageClassifier",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES, *_HOME, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from chaosgate import compat, corruptions, data, field, gate, inject, metrics, study, train
    from chaosgate.compat import *
    from chaosgate.compat.advice import *
    from chaosgate.compat.strength import *
    from chaosgate.data import *
    from chaosgate.field import *
    from chaosgate.gate import *
    from chaosgate.inject import *
    from chaosgate.train.task import *


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module 'chaosgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
