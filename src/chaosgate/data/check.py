"""What is in a folder: sets of images, read through their own data modules; images that two splits share."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaosgate.data.files.folders import split_of
from chaosgate.data.module import Contents, ImageData
from chaosgate.data.sets.cifar import CIFAR10, CIFAR100
from chaosgate.data.sets.fashion_mnist import FashionMNIST
from chaosgate.data.sets.hugging_face import HuggingFace
from chaosgate.data.sets.image_folder import ImageFolder
from chaosgate.data.sets.imagenet import ImageNet
from chaosgate.data.sets.imagenet_c import ImageNetC
from chaosgate.data.sets.imagenet_variants import ImageNetVariant
from chaosgate.data.sets.pets import OxfordPets

KINDS: Sequence[type[ImageData]] = (
    FashionMNIST,
    CIFAR10,
    CIFAR100,
    OxfordPets,
    ImageNetC,
    ImageNetVariant,
    ImageNet,
    HuggingFace,
    ImageFolder,
)


def find_sets(root: Path) -> list[ImageData]:
    """Data modules of the sets in ``root``: those that are recognised by their files, else class folders."""
    found: list[ImageData] = []
    for kind in KINDS:
        taken = any(getattr(data, "root", None) == root for data in found)
        if not (kind is ImageNet and taken or kind is ImageFolder and found):
            found += kind.found_in(root)
    return found


def by_folder(root: Path, paths: Sequence[Path]) -> dict[str, Contents]:
    """Images of the folders train, val and test below ``root``."""
    parts: dict[str, list[Path]] = {}
    for path in paths:
        if (split := split_of(path.relative_to(root).parts[0])) is not None:
            parts.setdefault(split, []).append(path)
    return {split: Contents.of_files(files) for split, files in parts.items()}


def shared_images(contents: Mapping[str, Contents]) -> list[tuple[str, str]]:
    """Pairs of images with the same bytes in two splits, by name."""
    first: dict[bytes, tuple[str, str]] = {}
    shared = []
    for split, (names, read) in contents.items():
        for place, name in enumerate(names):
            known, other = first.setdefault(hashlib.sha256(read(place)).digest(), (split, name))
            if known != split:
                shared.append((other, name))
    return shared
