"""Folders of classes: which layout is there, which files belong to which split."""

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate.data.pipeline.splitting import hashed_split

SPLITS = ("train", "val", "test")
_ALIASES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Listing:
    """Image files of one split with their sizes in bytes and their classes.

    Names are relative to ``root``, with "/" between folders. A million paths as objects would take half a gigabyte, so
    they are made only when asked for.
    """

    root: Path
    names: list[str]
    sizes: NDArray[np.int64]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def paths(self) -> list[Path]:
        """The files themselves."""
        return [self.root / name for name in self.names]

    def pick(self, places: NDArray[np.int64]) -> "Listing":
        """The files at some places, in their order."""
        return Listing(self.root, [self.names[i] for i in places.tolist()], self.sizes[places], self.targets[places])

    def without(self, left_out: Collection[Path]) -> "Listing":
        """The same files except some."""
        if not left_out:
            return self
        return self.pick(np.flatnonzero([path not in left_out for path in self.paths]))

    def digest(self) -> str:
        """SHA-256 of names and sizes of the files (not of their content)."""
        lines = (f"{name} {size}\n" for name, size in zip(self.names, self.sizes.tolist(), strict=True))
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


def list_split(root: Path, folder: Path, classes: list[str]) -> Listing:
    """Image files below every class folder, recognised by extension as in torchvision's ``ImageFolder``."""
    names: list[str] = []
    sizes: list[int] = []
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
        names += [path.relative_to(root).as_posix() for path in found]
        sizes += [path.stat().st_size for path in found]
        targets += [target] * len(found)
    return Listing(root, names, np.array(sizes, dtype=np.int64), np.array(targets, dtype=np.int64))


def list_splits(
    root: Path, folders: Mapping[str, Path], classes: list[str], fractions: Mapping[str, float]
) -> dict[str, Listing]:
    """Files of train, val and test; a split without a folder is cut from "train" or "all" by hash of the path."""
    listings = {split: list_split(root, folder, classes) for split, folder in folders.items()}
    missing = {split: fractions[split] for split in SPLITS[1:] if split not in folders}
    source = "train" if "train" in folders else "all"
    if missing:
        whole = listings.pop(source)
        names = [path.relative_to(folders[source]).as_posix() for path in whole.paths]
        assigned = np.array(hashed_split(names, whole.targets, missing, class_names=classes))
        listings |= {split: whole.pick(np.flatnonzero(assigned == split)) for split in ("train", *missing)}
    return {split: listings[split] for split in SPLITS}
