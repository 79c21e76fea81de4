"""ImageNet-1k (Deng et al. 2009) in its usual layouts, and ImageNet-A, -R, -Sketch, -V2.

Class k is line k of the committed list of WordNet ids, whatever folders are found.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jsonargparse.typing import NotEmptyStr, OpenUnitInterval, PositiveInt
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torchvision.datasets import imagenet as archives

from chaosgate.data.download import download as download_set
from chaosgate.data.listing import Listing, hashed_split, walk
from chaosgate.data.module import ImageData
from chaosgate.data.photos import PhotoData
from chaosgate.field.arguments import nearest

WNID = re.compile(r"n\d{8}")
COUNTS = {"train": 1_281_167, "val": 50_000}
_ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
_BASES = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "imagenet")
_LABEL_FILES = ("LOC_val_solution.csv", "ILSVRC/LOC_val_solution.csv", "val.txt", "val_map.txt")


class ImageNet(PhotoData):
    """1,281,167 training and 50,000 validation photographs of 1,000 classes; the latter test.

    Layouts: ``train/<wnid>/`` and ``val/<wnid>/`` (Kaggle's nesting too); a flat ``val`` with a
    list of labels; the original archives, with ``unpack``. A folder with few
    classes keeps their true labels. If there are fewer images than there should be, a warning says
    so and result rows record it; more images, or other classes, stop the run.

    Checkpoints are selected on validation images: ``official`` takes the test images themselves, as
    the paper does; ``held_out`` takes a share of every training class by the hash of the file name
    (:func:`~chaosgate.data.listing.hashed_split`) and does not train on it.

    Args:
        root: Folder of train and val.
        image_size: Side of the square that the network sees, in pixels.
        val_folder: The validation folder, if it is not under ``root``.
        val_labels: List of labels of a flat validation folder, if it is not found by name: lines
            of file name and WordNet id (or label), also Kaggle's csv.
        unpack: Unpack the original archives in ``root`` first (torchvision checks their md5).
        validation: ``official`` or ``held_out``.
        val_fraction: Share of each training class that is held out; 0.01 gives about 12,800 images.
        classes: Use these classes only: ``imagenet_100``, ``imagenet_a``, ``imagenet_r``, or a file
            of WordNet ids. Labels then count from 0 in the order of the ids; a network of all 1,000
            classes is tested on the logits of these (``logit_columns``).
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name, title = "imagenet", "ImageNet-1k"
    test_only = False
    may_be_absent = False

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        val_folder: str | None = None,
        val_labels: str | None = None,
        unpack: bool = False,
        validation: Literal["official", "held_out"] = "official",
        val_fraction: OpenUnitInterval = 0.01,
        classes: str | None = None,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.validation, self.val_fraction = validation, float(val_fraction)
        self.unpack = unpack
        self.val_folder = val_folder and Path(val_folder).expanduser()
        self.val_labels = val_labels and Path(val_labels).expanduser()
        self.classes = classes
        self.labels = subset_labels(classes)
        self.num_classes = len(self.labels)
        self.class_names = [wnids()[label] for label in self.labels.tolist()]
        self.found: dict[str, dict[str, int]] = {}
        there = self.folder("val") or self.folder("train")
        if there is None and not (unpack or self.may_be_absent):
            raise FileNotFoundError(self.absent("val"))

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """Folders train or val with classes named by WordNet id, or a flat val."""
        folders = {split: find_split(root, split) for split in ("train", "val")}
        names = [entry.name for place in folders.values() if place for entry in place.iterdir()]
        if not any(WNID.fullmatch(name) or name.startswith("ILSVRC2012_val_") for name in names):
            return []
        validation: Any = "held_out" if folders["val"] is None else "official"
        return [cls(str(root), validation=validation)]

    def prepare_data(self) -> None:
        if self.unpack:
            unpack_archives(self.root)

    def list_images(self, stage: str) -> dict[str, Listing]:
        """The splits that the stage needs."""
        if stage not in ("fit", "validate"):
            return {"test": self._list("val")}
        if self.validation == "official":
            val = {"val": self._list("val")}
            return {"train": self._list("train"), **val} if stage == "fit" else val
        whole = self._list("train")
        names = [name.rsplit("/", 1)[-1] for name in whole.names]  # the same in every layout
        return hashed_split(whole, names, {"val": self.val_fraction}, self.class_names)

    @property
    def logit_columns(self) -> list[int] | None:
        """Columns of the 1,000 logits that the labels stand for; None if all do."""
        return None if self.classes is None else [int(label) for label in self.labels]

    def setup(self, stage: str) -> None:
        """As for all photographs; sets without a training part refuse to train."""
        if self.test_only and stage not in ("test", "predict"):
            raise ValueError(
                f"{type(self).__name__} is for testing, not for {stage}. Train and validate on "
                "chaosgate.ImageNet."
            )
        super().setup(stage)

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
            "of the file name"
        )

    def describe(self) -> dict[str, Any]:
        """As for all photographs; ``subset`` if images are missing or left out on request."""
        missing = {
            split: total - found["images"]
            for split, found in self.found.items()
            if (total := self.expected(split)) is not None and found["images"] < total
        }
        partial = self.classes is not None or bool(missing)
        told = {**super().describe(), "subset": partial, "validation": self.validation}
        if missing:
            classes = {split: self.found[split]["classes"] for split in missing}
            told |= {"missing": missing, "classes_found": classes}
        if self.classes is not None:
            ids = hashlib.sha256(" ".join(self.class_names).encode()).hexdigest()
            told |= {"classes": self.classes, "class_ids": ids}
        return told

    def folder(self, split: str) -> Path | None:
        if split == "val" and self.val_folder:
            return self.val_folder if self.val_folder.is_dir() else None
        return find_split(self.root, split)

    def _list(self, split: str) -> Listing:
        folder = self.folder(split)
        if folder is None:
            raise FileNotFoundError(self.absent(split))
        if split == "val" and not _folders(folder):
            listing = list_flat(self.root, folder, self.val_labels or None)
        else:
            listing = list_class_folders(folder, set(self.labels.tolist()))
        return self.checked(split, self.relabeled(listing), folder)

    def relabeled(self, listing: Listing) -> Listing:
        """The images of the chosen classes, with labels that count from 0."""
        if self.classes is None:
            return listing
        chosen = listing.pick(np.flatnonzero(np.isin(listing.targets, self.labels)))
        return replace(chosen, targets=np.searchsorted(self.labels, chosen.targets))

    def expected(self, split: str) -> int | None:
        """Number of images of a split; None where that is not fixed."""
        if split == "val":
            return 50 * self.num_classes
        return COUNTS[split] if self.classes is None else None

    def checked(self, split: str, listing: Listing, folder: Path) -> Listing:
        """The listing, unless it is empty or too long; missing images give a warning."""
        total, classes = len(listing), len(np.unique(listing.targets))
        whole = self.expected(split)
        text = f"{folder} has {total} of the {whole} {split} images of {self.title}"
        if not 0 < total <= (whole or total):
            raise ValueError(f"{text}. Unpack the set there, or remove what does not belong.")
        if whole is not None and total < whole and split not in self.found:
            rank_zero_warn(f"{text}, in {classes} of {self.num_classes} classes. Rows record this.")
        self.found[split] = {"images": total, "classes": classes}
        return listing

    def absent(self, split: str) -> str:
        return (
            f"no {split} folder in {self.val_folder or self.root}. Set data.root to a folder with "
            f"{split}/<wnid>/ (or a flat val with a list of labels), or put {_ARCHIVES[split]} and "
            "the devkit there and set data.unpack to true."
        )


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


def subset_labels(classes: str | None) -> NDArray[np.int64]:
    """Labels of some classes, ascending: all, a named subset, or a file of WordNet ids.

    ``imagenet_a`` and ``imagenet_r`` are the 200 classes of ImageNet-A and -R, ``imagenet_100`` is
    the list of Tian et al. (2020).

    >>> len(subset_labels("imagenet_100")), subset_labels("imagenet_a")[:3].tolist()
    (100, [6, 11, 13])
    """
    if classes is None:
        return np.arange(len(wnids()))
    blocks = (files("chaosgate.data") / "imagenet_subsets.txt").read_text().strip().split("\n\n")
    named = {words[0]: words[1:] for words in map(str.split, blocks)}
    path = Path(classes).expanduser()
    if classes not in named and not path.is_file():
        raise FileNotFoundError(
            f"data.classes is {classes!r}, which is neither a file nor one of {', '.join(named)}."
            f"{nearest(classes, named)} List WordNet ids in a file, one on each line."
        )
    words = named.get(classes) or re.split(r"[\s,]+", path.read_text().strip())
    unknown = [word for word in words if word not in labels()]
    if unknown or not 2 <= len(words) == len(set(words)):
        raise ValueError(
            f"data.classes: {classes} has {len(words)} ids, {len(unknown)} of them unknown "
            f"{unknown[:3]}. Give two or more different WordNet ids (n01440764, ...)."
        )
    return np.sort(np.array([labels()[word] for word in words], dtype=np.int64))


def find_split(root: Path, split: str) -> Path | None:
    """Folder of ``train`` or ``val`` under ``root``, also in Kaggle's nesting.

    A ``root`` that has class folders itself, and neither of the two, is ``val``.
    """
    names = ("train",) if split == "train" else ("val", "validation")
    places = (root / base / name for base in _BASES for name in names)
    found = next((place for place in places if place.is_dir()), None)
    if found is None and split == "val" and root.is_dir() and find_split(root, "train") is None:
        return root if any(WNID.fullmatch(name) for name in _folders(root)) else None
    return found


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]


def has_classes(folder: Path) -> bool:
    """Whether ``folder`` has folders named by WordNet id or by number (ImageNet-V2)."""
    return any(WNID.fullmatch(name) or name.isdecimal() for name in _folders(folder))


def list_class_folders(folder: Path, wanted: Collection[int] = range(1000)) -> Listing:
    """Files of the class folders whose label is ``wanted``; labels from the committed list.

    Folders named 0 to 999, as in ImageNet-V2, are labels.
    """
    found = _folders(folder)
    numbered = bool(found) and all(name.isdecimal() and int(name) < 1000 for name in found)
    of = {name: int(name) for name in found} if numbered else labels()
    if strangers := sorted(set(found) - set(of)):
        raise ValueError(
            f"{folder} has {len(strangers)} folder(s) that are not classes of ImageNet-1k, among "
            f"them {', '.join(strangers[:3])}. Name classes by WordNet id, or use ImageFolder."
        )
    chosen = sorted((name for name in found if of[name] in wanted), key=of.__getitem__)
    listing = walk(folder, chosen, deep=False)
    targets = np.array([of[name] for name in chosen], dtype=np.int64)
    return replace(listing, targets=targets[listing.targets])


def list_flat(root: Path, folder: Path, given: Path | None) -> Listing:
    """Files directly in ``folder`` with the labels of a list: the given one, or a usual name."""
    places = [base / name for base in (root, folder, folder.parent) for name in _LABEL_FILES]
    path = given or next((place for place in places if place.is_file()), None)
    if path is None or not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no class folders, and there is no list of labels "
            f"{given or ', '.join(_LABEL_FILES)} for it. Set data.val_labels to lines of file name "
            "and WordNet id."
        )
    known = {}
    for line in path.read_text().splitlines():
        name, label, *_ = *re.split(r"[,\s]+", line.strip()), ""
        if label.isdigit() or label in labels():
            stem = Path(name).name.rsplit(".", 1)[0]
            known[stem] = int(label) if label.isdigit() else labels()[label]
    listing = walk(folder, deep=False)
    targets = [known.get(name.rsplit(".", 1)[0], -1) for name in listing.names]
    if -1 in targets:
        raise ValueError(
            f"{path} has no label for {targets.count(-1)} of {len(targets)} images in {folder}, "
            f"e.g. {listing.names[targets.index(-1)]}. Set data.val_labels to their list."
        )
    return replace(listing, targets=np.array(targets, dtype=np.int64))


def unpack_archives(root: Path) -> None:
    """Unpack the original archives through torchvision, which checks their md5.

    Into a folder that is renamed at the end: an interrupted unpacking is never taken for a set.
    """
    for split, archive in _ARCHIVES.items():
        if find_split(root, split) is not None or not (root / archive).is_file():
            continue
        half = f"{split}.unpacking"
        shutil.rmtree(root / half, ignore_errors=True)
        if split == "train":
            archives.parse_train_archive(root, folder=half)
        else:
            archives.parse_devkit_archive(root)
            archives.parse_val_archive(root, folder=half)
        (root / half).rename(root / split)


def list_clean(folder: Path, val_labels: Path | None = None) -> list[tuple[Path, str]]:
    """Images below ``folder`` and the names of their corrupted copies, in the order of the draws.

    The validation folder of ImageNet gives ``<wnid>/<name>``; any other folder keeps its relative
    paths.
    """
    val = find_split(folder, "val") or folder
    if not _folders(val) and (val != folder or val_labels is not None):
        listing = list_flat(folder, val, val_labels)
        pairs = zip(listing.names, listing.targets.tolist(), strict=True)
        named = sorted((f"{wnids()[target]}/{name}", name) for name, target in pairs)
    else:
        val = val if set(_folders(val)) <= set(labels()) else folder
        named = [(name, name) for name in walk(val).names]
    jpeg = (".jpg", ".jpeg")
    return [
        (val / name, copy if copy.lower().endswith(jpeg) else f"{copy.rsplit('.', 1)[0]}.JPEG")
        for copy, name in named
    ]


class Variant(NamedTuple):
    """Folders that the release unpacks to, its number of images, its classes (None: all)."""

    folders: tuple[str, ...]
    images: int
    classes: str | None


VARIANTS = {
    "a": Variant(("imagenet-a",), 7_500, "imagenet_a"),
    "r": Variant(("imagenet-r",), 30_000, "imagenet_r"),
    "sketch": Variant(("sketch", "imagenet-sketch", "ImageNet-Sketch"), 50_889, None),
    "v2": Variant(
        ("imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency"), 10_000, None
    ),
}


class ImageNetVariant(ImageNet):
    """A test set that shares the classes of ImageNet-1k.

    * ``a``: 7,500 photographs that a ResNet-50 gets wrong, of 200 classes (Hendrycks et al. 2021b).
    * ``r``: 30,000 renditions (art, cartoons, ...) of 200 classes (Hendrycks et al. 2021a).
    * ``sketch``: 50,889 drawings of all classes (Wang et al. 2019).
    * ``v2``: 10,000 photographs collected as the validation set was (Recht et al. 2019).

    A network of 1,000 classes is tested on ``a`` and ``r`` by its logits of the 200 classes, as
    their authors do.

    Args:
        root: Folder of the class folders, or the one above it.
        variant: ``a``, ``r``, ``sketch`` or ``v2``.
        image_size: Side of the square that the network sees, in pixels.
        download: Fetch the set into ``root`` if it is not there.
        imagenet: Settings of :class:`ImageNet`.
    """

    test_only = True

    def __init__(
        self,
        root: NotEmptyStr,
        variant: Literal["a", "r", "sketch", "v2"],
        image_size: PositiveInt = 224,
        *,
        download: bool = False,
        **imagenet: Any,
    ) -> None:
        self.variant, self.may_be_absent = VARIANTS[variant], download
        self.name, self.title = f"imagenet_{variant}", f"ImageNet-{variant.capitalize()}"
        super().__init__(root, image_size, classes=self.variant.classes, **imagenet)

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """The releases that are known by the names of their folders."""
        known: Any = {name: kind for kind, one in VARIANTS.items() for name in one.folders}
        places = [root, *(root / name for name in known)]
        there = [p for p in places if p.name in known and p.is_dir() and has_classes(p)]
        return [cls(str(place), known[place.name]) for place in there]

    def prepare_data(self) -> None:
        if self.may_be_absent and self.folder("val") is None:
            download_set(self.name.replace("_", "-"), self.root)

    def expected(self, split: str) -> int | None:
        return self.variant.images

    def split_rule(self) -> str:
        return "test only"

    def describe(self) -> dict[str, Any]:
        """As for ImageNet; the classes of the release are not a subset of it."""
        told = super().describe()
        del told["validation"]
        return {**told, "subset": "missing" in told}

    def folder(self, split: str) -> Path | None:
        if split == "train":
            return None
        places = [self.root / name for name in self.variant.folders if (self.root / name).is_dir()]
        found = [*places, super().folder(split)]
        numbered = self.root.is_dir() and any(name.isdecimal() for name in _folders(self.root))
        return found[0] or (self.root if numbered else None)

    def absent(self, split: str) -> str:
        return (
            f"no {self.variant.folders[0]} and no class folders in {self.root}. Set data.root to "
            "their folder, or set data.download to true (chaosgate data download "
            f"{self.name.replace('_', '-')} --to FOLDER)."
        )
