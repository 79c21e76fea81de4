"""Image sets as data modules: pure training samples, exact counting, resumable epochs.

``Sample`` and ``Cell`` say what a batch and a part of a test set are; ``ImageData`` is the base for one's own set,
``PhotoData`` that for photographs in files, ``ArrayData`` that for small images in memory. Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaosgate.data.arrays import ArrayData
    from chaosgate.data.module import ImageData
    from chaosgate.data.photos import PhotoData
    from chaosgate.data.samples import CLEAN, Cell, Sample
    from chaosgate.data.cifar import CIFAR10, CIFAR100
    from chaosgate.data.fashion_mnist import FashionMNIST
    from chaosgate.data.hugging_face import HuggingFace
    from chaosgate.data.image_folder import ImageFolder
    from chaosgate.data.imagenet import ImageNet
    from chaosgate.data.imagenet_c import ImageNetC
    from chaosgate.data.imagenet_variants import ImageNetVariant
    from chaosgate.data.pets import OxfordPets
    from chaosgate.data.published import mean_corruption_error

_HOME = {
    "ArrayData": "arrays",
    "CIFAR10": "cifar",
    "CIFAR100": "cifar",
    "CLEAN": "samples",
    "Cell": "samples",
    "FashionMNIST": "fashion_mnist",
    "HuggingFace": "hugging_face",
    "ImageData": "module",
    "ImageFolder": "image_folder",
    "ImageNet": "imagenet",
    "ImageNetC": "imagenet_c",
    "ImageNetVariant": "imagenet_variants",
    "OxfordPets": "pets",
    "PhotoData": "photos",
    "Sample": "samples",
    "mean_corruption_error": "published",
}

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CLEAN",
    "ArrayData",
    "Cell",
    "FashionMNIST",
    "HuggingFace",
    "ImageData",
    "ImageFolder",
    "ImageNet",
    "ImageNetC",
    "ImageNetVariant",
    "OxfordPets",
    "PhotoData",
    "Sample",
    "mean_corruption_error",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
