"""ImageNet-1k (Deng et al. 2009): class folders named by WordNet id.

Class k is line k of the package's list of WordNet ids, independent of the folders found.
"""

import os
import re
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jsonargparse.typing import NotEmptyStr, OpenUnitInterval, PositiveInt
from lightning.pytorch.utilities import rank_zero_warn

from chaosgate.data.listing import Listing, hashed_split, walk
from chaosgate.data.photos import PhotoData

WNID = re.compile(r"n\d{8}")
COUNTS = {"train": 1_281_167, "val": 50_000}


class ImageNet(PhotoData):
    """1,281,167 training photographs of 1,000 classes, and 50,000 for validation.

    The validation photographs are also the test set.

    The layout is torchvision's, ``train/<wnid>/`` and ``val/<wnid>/``: its class ``ImageNet``
    unpacks the original archives. A folder with few classes keeps their true labels. Missing
    images give a warning and are recorded in result rows; additional images or other classes raise
    an error.

    Checkpoints are selected on validation images: ``official`` takes the test images themselves, as
    the paper does; ``held_out`` takes a share of every training class by the hash of the file name
    (:func:`~chaosgate.data.listing.hashed_split`) and does not train on it.

    Args:
        root: Folder of train and val.
        image_size: Side of the square that the network sees, in pixels.
        validation: ``official`` or ``held_out``.
        val_fraction: Share of each training class that is held out; 0.01 gives about 12,800 images.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name = "imagenet"
    num_classes = 1000
    has_clean = True  # ImageNetC may come without clean images

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        validation: Literal["official", "held_out"] = "official",
        val_fraction: OpenUnitInterval = 0.01,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.validation, self.val_fraction = validation, float(val_fraction)
        self.class_names = list(wnids())
        self.found: dict[str, dict[str, int]] = {}
        if self.has_clean and not any((self.root / split).is_dir() for split in COUNTS):
            self.list_split("val")

    def list_images(self, stage: str) -> dict[str, Listing]:
        """The splits needed for the stage."""
        if stage not in ("fit", "validate"):
            return {"test": self.list_split("val")}
        if self.validation == "official":
            val = {"val": self.list_split("val")}
            return {"train": self.list_split("train"), **val} if stage == "fit" else val
        whole = self.list_split("train")
        names = [name.rsplit("/", 1)[-1] for name in whole.names]  # the same in every layout
        shares = {"val": self.val_fraction}
        return hashed_split(whole, names, shares, self.class_names, self.split_seed)

    @property
    def validation_is_test(self) -> bool:
        """True for the paper's protocol."""
        return self.validation == "official"

    def split_rule(self) -> str:
        if self.validation == "official":
            return (
                "official train and val; checkpoints are selected on the test images (the paper's "
                "protocol)"
            )
        return (
            f"official val for test; {self.val_fraction} of each training class held out by hash "
            f"of the file name{self.seed_rule()}"
        )

    def describe(self) -> dict[str, Any]:
        """As for all photographs; also ``subset`` if images are missing."""
        missing = {
            split: COUNTS[split] - found["images"]
            for split, found in self.found.items()
            if found["images"] < COUNTS[split]
        }
        about = {
            **super().describe(),
            "subset": self.per_class or bool(missing),
            "validation": self.validation,
        }
        if missing:
            classes = {split: self.found[split]["classes"] for split in missing}
            about |= {"missing": missing, "classes_found": classes}
        return about

    def list_split(self, split: str) -> Listing:
        folder = self.root / split
        if not folder.is_dir():
            raise FileNotFoundError(
                f"no {split} folder in {self.root}. Set data.root to a folder with "
                f"{split}/<wnid>/ (torchvision.datasets.ImageNet unpacks it)."
            )
        return self.counted(split, list_class_folders(folder), folder)

    def counted(self, split: str, listing: Listing, folder: Path) -> Listing:
        """The listing; an error if it is empty or too long, a warning if images are missing."""
        total, classes = len(listing), len(np.unique(listing.targets))
        text = f"{folder} has {total} of the {COUNTS[split]} {split} images of ImageNet-1k"
        if not 0 < total <= COUNTS[split]:
            raise ValueError(f"{text}. Unpack the set, or remove other images.")
        if total < COUNTS[split] and split not in self.found:
            rank_zero_warn(f"{text}, in {classes} of 1000 classes. Rows record this.")
        self.found[split] = {"images": total, "classes": classes}
        return listing


@lru_cache
def wnids() -> tuple[str, ...]:
    """WordNet ids in label order, which is their alphabetical order.

    >>> len(wnids()), wnids()[0], wnids()[999]
    (1000, 'n01440764', 'n15075141')
    """
    return tuple((files("chaosgate.data") / "imagenet_wnids.txt").read_text().split())


@lru_cache
def labels() -> dict[str, int]:
    """Label of every WordNet id."""
    return {wnid: label for label, wnid in enumerate(wnids())}


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]


def has_classes(folder: Path) -> bool:
    """Whether ``folder`` has folders named by WordNet id."""
    return folder.is_dir() and any(WNID.fullmatch(name) for name in _folders(folder))


def list_class_folders(folder: Path) -> Listing:
    """Files of the class folders; labels from the package's list."""
    found = _folders(folder)
    if strangers := sorted(set(found) - set(labels())):
        raise ValueError(
            f"{folder} has {len(strangers)} folder(s) that are not classes of ImageNet-1k, among "
            f"them {', '.join(strangers[:3])}. Name classes by WordNet id, or use ImageFolder."
        )
    chosen = sorted(found)
    listing = walk(folder, chosen, deep=False)
    targets = np.array([labels()[name] for name in chosen], dtype=np.int64)
    return replace(listing, targets=targets[listing.targets])
