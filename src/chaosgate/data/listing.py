"""Lists of image files, and rules that split them or select some of each class."""

import hashlib
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

import numpy as np
from jsonargparse.typing import NonNegativeInt, PositiveInt
from numpy.typing import NDArray
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate.data.samples import epoch_order

SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
"""Splits and the names of their folders."""
REMEDY = "Replace or remove it; chaosgate data check FOLDER lists all damaged files."
Targets = Sequence[int] | NDArray[np.integer]
Share: TypeAlias = PositiveInt | tuple[NonNegativeInt, PositiveInt]
"""The first n images of each class, or those from the first number to before the second."""
SplitSeed: TypeAlias = NonNegativeInt | Literal["run"] | None


class PerClass(TypedDict, total=False):
    """Images per class to use in a split, in the order of the hashes of their names."""

    train: Share
    val: Share
    test: Share


@dataclass(frozen=True)
class Listing:
    """Image files with their sizes in bytes and their classes.

    Names are relative to ``root``, with "/" between folders. A million ``Path`` objects would take
    half a gigabyte, so :attr:`paths` makes them on access. ``linked`` is True if some files are
    reached by links; ``unread`` counts other files by suffix, and broken links.
    """

    root: Path
    names: list[str]
    sizes: NDArray[np.int64]
    targets: NDArray[np.int64]
    linked: bool = False
    unread: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name in self.names]

    def pick(self, places: NDArray[np.int64]) -> "Listing":
        """The files at these positions, in this order."""
        names = [self.names[i] for i in places.tolist()]
        sizes, targets = self.sizes[places], self.targets[places]
        return Listing(self.root, names, sizes, targets, self.linked, self.unread)

    def digest(self) -> str:
        """SHA-256 of names and sizes of the files (not of their content)."""
        pairs = zip(self.names, self.sizes.tolist(), strict=True)
        text = "".join(f"{name} {size}\n" for name, size in pairs)
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def walk(root: Path, folders: Sequence[str] = ("",), deep: bool = True) -> Listing:
    """Image files in each ``root/folder``, sorted by folder and name; the class is its number.

    With ``deep`` also in subfolders. Links to folders are followed, and every real folder is
    visited once, so loops end. Hidden files that are not images are not counted as unread.
    """
    names: list[str] = []
    sizes, targets, linked, unread = [], [], False, Counter[str]()
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
                    linked |= (link := entry.is_symlink())
                    if os.path.isdir(entry.path) if link else entry.is_dir():
                        if deep:  # links last, so that a folder keeps its own name
                            (pending.append if link else pending.appendleft)(entry.path)
                    elif link and not os.path.exists(entry.path):
                        unread["broken link"] += 1
                    elif entry.name.lower().endswith(IMG_EXTENSIONS):
                        files.append(entry)
                    elif entry.name[0] != ".":
                        unread[os.path.splitext(entry.name)[1].lower() or "no ending"] += 1
        if deep:
            files.sort(key=lambda entry: entry.path[start:].split("/"))
        names += [entry.path[start:] for entry in files]
        sizes += [entry.stat().st_size for entry in files]
        targets += [target] * len(files)
    return Listing(
        root, names, np.array(sizes, np.int64), np.array(targets, np.int64), linked, unread
    )


def list_split(root: Path, folder: Path, classes: Sequence[str]) -> Listing:
    """Image files below every class folder in ``folder``; a class without images is an error."""
    listing = walk(root, [(folder / name).relative_to(root).as_posix() for name in classes])
    counts = np.bincount(listing.targets, minlength=len(classes))
    if empty := [str(folder / classes[i]) for i in np.flatnonzero(counts == 0).tolist()]:
        raise ValueError(
            f"no images in {len(empty)} class folder(s): {', '.join(empty)} (looked for "
            f"{' '.join(IMG_EXTENSIONS)}). Add images, or remove the folders."
        )
    if outside := sum(e.is_file() and e.name[0] != "." for e in os.scandir(folder)):
        listing.unread["outside class folders"] += outside
    return listing


def check_files(listings: Mapping[str, Listing]) -> None:
    """Raise an error for an empty file, or one that is listed twice by links."""
    seen: dict[str, Path] = {}
    linked = any(listing.linked for listing in listings.values())
    for listing in listings.values():
        if not listing.sizes.all():
            raise ValueError(f"{listing.paths[listing.sizes.argmin()]} is empty. {REMEDY}")
        for path in listing.paths if linked else ():
            if (first := seen.setdefault(os.path.realpath(path), path)) != path:
                raise ValueError(f"{path} and {first} are the same file. Remove one.")


def spaced_holdout(targets: Targets, fraction: float, seed: int | None = None) -> NDArray[np.bool_]:
    r"""Mark a share of every class, evenly spaced in the given order.

    Image j of a class (j = 0, 1, ...) is held out where
    :math:`\lfloor (j + 1) f \rfloor > \lfloor j f \rfloor`. With ``seed`` the same number of images
    per class is drawn at random instead.

    >>> spaced_holdout([0, 0, 0, 0, 1, 1, 1], 0.5).tolist()
    [False, True, False, True, False, True, False]
    """
    labels = np.asarray(targets)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        if seed is not None:
            places = places[epoch_order(seed, int(label), len(places), "split")]
        # 1e-9: multiples of a decimal fraction fall short of integers by rounding
        held[places] = np.diff(np.floor(np.arange(len(places) + 1) * fraction + 1e-9)) > 0
    return held


def hashed_split(
    listing: Listing,
    names: Sequence[str],
    fractions: Mapping[str, float],
    classes: Sequence[str],
    seed: int | None = None,
) -> dict[str, Listing]:
    r"""Divide a listing into "train" and the keys of ``fractions``, from ``names`` alone.

    Within a class of n images, ordered by the SHA-256 of the name, the first
    :math:`\max(1, \mathrm{round}(n f))` go to the first key of ``fractions``, the next to the
    second, the others to "train". The order of the listing does not matter. With ``seed``, "val"
    and "train" are drawn differently; the images of "test" stay the same.
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
    if seed is not None:
        for _, places in _by_hash(names, listing.targets, seed):
            rest = np.array([place for place in places if splits[place] != "test"])
            held = int(np.count_nonzero(splits[rest] == "val"))
            splits[rest[:held]], splits[rest[held:]] = "val", "train"
    return {split: listing.pick(np.flatnonzero(splits == split)) for split in ("train", *fractions)}


def hashed_share(
    names: Sequence[str], targets: Targets, share: Share, seed: int | None = None
) -> NDArray[np.int64]:
    """Positions of some images of every class, in the order of the SHA-256 of their names.

    >>> hashed_share(["a", "b", "c", "d", "e"], [0, 0, 0, 0, 1], 3).tolist()
    [1, 2, 3, 4]
    >>> hashed_share(["a", "b", "c", "d"], [0, 0, 0, 0], (1, 3)).tolist()
    [1, 2]
    """
    start, stop = (0, share) if isinstance(share, int) else share
    kept: list[int] = []
    for target, places in _by_hash(names, targets, seed):
        if not (chosen := places[start:stop]):
            raise ValueError(
                f"data.per_class asks for images {start} to {stop - 1} of each class; class "
                f"{target} has {len(places)}."
            )
        kept += chosen
    return np.sort(np.array(kept, dtype=np.int64))


def _by_hash(
    names: Sequence[str], targets: Targets, seed: int | None = None
) -> Iterator[tuple[int, list[int]]]:
    """Classes and the places of their images in the order of the SHA-256 of the names."""
    prefix = "" if seed is None else f"{seed}/"
    digests = [
        hashlib.sha256((prefix + name).encode(errors="surrogateescape")).digest() for name in names
    ]
    labels = np.asarray(targets)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    for target, places in zip(classes.tolist(), np.split(order, starts[1:]), strict=True):
        yield target, sorted(places.tolist(), key=digests.__getitem__)
