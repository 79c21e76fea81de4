"""Folders of classes: which layout is there, which files belong to which split; rules that divide without a seed."""

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate.data.index import walk

SPLITS = ("train", "val", "test")
_ALIASES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Listing:
    """Image files of one split with their sizes in bytes, their classes, and the positions of symbolic links.

    Names are relative to ``root``, with "/" between folders. A million paths as objects would take half a gigabyte, so
    they are made only when asked for.
    """

    root: Path
    names: list[str]
    sizes: NDArray[np.int64]
    targets: NDArray[np.int64]
    links: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name in self.names]

    def pick(self, places: NDArray[np.int64]) -> "Listing":
        """The files at some places, in their order."""
        links = np.flatnonzero(np.isin(places, self.links))
        names = [self.names[i] for i in places.tolist()]
        return Listing(self.root, names, self.sizes[places], self.targets[places], links)

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
    found = []
    for name in classes:
        files = walk(root, (folder / name).relative_to(root).as_posix())
        if not files.names:
            raise ValueError(
                f"no images in the class folder {folder / name} (looked for {' '.join(IMG_EXTENSIONS)}). Add images, "
                "or remove the folder from every split."
            )
        found.append(files)
    counts = [len(files.names) for files in found]
    starts = np.cumsum([0, *counts[:-1]])
    return Listing(
        root,
        [name for files in found for name in files.names],
        np.concatenate([files.sizes for files in found]),
        np.repeat(np.arange(len(classes)), counts),
        np.concatenate([start + files.links for start, files in zip(starts, found, strict=True)]),
    )


def each_file_once(listings: Mapping[str, Listing], class_names: Sequence[str]) -> dict[str, Listing]:
    """The listings without second names, through symbolic links, of files that are already listed.

    Raises:
        ValueError: Two splits, or two classes, have one file: that would be trained and tested on, or is mislabelled.
    """
    places = Counter(folder for listing in listings.values() for folder in _real_folders(listing).values())
    if max(places.values(), default=0) == 1 and not any(len(listing.links) for listing in listings.values()):
        return dict(listings)
    known: dict[str, tuple[str, int]] = {}
    once: dict[str, Listing] = {}
    for split, listing in listings.items():
        kept = []
        for i, path in enumerate(_real_paths(listing)):
            first_split, first = known.setdefault(path, (split, i))
            if (first_split, first) == (split, i):
                kept.append(i)
                continue
            other = listings[first_split]
            ours, theirs = class_names[listing.targets[i]], class_names[other.targets[first]]
            if first_split != split or ours != theirs:
                raise ValueError(
                    f"{listing.root / listing.names[i]} ({split}, class {ours!r}) and "
                    f"{other.root / other.names[first]} ({first_split}, class {theirs!r}) are the same file. Give "
                    "every split and every class its own files: remove the link, or one of the two."
                )
        if len(kept) < len(listing):
            count = len(listing) - len(kept)
            rank_zero_warn(f"{count} images below {listing.root} are links to others of their class and are left out.")
        once[split] = listing.pick(np.array(kept, dtype=np.int64)) if len(kept) < len(listing) else listing
    return once


def _real_folders(listing: Listing) -> dict[str, str]:
    folders = {name.rpartition("/")[0] for name in listing.names}
    return {folder: os.path.realpath(listing.root / folder) for folder in folders}


def _real_paths(listing: Listing) -> Iterator[str]:
    folders, links = _real_folders(listing), set(listing.links.tolist())
    for i, name in enumerate(listing.names):
        folder, _, file = name.rpartition("/")
        yield os.path.realpath(listing.root / name) if i in links else os.path.join(folders[folder], file)


def split_of(folder: str) -> str | None:
    """The split that a folder's name stands for; none if it is not such a name."""
    return next((split for split, names in _ALIASES.items() if folder in names), None)


def list_splits(
    root: Path, folders: Mapping[str, Path], classes: list[str], fractions: Mapping[str, float]
) -> dict[str, Listing]:
    """Files of train, val and test; a split without a folder is cut from "train" or "all" by hash of the path."""
    listings = each_file_once({split: list_split(root, folder, classes) for split, folder in folders.items()}, classes)
    missing = {split: fractions[split] for split in SPLITS[1:] if split not in folders}
    source = "train" if "train" in folders else "all"
    if missing:
        whole = listings.pop(source)
        names = [path.relative_to(folders[source]).as_posix() for path in whole.paths]
        assigned = np.array(hashed_split(names, whole.targets, missing, class_names=classes))
        listings |= {split: whole.pick(np.flatnonzero(assigned == split)) for split in ("train", *missing)}
    return {split: listings[split] for split in SPLITS}


def spaced_holdout(targets: Sequence[int] | NDArray[np.integer], fraction: float) -> NDArray[np.bool_]:
    r"""Mark a share of every class, evenly spaced in the given order.

    Image j of a class (j = 0, 1, ... in the given order) is held out where
    :math:`\lfloor (j + 1) f \rfloor > \lfloor j f \rfloor`: a class of n images gives :math:`\lfloor n f \rfloor`.

    >>> spaced_holdout([0, 0, 0, 0, 1, 1, 1], 0.5).tolist()
    [False, True, False, True, False, True, False]
    """
    labels = np.asarray(targets)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        # multiples of a decimal fraction fall short of whole numbers by rounding: 10 * 0.3 * ... = 2.9999
        marks = np.floor(np.arange(len(places) + 1) * fraction + 1e-9)
        held[places] = np.diff(marks) > 0
    return held


def hashed_split(
    names: Sequence[str],
    targets: Sequence[int] | NDArray[np.integer],
    fractions: Mapping[str, float],
    class_names: Sequence[str],
) -> list[str]:
    r"""Split of every image, "train" or a key of ``fractions``, from the name of its file alone.

    Within a class of n images, ordered by the SHA-256 of the name, the first :math:`\max(1, \mathrm{round}(n f))` go
    to the first key of ``fractions``, the next to the second, the others to "train". Classes keep their shares, and
    neither a seed nor the order of the listing matters.
    """
    splits = ["train"] * len(names)
    for target, places in _by_hash(names, targets):
        counts = {split: max(1, round(len(places) * fraction)) for split, fraction in fractions.items()}
        if sum(counts.values()) >= len(places):
            raise ValueError(
                f"class {class_names[target]!r} has {len(places)} image(s); "
                + ", ".join(f"{split} takes {count}" for split, count in counts.items())
                + " and none is left for train. Add images, lower the fractions, or give the splits their own folders."
            )
        start = 0
        for split, count in counts.items():
            for place in places[start : start + count]:
                splits[place] = split
            start += count
    return splits


def hashed_share(
    names: Sequence[str], targets: Sequence[int] | NDArray[np.integer], share: float | int
) -> NDArray[np.int64]:
    r"""Places of a part of every class: the first by SHA-256 of the name, :math:`\max(1, \mathrm{round}(n f))` for a
    share f, as many as there are up to k for a whole number k.

    >>> hashed_share(["a", "b", "c", "d", "e"], [0, 0, 0, 0, 1], 0.5).tolist()
    [2, 3, 4]
    >>> hashed_share(["a", "b", "c", "d", "e"], [0, 0, 0, 0, 1], 3).tolist()
    [1, 2, 3, 4]
    """

    def count(size: int) -> int:
        return share if isinstance(share, int) else max(1, round(size * share))

    kept = [place for _, places in _by_hash(names, targets) for place in places[: count(len(places))]]
    return np.sort(np.array(kept, dtype=np.int64))


def some_of_each_class(listings: dict[str, Listing], counts: Mapping[str, int]) -> dict[str, Listing]:
    """At most so many images of every class in the splits that ``counts`` names, chosen by the hash of their paths."""
    kept = {
        split: hashed_share(files.names, files.targets, counts[split])
        for split, files in listings.items()
        if split in counts
    }
    return {split: files.pick(kept[split]) if split in kept else files for split, files in listings.items()}


def _by_hash(names: Sequence[str], targets: Sequence[int] | NDArray[np.integer]) -> Iterator[tuple[int, list[int]]]:
    """Classes and the places of their images in the order of the SHA-256 of the names."""
    digests = [hashlib.sha256(name.encode(errors="surrogateescape")).digest() for name in names]
    labels = np.asarray(targets)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    for target, places in zip(classes.tolist(), np.split(order, starts[1:]), strict=True):
        yield target, sorted(places.tolist(), key=digests.__getitem__)
