"""Find what would silently change a training: ``chaosgate data check``."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from chaosgate import data
from chaosgate.data.decoding import decode
from chaosgate.data.imagenet import has_classes
from chaosgate.data.listing import Listing
from chaosgate.data.module import ImageData
from chaosgate.data.samples import Split, as_tensor

NOT_READ = (".avif", ".cr2", ".dng", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".nef")
"""Suffixes of image files that no data module reads."""


class Report:
    """Findings by kind, with the files: faults affect training, notes do not."""

    def __init__(self) -> None:
        self.images: list[Path] = []
        self.sets: list[str] = []
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.notes: dict[str, list[str]] = defaultdict(list)


def check_folder(root: Path, threads: int = 1) -> Report:
    """Decode every image below ``root``, find the data sets in it, and look for copies."""
    report = Report()
    scan(root, report)
    digests: dict[str, bytes] = {}
    with ThreadPoolExecutor(threads) as pool:
        for path, (digest, kind, text) in zip(
            report.images, pool.map(inspect, report.images), strict=True
        ):
            digests[str(path)] = digest
            if kind:
                report.faults[kind].append(text)
    try:
        for found in find_sets(root):
            cells = isinstance(found, data.ImageNetC)
            for stage in ("test",) if cells else ("fit", "test"):
                with suppress(FileNotFoundError):  # ImageNet may lack one of its folders
                    found.setup(stage)
            splits = found.splits()
            if found.validation_is_test:
                splits.pop("val", None)
            counts = ", ".join(f"{len(part.targets)} {split}" for split, part in splits.items())
            classes = f"{found.num_classes} classes in {root}"
            report.sets.append(f"{found.name}: {counts} images of {classes}")
            for kind, text in copies(found, splits, digests) if not cells else ():
                report.faults[kind].append(text)
    except (ValueError, FileNotFoundError) as error:
        report.faults["reasons why the folder cannot be trained on"].append(str(error))
    return report


def scan(root: Path, report: Report) -> None:
    """Sort the files below ``root`` into images and other files, following links."""
    others: Counter[str] = Counter()
    pending: list[tuple[str, frozenset[str]]] = [(str(root), frozenset())]
    while pending:
        place, above = pending.pop()
        if (real := os.path.realpath(place)) in above:
            report.notes["links lead to a parent folder"].append(place)
            continue
        folders: dict[str, str] = {}
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name, ending = entry.name, os.path.splitext(entry.name)[1].lower()
                if os.path.isdir(entry.path):
                    pending.append((entry.path, above | {real}))
                    if (twin := folders.setdefault(name.casefold(), name)) != name:
                        text = f"{twin} and {name} in {place}"
                        report.faults["folder names differ only in case"].append(text)
                elif name[0] == "." and ending not in IMG_EXTENSIONS:
                    continue
                elif not os.path.exists(entry.path):
                    report.faults["links point to nothing"].append(entry.path)
                elif ending in IMG_EXTENSIONS:
                    report.images.append(Path(entry.path))
                elif ending in NOT_READ:
                    report.faults["images have an unsupported format; convert them"].append(
                        entry.path
                    )
                else:
                    others[ending or "no ending"] += 1
    report.images.sort()
    if others:
        report.notes["kinds of other files"] += [f"{n} {end}" for end, n in others.most_common()]


def inspect(path: Path) -> tuple[bytes, str, str]:
    """Digest of a file, and the kind and description of its fault, if any."""
    try:
        content = path.read_bytes()
        digest = hashlib.sha256(content or os.fsencode(path)).digest()
        decode(path)
        if content.startswith(b"\xff\xd8"):  # JPEG has 8 bits
            return digest, "", ""
        with Image.open(path) as image:
            low, high = image.getextrema() if image.mode[0] in "IF" else (0, 255)
    except (OSError, ValueError) as error:
        return os.fsencode(path), "images cannot be decoded", str(error)
    text = f"{path}: mode {image.mode}, values {low} to {high}"
    if high > 255:  # type: ignore[operator]
        return digest, "images saturate (values above 255 become 255); scale them to 8 bits", text
    kind = "images become black; scale them to 8 bits" if high <= 1 else ""  # type: ignore[operator]
    return digest, kind, text


def find_sets(root: Path) -> list[ImageData]:
    """Data modules for ``root``: data sets recognized by their files, else class folders."""
    found: list[ImageData] = []
    for kind in (data.FashionMNIST, data.CIFAR10, data.CIFAR100, data.OxfordPets):
        with suppress(FileNotFoundError):
            found.append(kind(str(root), corruptions=None))
    cells = sorted((*root.glob("*/[1-5]"), *root.glob("*/*/[1-5]")))
    if cells := [place for place in cells if has_classes(place)]:
        names = list(dict.fromkeys(cell.parent.name for cell in cells))
        severities: Any = sorted({int(cell.name) for cell in cells})
        found.append(data.ImageNetC(str(root), corruptions=names, severities=severities))
    elif has_classes(root / "train") or has_classes(root / "val"):
        official = has_classes(root / "val")
        found.append(data.ImageNet(str(root), validation="official" if official else "held_out"))
    elif not found:
        folders = [entry for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != "."]
        if len(folders) > 1 or (root / "train").is_dir():
            found.append(data.ImageFolder(str(root)))
    return found


def copies(
    found: ImageData, splits: Mapping[str, Split], digests: Mapping[str, bytes]
) -> Iterator[tuple[str, str]]:
    """Pairs of images with the same bytes in two splits, or with two labels."""
    first: dict[bytes, tuple[str, int, str]] = {}
    listings: dict[str, Listing] = getattr(found, "listings", {})
    for split, (images, targets) in splits.items():
        for place, target in enumerate(targets.tolist()):
            if split in listings:
                name = str(listings[split].root / listings[split].names[place])
                digest = digests.get(name, os.fsencode(name))
            else:
                name = f"{found.name} {split} {place}"
                digest = hashlib.sha256(as_tensor(images[place]).numpy().tobytes()).digest()
            other_split, label, other = first.setdefault(digest, (split, target, name))
            if other_split != split:
                text = f"{other} ({other_split}) and {name} ({split})"
                yield "pairs of copies are in two splits", text
            elif label != target:
                yield "pairs of copies have two labels", f"{other} and {name}"
