"""Custom images: one folder per class, any size, any format that PIL reads."""

import os
from pathlib import Path
from typing import Any

from jsonargparse.typing import NotEmptyStr, OpenUnitInterval, PositiveInt

from chaosgate.data.listing import (
    SPLITS,
    Listing,
    hashed_split,
    list_split,
)
from chaosgate.data.photos import PhotoData


class ImageFolder(PhotoData):
    """``root/train/<class>/...`` and optionally val and test, or just ``root/<class>/...``.

    A split without a folder is taken from the training images (or from all) by
    :func:`~chaosgate.data.listing.hashed_split`: a fixed share of every class, by the hash of each
    file's path, the same on every machine. Images may be in subfolders of a class folder.

    Args:
        root: Folder of train, val (or valid, validation) and test folders, or of class folders.
        image_size: Side of the square that the network sees, in pixels.
        val_fraction: Share of each class for validation if there is no val folder.
        test_fraction: Share of each class for testing if there is no test folder.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name = "image_folder"

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        val_fraction: OpenUnitInterval = 0.1,
        test_fraction: OpenUnitInterval = 0.2,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.fractions = {"val": float(val_fraction), "test": float(test_fraction)}
        self.folders = split_folders(self.root)
        self.class_names = class_folders(self.folders)
        self.num_classes = len(self.class_names)
        if self.split_seed is not None and "val" in self.folders:
            raise ValueError(
                f"data.split_seed is {self.split_seed}; the validation images are fixed: "
                f"{self.folders['val']}."
            )

    def list_images(self, stage: str) -> dict[str, Listing]:
        """Files of every split, by folder or by hash."""
        folders, classes = self.folders, self.class_names
        listings = {split: list_split(self.root, folders[split], classes) for split in folders}
        if missing := {split: f for split, f in self.fractions.items() if split not in folders}:
            source = "train" if "train" in folders else "all"
            whole = listings.pop(source)
            names = [path.relative_to(folders[source]).as_posix() for path in whole.paths]
            listings |= hashed_split(whole, names, missing, classes, self.split_seed)
        return {split: listings[split] for split in SPLITS}

    def split_rule(self) -> str:
        cut = [f"{split} {f}" for split, f in self.fractions.items() if split not in self.folders]
        rule = f"by hash of the path, per class: {', '.join(cut)}" if cut else "folders"
        return rule + self.seed_rule()


def split_folders(root: Path) -> dict[str, Path]:
    """Folders of the splits in ``root``; without ``root/train`` all images are one split, "all"."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"no folder {root}. Set data.root to a folder of class folders, or of train/val/test."
        )
    places = {split: [root / name for name in names] for split, names in SPLITS.items()}
    found = {split: p for split, options in places.items() for p in options if p.is_dir()}
    if found and "train" not in found:
        raise FileNotFoundError(
            f"{root} has {', '.join(folder.name for folder in found.values())} but no train. Add "
            "it, or put the class folders directly under data.root."
        )
    return found or {"all": root}


def class_folders(folders: dict[str, Path]) -> list[str]:
    """Sorted names of the classes, which must be the same in every split."""
    names = {
        split: {e.name for e in os.scandir(folder) if e.is_dir() and not e.name.startswith(".")}
        for split, folder in folders.items()
    }
    (first, classes), *others = names.items()
    if len(classes) < 2:
        raise ValueError(
            f"{folders[first]} has {len(classes)} class folder(s) {sorted(classes)}; a classifier "
            "needs two or more."
        )
    for split, found in others:
        if found != classes:
            raise ValueError(
                f"{folders[split]} and {folders[first]} have different classes: only the first has "
                f"{sorted(found - classes)}, only the second {sorted(classes - found)}."
            )
    return sorted(classes)
