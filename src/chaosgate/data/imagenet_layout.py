"""The classes of ImageNet-1k, and where people keep it: class folders, a flat validation folder, the archives.

Class k is line k of the committed list of WordNet ids, whatever folders are found.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from torchvision.datasets import imagenet as archives

from chaosgate.data.listing import Listing
from chaosgate.data.index import list_files, walk
from chaosgate.field.arguments import nearest

WNID = re.compile(r"n\d{8}")
_BASES = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "imagenet")
_LABEL_FILES = (
    "LOC_val_solution.csv",
    "ILSVRC/LOC_val_solution.csv",
    "val.txt",
    "val_labels.txt",
    "val_map.txt",
    "imagenet_2012_validation_synset_labels.txt",
    "synset_labels.txt",
    "ILSVRC2012_devkit_t12",
)
_NUMBER = re.compile(r"_(\d{8})\.")
ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}


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


@lru_cache
def _subsets() -> dict[str, list[str]]:
    blocks = (files("chaosgate.data") / "imagenet_subsets.txt").read_text().strip().split("\n\n")
    return {words[0]: words[1:] for words in (block.split() for block in blocks)}


def subset_labels(classes: str | None) -> NDArray[np.int64]:
    """Labels of some classes, ascending: all, a subset that has a name, or a file of WordNet ids.

    ``imagenet_a`` and ``imagenet_r`` are the 200 classes of ImageNet-A and -R, ``imagenet_100`` is the list of Tian et
    al. (2020).

    >>> len(subset_labels("imagenet_100")), subset_labels("imagenet_a")[:3].tolist()
    (100, [6, 11, 13])
    """
    if classes is None:
        return np.arange(len(wnids()))
    if classes in _subsets():
        words = _subsets()[classes]
    elif Path(classes).expanduser().is_file():
        words = re.split(r"[\s,]+", Path(classes).expanduser().read_text().strip())
    else:
        raise FileNotFoundError(
            f"data.classes is {classes!r}, which is neither a file nor one of {', '.join(_subsets())}."
            f"{nearest(classes, _subsets())} List WordNet ids in a file, one on each line."
        )
    unknown = [word for word in words if word not in labels()]
    if unknown or len(words) < 2 or len(set(words)) < len(words):
        what = f"{unknown[0]!r}, which is not a class" if unknown else "fewer than two classes, or one of them twice"
        raise ValueError(f"data.classes: {classes} names {what}. Give two or more WordNet ids (n01440764, ...).")
    return np.sort(np.array([labels()[word] for word in words], dtype=np.int64))


def check_wnids(found: Iterable[str], where: Path) -> list[str]:
    """The folder names in label order; a name that is none of the 1,000 ids is refused."""
    names = sorted(found)
    strangers = [name for name in names if name not in labels()]
    if strangers:
        raise ValueError(
            f"{where} has {len(strangers)} folder(s) that are not classes of ImageNet-1k, among them "
            f"{', '.join(strangers[:3])}. Class folders are named by WordNet id (n01440764, ...). Remove the others, "
            "or use chaosgate.ImageFolder for other classes."
        )
    return names


def find_split(root: Path, split: str) -> Path | None:
    """Folder of ``train`` or ``val`` under ``root``, Kaggle's nesting included; none if there is none.

    A ``root`` that has class folders itself, and neither of the two, is ``val``: images to be tested.
    """
    names = ("train",) if split == "train" else ("val", "validation")
    places = (root / base / name for base in _BASES for name in names)
    found = next((place for place in places if place.is_dir()), None)
    if found is None and split == "val" and root.is_dir() and find_split(root, "train") is None:
        return root if any(WNID.fullmatch(entry.name) and entry.is_dir() for entry in root.iterdir()) else None
    return found


def list_class_folders(folder: Path, index_dir: Path | None, wanted: Collection[int] = range(1000)) -> Listing:
    """Files of the class folders in ``folder``; labels from the committed list, never from the order found.

    ``wanted`` are the labels whose folders are listed. Folders named 0 to 999, as ImageNet-V2 has
    them, are labels.
    """
    with os.scandir(folder) as entries:
        found = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    numbered = bool(found) and all(name.isdecimal() and int(name) < 1000 for name in found)
    of = {name: int(name) for name in found} if numbered else labels()
    order = sorted(found, key=int) if numbered else check_wnids(found, folder)
    chosen = [name for name in order if of[name] in wanted]
    names, sizes, links = list_files(folder, chosen, index_dir)
    targets = np.array([of[name.partition("/")[0]] for name in names], dtype=np.int64)
    return Listing(folder, names, sizes, targets, links)


def list_flat(folder: Path, label_file: Path, index_dir: Path | None) -> Listing:
    """Files directly in ``folder`` with the labels that ``label_file`` gives them."""
    names, sizes, links = list_files(folder, [""], index_dir)
    by_name, by_number = read_labels(label_file)
    targets = np.full(len(names), -1, dtype=np.int64)
    for place, name in enumerate(names):
        number = _NUMBER.search(name)
        if by_number is not None and number is not None and 1 <= int(number[1]) <= len(by_number):
            targets[place] = by_number[int(number[1]) - 1]
        else:
            targets[place] = by_name.get(name.rsplit(".", 1)[0], -1)
    if (targets < 0).any():
        unknown = names[int(np.argmin(targets))]
        raise ValueError(
            f"{label_file} has no label for {int((targets < 0).sum())} of {len(names)} images in {folder}, among them "
            f"{unknown}. Give the file that belongs to them as data.val_labels."
        )
    return Listing(folder, names, sizes, targets, links)


def has_classes(folder: Path) -> bool:
    """Whether there are folders in ``folder`` that are named by WordNet id or, as those of ImageNet-V2, by number."""
    return any((WNID.fullmatch(entry.name) or entry.name.isdecimal()) and entry.is_dir() for entry in folder.iterdir())


def is_flat(folder: Path) -> bool:
    """Whether ``folder`` has no folders in it, but files."""
    with os.scandir(folder) as entries:
        return not any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)


def find_labels(root: Path, folder: Path, given: Path | None) -> Path:
    """The list of labels of a flat validation folder: the one given, or one of the usual names near by."""
    if given is not None:
        if not given.exists():
            raise FileNotFoundError(f"data.val_labels: no file {given}.")
        return given
    places = [base / name for base in (root, folder, folder.parent) for name in _LABEL_FILES]
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(
        f"{folder} has no class folders, and there is no list of labels in {root} ({', '.join(_LABEL_FILES)}). Give "
        "one as data.val_labels: lines of file name and WordNet id, or the folder of the unpacked devkit."
    )


def read_labels(path: Path) -> tuple[dict[str, int], NDArray[np.int64] | None]:
    """Labels by name (without extension), or by number of the validation image, from any of the usual files.

    Lines of *name, WordNet id* (Kaggle's csv too) or *name, label 0..999*; one WordNet id per line in the order of the
    images; or the folder of the devkit, whose own numbering of the classes goes through its ``meta.mat``.
    """
    of = labels()
    if path.is_dir():
        return {}, _read_devkit(path)
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    if lines and all(WNID.fullmatch(line) for line in lines):
        return {}, np.array([of.get(line, -1) for line in lines], dtype=np.int64)
    by_name: dict[str, int] = {}
    for line in lines:
        words = re.split(r"[,\s]+", line)
        if len(words) < 2 or words[0] == "ImageId":
            continue
        label = of.get(words[1], -1)
        if words[1].isdigit() and int(words[1]) < len(of):
            label = int(words[1])
        if label < 0:
            raise ValueError(f"{path} says {line!r}; lines are a file name and a WordNet id (or a label 0 to 999).")
        by_name[Path(words[0]).name.rsplit(".", 1)[0]] = label
    return by_name, None


def _read_devkit(folder: Path) -> NDArray[np.int64]:
    data = folder / "data" if (folder / "data").is_dir() else folder
    synsets = loadmat(data / "meta.mat", squeeze_me=True)["synsets"]
    by_number = {int(entry["ILSVRC2012_ID"]): str(entry["WNID"]) for entry in synsets}
    lines = (data / "ILSVRC2012_validation_ground_truth.txt").read_text().split()
    return np.array([labels()[by_number[int(line)]] for line in lines], dtype=np.int64)


def unpack_archives(root: Path, splits: Sequence[str]) -> None:
    """Unpack the original archives through torchvision (which checks their md5) into class folders.

    Everything happens in a folder aside that is renamed at the end: an interrupted unpacking is never taken for a set.
    """
    for split in splits:
        if find_split(root, split) is not None or not (root / ARCHIVES[split]).is_file():
            continue
        half = f"{split}.unpacking"
        shutil.rmtree(root / half, ignore_errors=True)
        if split == "train":
            archives.parse_train_archive(root, folder=half)
        else:
            if not (root / archives.META_FILE).is_file():
                archives.parse_devkit_archive(root)
            archives.parse_val_archive(root, folder=half)
        (root / half).rename(root / split)


def list_clean(folder: Path, val_labels: Path | None = None) -> list[tuple[Path, str]]:
    """Images below ``folder`` and the names of their copies, in the order that numbers their draws.

    The validation folder of ImageNet in any layout gives ``<wnid>/<name>``; any other folder keeps its relative paths.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}. Give the clean images with --from.")
    val = find_split(folder, "val") or folder
    flat = is_flat(val)
    if flat and (val != folder or val_labels is not None):
        return _with_names(list_flat(val, find_labels(folder, val, val_labels), None))
    if not flat and all(entry.name in labels() for entry in val.iterdir() if entry.is_dir()):
        return _with_names(list_class_folders(val, None))
    return [(folder / name, _jpeg_name(name)) for name in walk(folder).names]


def _with_names(listing: Listing) -> list[tuple[Path, str]]:
    ids = wnids()
    names = [f"{ids[target]}/{Path(name).name}" for name, target in zip(listing.names, listing.targets, strict=True)]
    order = sorted(range(len(names)), key=names.__getitem__)  # the order in which ImageNetC will list the copies
    paths = listing.paths
    return [(paths[i], _jpeg_name(names[i])) for i in order]


def _jpeg_name(name: str) -> str:
    return name if name.lower().endswith((".jpg", ".jpeg")) else f"{name.rsplit('.', 1)[0]}.JPEG"
