"""Lists of image files, and rules that split them without a seed."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate.data.decoding import REMEDY

SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
"""Splits and the names of their folders."""


@dataclass(frozen=True)
class Listing:
    """Image files with their sizes in bytes and their classes.

    Names are relative to ``root``, with "/" between folders. A million ``Path`` objects would take
    half a gigabyte, so :attr:`paths` makes them when asked. ``linked`` if some are behind links.
    """

    root: Path
    names: list[str]
    sizes: NDArray[np.int64]
    targets: NDArray[np.int64]
    linked: bool = False

    def __len__(self) -> int:
        return len(self.names)

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name in self.names]

    def pick(self, places: NDArray[np.int64]) -> "Listing":
        """The files at some places, in their order."""
        names = [self.names[i] for i in places.tolist()]
        return Listing(self.root, names, self.sizes[places], self.targets[places], self.linked)

    def digest(self) -> str:
        """SHA-256 of names and sizes of the files (not of their content)."""
        pairs = zip(self.names, self.sizes.tolist(), strict=True)
        text = "".join(f"{name} {size}\n" for name, size in pairs)
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def walk(root: Path, folders: Sequence[str] = ("",), deep: bool = True) -> Listing:
    """Image files in each ``root/folder``, sorted by folder and name; the class is its number.

    With ``deep`` also in the folders below. Links to folders are followed, and every real folder is
    entered once, so loops end.
    """
    names: list[str] = []
    sizes, targets, linked = [], [], False
    start, real_root = len(os.path.join(root, "")), os.path.realpath(root)
    for target, folder in enumerate(folders):
        files: list[os.DirEntry[str]] = []
        pending, entered = deque([os.path.join(root, folder)]), set()
        while pending:
            place = pending.popleft()
            if (real := os.path.realpath(place)) in entered:
                continue
            entered.add(real)
            linked |= real != os.path.normpath(os.path.join(real_root, place[start:]))
            with os.scandir(place) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.is_dir() and deep:  # links last, so that a folder keeps its own name
                        add = pending.append if entry.is_symlink() else pending.appendleft
                        add(entry.path)
                    elif entry.name.lower().endswith(IMG_EXTENSIONS) and entry.is_file():
                        files.append(entry)
        if deep:
            files.sort(key=lambda entry: entry.path[start:].split("/"))
        names += [entry.path[start:] for entry in files]
        sizes += [entry.stat().st_size for entry in files]
        targets += [target] * len(files)
        linked |= any(entry.is_symlink() for entry in files)
    return Listing(root, names, np.array(sizes, np.int64), np.array(targets, np.int64), linked)


def image_files(folder: Path) -> list[Path]:
    """Image files below ``folder``, sorted; see :func:`walk`."""
    return walk(folder).paths


def list_split(root: Path, folder: Path, classes: Sequence[str]) -> Listing:
    """Image files below every class folder in ``folder``; a class without images is refused."""
    listing = walk(root, [(folder / name).relative_to(root).as_posix() for name in classes])
    counts = np.bincount(listing.targets, minlength=len(classes))
    if not counts.all():
        raise ValueError(
            f"no images in the class folder {folder / classes[int(counts.argmin())]} (looked for "
            f"{' '.join(IMG_EXTENSIONS)}). Add images, or remove the folder from every split."
        )
    return listing


def check_files(listings: Mapping[str, Listing]) -> None:
    """Raise an error for an empty file, or one that links list twice, e.g. to train and to test."""
    seen: dict[str, Path] = {}
    linked = any(listing.linked for listing in listings.values())
    for listing in listings.values():
        for place in np.flatnonzero(listing.sizes == 0).tolist():
            path = listing.root / listing.names[place]
            raise ValueError(f"{path} is empty. {REMEDY}")
        for path in listing.paths if linked else ():
            if (first := seen.setdefault(os.path.realpath(path), path)) != path:
                raise ValueError(f"{path} and {first} are the same file. Remove one of them.")


def spaced_holdout(
    targets: Sequence[int] | NDArray[np.integer], fraction: float
) -> NDArray[np.bool_]:
    r"""Mark a share of every class, evenly spaced in the given order.

    Image j of a class (j = 0, 1, ...) is held out where
    :math:`\lfloor (j + 1) f \rfloor > \lfloor j f \rfloor`.

    >>> spaced_holdout([0, 0, 0, 0, 1, 1, 1], 0.5).tolist()
    [False, True, False, True, False, True, False]
    """
    labels = np.asarray(targets)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        # 1e-9: multiples of a decimal fraction fall short of integers by rounding
        held[places] = np.diff(np.floor(np.arange(len(places) + 1) * fraction + 1e-9)) > 0
    return held


def hashed_split(
    listing: Listing, names: Sequence[str], fractions: Mapping[str, float], classes: Sequence[str]
) -> dict[str, Listing]:
    r"""Divide a listing into "train" and the keys of ``fractions``, from ``names`` alone.

    Within a class of n images, ordered by the SHA-256 of the name, the first
    :math:`\max(1, \mathrm{round}(n f))` go to the first key of ``fractions``, the next to the
    second, the others to "train". The order of the listing does not matter.
    """
    splits = np.full(len(names), "train")
    for target, places in _by_hash(names, listing.targets):
        counts = {split: max(1, round(len(places) * f)) for split, f in fractions.items()}
        if sum(counts.values()) >= len(places):
            raise ValueError(
                f"class {classes[target]!r} has {len(places)} image(s) for {counts} and none is "
                "left for train. Add images, or lower data.val_fraction and data.test_fraction."
            )
        start = 0
        for split, count in counts.items():
            splits[places[start : start + count]] = split
            start += count
    return {split: listing.pick(np.flatnonzero(splits == split)) for split in ("train", *fractions)}


def hashed_share(
    names: Sequence[str], targets: Sequence[int] | NDArray[np.integer], count: int
) -> NDArray[np.int64]:
    """Places of the first ``count`` images of every class by SHA-256 of the name.

    >>> hashed_share(["a", "b", "c", "d", "e"], [0, 0, 0, 0, 1], 3).tolist()
    [1, 2, 3, 4]
    """
    kept = [place for _, places in _by_hash(names, targets) for place in places[:count]]
    return np.sort(np.array(kept, dtype=np.int64))


def some_of_each_class(
    listings: Mapping[str, Listing], counts: Mapping[str, int]
) -> dict[str, Listing]:
    """At most ``counts[split]`` images of every class, chosen by the hash of their paths."""
    return {
        split: files.pick(hashed_share(files.names, files.targets, counts[split]))
        if split in counts
        else files
        for split, files in listings.items()
    }


def _by_hash(
    names: Sequence[str], targets: Sequence[int] | NDArray[np.integer]
) -> Iterator[tuple[int, list[int]]]:
    """Classes and the places of their images in the order of the SHA-256 of the names."""
    digests = [hashlib.sha256(name.encode(errors="surrogateescape")).digest() for name in names]
    labels = np.asarray(targets)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    for target, places in zip(classes.tolist(), np.split(order, starts[1:]), strict=True):
        yield target, sorted(places.tolist(), key=digests.__getitem__)
