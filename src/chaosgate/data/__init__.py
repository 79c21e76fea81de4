"""Image sets as data modules: pure training samples, exact counting, resumable epochs.

``Sample`` and ``Cell`` say what a batch and a part of a test set are; ``ImageData`` is the base for one's own set, and
``PhotoData`` that for photographs in files.
"""

from chaosgate.data.fashion_mnist import FashionMNIST
from chaosgate.data.image_folder import ImageFolder
from chaosgate.data.imagenet import ImageNet
from chaosgate.data.imagenet_c import ImageNetC
from chaosgate.data.mce import mean_corruption_error
from chaosgate.data.module import ImageData
from chaosgate.data.pets import OxfordPets
from chaosgate.data.photos import PhotoData
from chaosgate.data.sample import CLEAN, Cell, Sample

__all__ = [
    "CLEAN",
    "Cell",
    "FashionMNIST",
    "ImageData",
    "ImageFolder",
    "ImageNet",
    "ImageNetC",
    "OxfordPets",
    "PhotoData",
    "Sample",
    "mean_corruption_error",
]
