"""Image data modules: deterministic training samples, exact counting, resumable epochs.

``Sample`` is a batch and ``Cell`` a part of a test. Base classes are ``ImageData``, ``PhotoData``
for photographs in files and ``ArrayData`` for small images in memory. Names load
on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaosgate.data.arrays import ArrayData as ArrayData
    from chaosgate.data.cifar import CIFAR10 as CIFAR10
    from chaosgate.data.cifar import CIFAR100 as CIFAR100
    from chaosgate.data.fashion_mnist import FashionMNIST as FashionMNIST
    from chaosgate.data.image_folder import ImageFolder as ImageFolder
    from chaosgate.data.imagenet import ImageNet as ImageNet
    from chaosgate.data.imagenet_c import ImageNetC as ImageNetC
    from chaosgate.data.module import ImageData as ImageData
    from chaosgate.data.pets import OxfordPets as OxfordPets
    from chaosgate.data.photos import PhotoData as PhotoData
    from chaosgate.data.samples import CLEAN as CLEAN
    from chaosgate.data.samples import Cell as Cell
    from chaosgate.data.samples import Sample as Sample

_NAMES = {
    "arrays": "ArrayData",
    "cifar": "CIFAR10 CIFAR100",
    "fashion_mnist": "FashionMNIST",
    "image_folder": "ImageFolder",
    "imagenet": "ImageNet",
    "imagenet_c": "ImageNetC",
    "module": "ImageData",
    "pets": "OxfordPets",
    "photos": "PhotoData",
    "samples": "CLEAN Cell Sample",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
