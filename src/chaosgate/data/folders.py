"""Folders of classes: which layout is there, which files belong to which split."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate.data.splitting import hashed_split

SPLITS = ("train", "val", "test")
_ALIASES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Listing:
    """Image files of one split with their classes, in the order of the class names and then of the paths."""

    paths: list[Path]
    targets: list[int]

    def __len__(self) -> int:
        return len(self.paths)

    def without(self, left_out: Mapping[Path, str]) -> "Listing":
        """The same files except some."""
        kept = [(path, target) for path, target in zip(self.paths, self.targets, strict=True) if path not in left_out]
        return Listing([path for path, _ in kept], [target for _, target in kept])

    def digest(self, root: Path) -> str:
        """SHA-256 of names and sizes of the files (not of their content)."""
        lines = (f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n" for path in self.paths)
        return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def split_folders(root: Path) -> dict[str, Path]:
    """Folders of the splits that ``root`` has; without ``root/train`` all its class folders are one split, "all"."""
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}. Set data.root to a folder of class folders, or of train/val/test.")
    found = {split: root / name for split, names in _ALIASES.items() for name in names if (root / name).is_dir()}
    if "train" in found:
        return found
    if found:
        raise FileNotFoundError(
            f"{root} has {', '.join(folder.name for folder in found.values())} but no train. Add {root / 'train'}, or "
            "put the class folders directly under data.root."
        )
    return {"all": root}


def class_folders(folders: Mapping[str, Path]) -> list[str]:
    """Names of the classes, sorted; the same in every split."""
    names = {
        split: sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
        for split, folder in folders.items()
    }
    first, classes = next(iter(names.items()))
    if len(classes) < 2:
        raise ValueError(
            f"{folders[first]} holds {len(classes)} class folder(s) {classes}; a classifier needs two or more. Put the "
            "images of each class into a folder of its own."
        )
    for split, others in names.items():
        if others != classes:
            raise ValueError(
                f"{folders[split]} and {folders[first]} have different classes: only in the former "
                f"{sorted(set(others) - set(classes))}, only in the latter {sorted(set(classes) - set(others))}. "
                "Give every split the same class folders."
            )
    return classes


def list_split(folder: Path, classes: list[str]) -> Listing:
    """Image files below every class folder, recognised by extension as in torchvision's ``ImageFolder``."""
    paths: list[Path] = []
    targets: list[int] = []
    for target, name in enumerate(classes):
        found = sorted(
            Path(place, file)
            for place, _, files in os.walk(folder / name, followlinks=True)
            for file in files
            if file.lower().endswith(IMG_EXTENSIONS)
        )
        if not found:
            raise ValueError(
                f"no images in the class folder {folder / name} (looked for {' '.join(IMG_EXTENSIONS)}). Add images, "
                "or remove the folder from every split."
            )
        paths += found
        targets += [target] * len(found)
    return Listing(paths, targets)


def list_splits(folders: Mapping[str, Path], classes: list[str], fractions: Mapping[str, float]) -> dict[str, Listing]:
    """Files of train, val and test; a split without a folder is cut from "train" or "all" by hash of the path."""
    listings = {split: list_split(folder, classes) for split, folder in folders.items()}
    missing = {split: fractions[split] for split in SPLITS[1:] if split not in folders}
    source = "train" if "train" in folders else "all"
    if missing:
        whole = listings.pop(source)
        names = [path.relative_to(folders[source]).as_posix() for path in whole.paths]
        assigned = np.array(hashed_split(names, whole.targets, missing, class_names=classes))
        for split in ("train", *missing):
            places = np.flatnonzero(assigned == split).tolist()
            listings[split] = Listing([whole.paths[i] for i in places], [whole.targets[i] for i in places])
    return {split: listings[split] for split in SPLITS}
