r"""ImageNet-C (Hendrycks and Dietterich 2019): read the release, generate it, or write copies.

The mean corruption error is relative to AlexNet,

.. math:: \mathrm{CE}_c = \frac{\sum_s E(c, s)}{\sum_s E_\text{AlexNet}(c, s)}, \qquad
    \mathrm{mCE} = \frac{100}{15} \sum_{c \in \text{common}} \mathrm{CE}_c

with :math:`E` the top-1 error. It needs all fifteen common corruptions at five severities. The
paper's own aggregate is :func:`chaosgate.metrics.aggregate_cells` over its seven.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from math import fsum
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from filelock import FileLock, Timeout
from jsonargparse.typing import NotEmptyStr, PositiveInt
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import InterpolationMode

from chaosgate.corruptions import COMMON, EXTRA, Corrupt
from chaosgate.data.atomic import replace_file
from chaosgate.data.augment import centre_crop
from chaosgate.data.cells import SEVERITIES, Corruptions, Severities, plan_cells
from chaosgate.data.decoding import (
    Decoder,
    FileImages,
    Picture,
    as_tensor,
    decode,
    picture_size,
)
from chaosgate.data.imagenet import ImageNet, has_classes, list_class_folders
from chaosgate.data.listing import Listing, check_files, image_files
from chaosgate.data.module import Contents, ImageData
from chaosgate.data.photos import size_of
from chaosgate.data.samples import Cell, Split

MANIFEST, PARTS = "chaosgate.json", ".parts"
GROUPS = {
    "noise": COMMON[:3],
    "blur": COMMON[3:7],
    "weather": COMMON[7:11],
    "digital": COMMON[11:],
    "extra": EXTRA,
}
"""The five archives of the release and the corruptions in them."""


class ImageNetC(ImageNet):
    """Corrupted copies of the ImageNet validation set, for testing only; all cells in one pass.

    ``released``: ``root`` holds ``<corruption>/<severity>/<wnid>/`` or the same below the groups of
    the archives (``noise/gaussian_noise/1/...``). The images are taken as they are: they are
    already resized and cropped. Missing cells are listed before anything runs. Every cell must
    have the same files. Copies written by ``chaosgate data corrupt`` are read in the same way;
    their manifest and the result rows say that they were generated.

    ``generated``: ``root`` holds clean images in any layout of
    :class:`~chaosgate.data.imagenet.ImageNet`; they are resized, cropped, corrupted and saved as
    JPEG of quality 85, as the release was. The distribution is the same, the draws are not.

    Args:
        root: Folder of the released set, or of clean images.
        image_size: Side of the square that the network sees; that of the release is 224.
        source: ``released`` for images on disk, ``generated`` to make them from clean ones.
        clean: ``released``: folder of the clean set, to test it in the same pass.
        corruptions: ``paper`` for the seven of the paper, or a list of names.
        severities: Severities of each corruption, from 1 to 5.
        corruption_jpeg: ``generated``: save as JPEG.
        imagenet: Settings of :class:`~chaosgate.data.imagenet.ImageNet`.
    """

    name = "imagenet_c"
    test_only = True

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        source: Literal["released", "generated"] = "released",
        clean: NotEmptyStr | None = None,
        corruptions: Corruptions = "paper",
        severities: Severities = SEVERITIES,
        corruption_jpeg: bool = True,
        **imagenet: Any,
    ) -> None:
        if not corruptions:
            raise ValueError(
                f"data.corruptions is {corruptions}; ImageNetC needs some. Use chaosgate.ImageNet "
                "for clean images."
            )
        released = source == "released"
        self.source = source
        self.has_clean = not released or clean is not None
        self.may_be_absent = not self.has_clean
        super().__init__(
            clean if released and clean is not None else root,
            image_size,
            corruptions=None if released else corruptions,
            severities=severities,
            corruption_jpeg=corruption_jpeg,
            **imagenet,
        )
        self.manifest: dict[str, Any] = {}
        if released:
            cells = plan_cells(corruptions, severities)
            self.test_cells = cells if self.has_clean else cells[1:]
            place = Path(root).expanduser()
            self.cell_folders = find_cells(place, cells[1:])
            self.cells_by_image = False
            self.cell_digest = ""
            self.manifest = read_manifest(place)

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """Folders ``<corruption>/<severity>``, below those of the groups or not."""
        names = (*COMMON, *EXTRA)
        folders = (*root.glob("*/[1-5]"), *root.glob("*/*/[1-5]"))
        cells = [place for place in sorted(folders) if place.parent.name in names]
        cells = [place for place in cells if has_classes(place)]
        if not cells:
            return []
        size = picture_size(image_files(cells[0])[0])[0]
        corruptions = list(dict.fromkeys(cell.parent.name for cell in cells))
        severities: Any = sorted({int(cell.name) for cell in cells})
        return [cls(str(root), size, corruptions=corruptions, severities=severities)]

    def contents(self) -> dict[str, Contents]:
        """One split: the images of the first cell; all others have the same."""
        if self.source == "generated":
            return super().contents()
        return {"test": self.stored(self._list_cells())}

    def setup(self, stage: str) -> None:
        """List the files of every cell and check that they are the same."""
        if self.source == "generated" or stage not in ("test", "predict"):
            super().setup(stage)
        elif not self.test_splits:
            listing = self._list_cells()
            names = FileImages(listing.names)
            self.test_splits = [
                Split(ReleasedImages(folder, names, self.image_size, self.decoder), listing.targets)
                for folder in self.cell_folders.values()
            ]
            if self.has_clean:
                self.listings["test"] = self._clean_listing(listing)
                self.test_splits.insert(0, self._split("test", self.central_view()))

    def _clean_listing(self, cells: Listing) -> Listing:
        """The clean images of the cells, in their order."""
        clean = self._list("val")
        order = {path.name: place for place, path in enumerate(clean.paths)}
        places = [order.get(path.name, -1) for path in cells.paths]
        if -1 in places:
            raise ValueError(
                f"{places.count(-1)} images of the cells are not among the clean ones in "
                f"{self.root}, e.g. {cells.names[places.index(-1)]}. Set data.clean to the "
                "validation set they were made from, or to null."
            )
        return clean.pick(np.array(places, dtype=np.int64))

    def _list_cells(self) -> Listing:
        """The files of the first cell; all cells must have the same."""
        first: Listing | None = None
        digests = hashlib.sha256()
        for cell, folder in self.cell_folders.items():
            listing = list_class_folders(folder, set(self.labels.tolist()))
            listing = self.relabeled(listing)
            check_files({"test": listing})
            first = first or self.checked("val", listing, folder)
            if differing := sorted(set(listing.names) ^ set(first.names)):
                raise ValueError(
                    f"{folder} has {len(listing)} images and {first.root} {len(first)}; they "
                    f"differ in {len(differing)} files, e.g. {differing[0]}. Complete the set."
                )
            digests.update(f"{cell.corruption} {cell.severity} {listing.digest()}\n".encode())
        assert first is not None
        self.cell_digest = digests.hexdigest()
        return first

    @property
    def origin(self) -> str:
        """``generated`` for corruptions made by this package, now or when copies were written."""
        return "generated" if self.manifest else self.source

    def describe(self) -> dict[str, Any]:
        """As for ImageNet; ``corruptions`` is ``released`` or ``generated``."""
        told = super().describe()
        if self.source == "released":
            told |= {
                "corruptions": self.origin,
                "corruption_table": self.manifest.get("table"),
                "corruption_seed": self.manifest.get("seed"),
                "corruption_jpeg": True,  # as in the release
                "transform": "clean as ImageNet; corrupted as they are"
                if self.has_clean
                else "none",
                "files": {**told["files"], "cells": self.cell_digest},
                **({"manifest": self.manifest} if self.manifest else {}),
            }
        del told["validation"]
        return {**told, "split": "official val"}

    def teardown(self, stage: str) -> None:
        """Print the mCE, if all fifteen common corruptions were tested."""
        if stage == "test" and self.trainer is not None and self.trainer.is_global_zero:
            rows = getattr(self.trainer.lightning_module, "test_rows", [])
            top1 = {(row["corruption"], row["severity"]): row["top1"] for row in rows}
            with suppress(ValueError):  # some are missing
                mce = mean_corruption_error(top1)
                print(f"mCE {mce:.2f} ({self.origin} corruptions, relative to AlexNet)")


def group_of(corruption: str) -> str:
    """Archive that a corruption is released in."""
    return next(group for group, names in GROUPS.items() if corruption in names)


def find_cells(root: Path, cells: Sequence[Cell]) -> dict[Cell, Path]:
    """Folder of every cell, ``<corruption>/<severity>`` or ``<group>/<corruption>/<severity>``."""
    found: dict[Cell, Path] = {}
    missing: dict[str, list[str]] = {}
    for cell in cells:
        name, severity = cell.corruption, str(cell.severity)
        places = (root / name / severity, root / group_of(name) / name / severity)
        place = next((place for place in places if place.is_dir()), None)
        if place is None:
            missing.setdefault(name, []).append(severity)
        else:
            found[cell] = place
    if missing:
        listed = "; ".join(f"{name} {','.join(levels)}" for name, levels in missing.items())
        groups = " ".join(sorted({f"imagenet-c-{group_of(name)}" for name in missing}))
        raise FileNotFoundError(
            f"{root} lacks {len(cells) - len(found)} of {len(cells)} cells: {listed}. Fetch "
            f"{groups} with chaosgate data download, test fewer corruptions or severities, or set "
            "data.source to generated and data.root to clean images."
        )
    return found


class ReleasedImages:
    """Images of one cell, neither resized nor cropped.

    Args:
        folder: Folder of the cell.
        names: Names relative to it; all cells share one block, so memory does not grow with them.
        size: Side of the square that every image must have.
        decoder: As for all photographs.
    """

    def __init__(self, folder: Path, names: FileImages, size: int, decoder: Decoder) -> None:
        self.folder, self.names, self.size = folder, names, size
        self.decoder: Decoder = decoder

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Picture:
        path = self.folder / self.names.path(index)
        picture = decode(path, self.decoder)
        if (size := size_of(picture)) != (self.size, self.size):
            raise ValueError(
                f"{path} is {size[0]}x{size[1]}, data.image_size is {self.size}; the images of a "
                "cell are not resized. Set data.image_size."
            )
        return picture


@dataclass(frozen=True)
class CopySettings:
    """Settings that decide about the pixels of written copies."""

    seed: int = 0
    size: int = 224
    resize: int = 256
    table: str = "imagenet"
    quality: int = 85


def write_copies(
    images: Sequence[tuple[Path, str]],
    target: Path,
    cells: Sequence[Cell],
    settings: CopySettings,
    workers: int = 1,
    frost_textures: str | None = None,
    quiet: bool = False,
) -> int:
    """Write ``target/<corruption>/<severity>/<name>`` for every image and cell; count new files.

    A file depends on its image, its number, its cell and ``settings`` only. Files that are there
    are kept, so an interrupted call can be repeated.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(target / ".lock", timeout=0):
            _claim(target, images, settings)
            makers = [
                Corrupt(*cell, settings.seed, settings.table, frost_textures=frost_textures)
                for cell in cells
            ]
            for maker in makers:  # missing textures are noticed before the run
                maker(np.zeros((settings.size, settings.size, 3), dtype=np.uint8))
            loader = DataLoader(
                _Copies(images, target, makers, settings),
                batch_size=None,
                num_workers=workers if workers > 1 else 0,
                worker_init_fn=_one_thread,
                multiprocessing_context="spawn" if workers > 1 else None,  # OpenCV has threads
            )
            shutil.rmtree(target / PARTS, ignore_errors=True)  # of an interrupted call
            (target / PARTS).mkdir()
            console = Console(stderr=True)
            count: int = sum(track(loader, "corrupted copies", console=console, disable=quiet))
            (target / PARTS).rmdir()
            return count
    except Timeout:
        raise ValueError(
            f"another run is writing to {target}. Wait for it, or give another folder."
        ) from None


def _one_thread(worker: int) -> None:
    cv2.setNumThreads(1)


class _Copies(Dataset[int]):
    """Item i writes the missing cells of image i, which is decoded once, and counts them."""

    def __init__(
        self,
        images: Sequence[tuple[Path, str]],
        target: Path,
        makers: Sequence[Corrupt],
        settings: CopySettings,
    ) -> None:
        self.images, self.target, self.makers, self.settings = images, target, makers, settings

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> int:
        path, name = self.images[number]
        places = {m: self.target / m.name / str(m.severity) / name for m in self.makers}
        missing = {  # a crash can leave an empty file
            m: place
            for m, place in places.items()
            if not (place.is_file() and place.stat().st_size)
        }
        if missing:
            resize, size = self.settings.resize, self.settings.size
            picture = centre_crop(decode(path, "pil"), resize, size, InterpolationMode.BILINEAR)
            clean = as_tensor(picture).permute(1, 2, 0).contiguous().numpy()
        for maker, place in missing.items():
            buffer = BytesIO()
            copy = Image.fromarray(maker(clean, number))
            copy.save(buffer, "JPEG", quality=self.settings.quality, optimize=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            half = self.target / PARTS / f"{number}-{maker.name}-{maker.severity}"
            half.write_bytes(buffer.getvalue())
            half.replace(place)
        return len(missing)


def _claim(target: Path, images: Sequence[tuple[Path, str]], settings: CopySettings) -> None:
    """Record what the copies are made from and with; refuse to continue with anything else."""
    names, sizes = [name for _, name in images], [path.stat().st_size for path, _ in images]
    listing = Listing(Path(), names, np.array(sizes), np.zeros(len(names), dtype=np.int64))
    libraries = ("numpy", "scipy", "opencv-python-headless", "pillow")
    wanted = {
        "corruptions": "generated",
        "images": len(images),
        "files": listing.digest(),
        **asdict(settings),
        **{name: version(name) for name in libraries},
    }
    found = read_manifest(target)
    if not found and any(not entry.name.startswith(".") for entry in target.iterdir()):
        raise ValueError(f"{target} is not empty and was not made by this command. Give another.")
    found = found or wanted
    changed = [
        f"{k} was {found.get(k)!r}, is {v!r}" for k, v in wanted.items() if found.get(k) != v
    ]
    if changed:
        raise ValueError(
            f"{target} was started with other settings: {'; '.join(changed)}. Give the same "
            "settings and images, or another folder."
        )
    replace_file(target / MANIFEST, json.dumps(wanted, indent=2) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The settings of a folder of written copies; empty if it was not made here."""
    path = folder / MANIFEST
    text = path.read_text() if path.is_file() else None
    if text is not None and '"generated"' not in text:
        raise ValueError(f"{path} is damaged. Restore it, or generate the copies again.")
    found: dict[str, Any] = json.loads(text or "{}")
    return found


def mean_corruption_error(top1: Mapping[tuple[str, int], float]) -> float:
    """The mCE in percent, from the top-1 accuracy of each cell ``(corruption, severity)``.

    Raises:
        ValueError: A cell of the fifteen common corruptions is missing.
    """
    wanted = [(name, severity) for name in COMMON for severity in SEVERITIES]
    if absent := [cell for cell in wanted if cell not in top1]:
        raise ValueError(
            f"{len(absent)} of the 75 cells of mCE have no top-1, among them {absent[:3]}. Test "
            "them, or use chaosgate.metrics.aggregate_cells."
        )
    table = (files("chaosgate.data") / "alexnet_errors.txt").read_text().splitlines()[1:]
    alexnet = {name: fsum(map(float, errors)) for name, *errors in map(str.split, table)}
    errors = (fsum(1 - top1[name, s] for s in SEVERITIES) / alexnet[name] for name in COMMON)
    return 100 * fsum(errors) / len(COMMON)
