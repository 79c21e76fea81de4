"""ImageNet-C (Hendrycks and Dietterich 2019): read the release, or write corrupted copies.

The paper's aggregate is :func:`chaosgate.metrics.aggregate_cells` over its seven corruptions.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from filelock import FileLock
from jsonargparse.typing import NotEmptyStr, PositiveInt
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.utils import download_and_extract_archive
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import get_size

from chaosgate.corruptions import COMMON, EXTRA, Corrupt
from chaosgate.data.augment import center_crop
from chaosgate.data.decoding import Decoder, FileImages, decode
from chaosgate.data.imagenet import ImageNet, has_classes, list_class_folders
from chaosgate.data.listing import Listing, check_files, walk
from chaosgate.data.module import SEVERITIES, Severities, plan_cells
from chaosgate.data.samples import Cell, Picture, Split, as_tensor

MANIFEST, PARTS = "chaosgate.json", ".parts"
GROUPS = {
    "noise": COMMON[:3],
    "blur": COMMON[3:7],
    "weather": COMMON[7:11],
    "digital": COMMON[11:],
    "extra": EXTRA,
}
"""The five archives of the release and the corruptions in them."""
URL = "https://zenodo.org/records/2235448/files"
MD5 = {
    "noise": "e80562d7f6c3f8834afb1ecf27252745",
    "blur": "2d8e81fdd8e07fef67b9334fa635e45c",
    "weather": "33ffea4db4d93fe4a428c40a6ce0c25d",
    "digital": "89157860d7b10d5797849337ca2e5c03",
    "extra": "d492dfba5fc162d8ec2c3cd8ee672984",
}


def download_group(group: str, folder: Path) -> None:
    """Fetch an archive of the release, check its md5 and unpack it into ``folder``."""
    download_and_extract_archive(f"{URL}/{group}.tar", folder, md5=MD5[group], remove_finished=True)


class ImageNetC(ImageNet):
    """Corrupted copies of the ImageNet validation set, for testing only; all cells in one pass.

    ``root`` contains ``<corruption>/<severity>/<wnid>/``, or the same below the groups of
    the archives (``noise/gaussian_noise/1/...``). The images are already resized and cropped and
    are not changed. An error lists missing cells before the test starts. All cells must have the
    same files. Copies written by ``chaosgate data corrupt`` are read in the same way;
    their manifest and the result rows say that they were generated.

    Args:
        root: Folder of the released set, or of written copies.
        image_size: Side of the images; 224 in the release.
        clean: Folder of the clean set, to be tested in the same pass.
        corruptions: ``paper`` for the seven of the paper, or a list of names.
        severities: Severities of each corruption, from 1 to 5.
        imagenet: Settings of :class:`~chaosgate.data.imagenet.ImageNet`.
    """

    name = "imagenet_c"

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        clean: NotEmptyStr | None = None,
        corruptions: Literal["paper", "common", "all"] | list[str] = "paper",
        severities: Severities = SEVERITIES,
        **imagenet: Any,
    ) -> None:
        self.has_clean = clean is not None
        super().__init__(clean or root, image_size, **imagenet)
        cells = plan_cells(corruptions, severities)
        self.test_cells = cells if self.has_clean else cells[1:]
        self.cell_folders = find_cells(Path(root).expanduser(), cells[1:])
        self.cells_by_image = False
        self.cell_digest = ""
        self.manifest = read_manifest(Path(root).expanduser())

    def setup(self, stage: str) -> None:
        """List the files of every cell and check that they are the same."""
        if stage not in ("test", "predict"):
            raise ValueError(f"ImageNetC is for testing, not for {stage}; use ImageNet.")
        if self.test_splits:
            return
        listing = self._list_cells()
        names = FileImages(listing.names)
        self.test_splits = [
            Split(ReleasedImages(folder, names, self.image_size, self.decoder), listing.targets)
            for folder in self.cell_folders.values()
        ]
        if self.has_clean:
            self.listings["test"] = self._clean_listing(listing)
            self.test_splits.insert(0, self._split("test"))

    def _clean_listing(self, cells: Listing) -> Listing:
        """The clean images of the cells, in their order."""
        clean = self.list_split("val")
        order = {name: place for place, name in enumerate(clean.names)}
        if missing := [name for name in cells.names if name not in order]:
            raise ValueError(
                f"the clean images in {self.root} lack {missing[0]} of the cells. Set data.clean "
                "to their validation set, or to null."
            )
        return clean.pick(np.array([order[name] for name in cells.names], dtype=np.int64))

    def _list_cells(self) -> Listing:
        """The files of the first cell; all cells must have the same."""
        first: Listing | None = None
        digests = hashlib.sha256()
        for cell, folder in self.cell_folders.items():
            listing = list_class_folders(folder)
            check_files({"test": listing})
            first = first or self.counted("val", listing, folder)
            if differing := sorted(set(listing.names) ^ set(first.names)):
                raise ValueError(
                    f"{folder} has {len(listing)} images and {first.root} {len(first)}; they "
                    f"differ in {len(differing)} files, e.g. {differing[0]}."
                )
            digests.update(f"{cell.corruption} {cell.severity} {listing.digest()}\n".encode())
        assert first is not None
        self.cell_digest = digests.hexdigest()
        return first

    def describe(self) -> dict[str, Any]:
        """As for ImageNet; ``corruptions`` is ``released`` or ``generated``."""
        found = super().describe()
        del found["validation"]
        return found | {
            "corruptions": "generated" if self.manifest else "released",
            "corruption_table": self.manifest.get("table"),
            "corruption_seed": self.manifest.get("seed"),
            "corruption_jpeg": True,  # as in the release
            "transform": "clean as ImageNet; corrupted as they are" if self.has_clean else "none",
            "files": {**found["files"], "cells": self.cell_digest},
            "split": "official val",
            **({"manifest": self.manifest} if self.manifest else {}),
        }


def group_of(corruption: str) -> str:
    """Archive that contains a corruption."""
    return next((group for group, names in GROUPS.items() if corruption in names), "")


def find_cells(root: Path, cells: Sequence[Cell]) -> dict[Cell, Path]:
    """Folder of every cell, ``<corruption>/<severity>`` or ``<group>/<corruption>/<severity>``."""
    found: dict[Cell, Path] = {}
    for cell in cells:
        for above in ("", group_of(cell.corruption)):
            folder = root / above / cell.corruption / str(cell.severity)
            if folder.is_dir():
                found[cell] = folder
    if missing := [cell for cell in cells if cell not in found]:
        listed = ", ".join(f"{name} {severity}" for name, severity in missing)
        groups = " ".join(sorted({group_of(name) for name, _ in missing}))
        raise FileNotFoundError(
            f"{root} lacks {len(missing)} of {len(cells)} cells: {listed}. Fetch {groups} with "
            "chaosgate data download, or use -c data/imagenet --data.corruptions paper."
        )
    return found


class ReleasedImages:
    """Images of one cell, neither resized nor cropped.

    Args:
        folder: Folder of the cell.
        names: Names relative to ``folder``; all cells share one copy of the names.
        size: Side of the square that every image must have.
        decoder: As for all photographs.
    """

    def __init__(self, folder: Path, names: FileImages, size: int, decoder: Decoder) -> None:
        self.folder, self.names, self.size = folder, names, size
        self.decoder: Decoder = decoder

    def __getitem__(self, index: int) -> Picture:
        path = self.folder / self.names.path(index)
        picture = decode(path, self.decoder)
        if (size := get_size(picture)) != [self.size, self.size]:
            raise ValueError(
                f"{path} is {size[1]}x{size[0]}, data.image_size is {self.size}; the images of a "
                "cell are not resized."
            )
        return picture


@dataclass(frozen=True)
class CopySettings:
    """Settings that determine the pixels of written copies."""

    seed: int = 0
    size: int = 224
    resize: int = 256
    table: str = "imagenet"
    quality: int = 85


def list_clean(folder: Path) -> list[tuple[Path, str]]:
    """Images below ``folder`` and the names of their corrupted copies, in the order of the draws.

    The validation folder of ImageNet gives ``<wnid>/<name>``; any other folder keeps its relative
    paths.
    """
    val = folder / "val" if has_classes(folder / "val") else folder
    jpeg = (".jpg", ".jpeg")
    return [
        (val / name, name if name.lower().endswith(jpeg) else f"{name.rsplit('.', 1)[0]}.JPEG")
        for name in walk(val).names
    ]


def write_copies(
    images: Sequence[tuple[Path, str]],
    target: Path,
    cells: Sequence[Cell],
    settings: CopySettings,
    workers: int = 1,
    frost_textures: str | None = None,
) -> int:
    """Write ``target/<corruption>/<severity>/<name>`` for every image and cell; count new files.

    A file depends only on its image, its number, its cell and ``settings``. Existing files are
    kept, so an interrupted call can be repeated.
    """
    target.mkdir(parents=True, exist_ok=True)
    with FileLock(target / ".lock", timeout=0):  # another run that writes there is an error
        _claim(target, images, settings)
        how: Any = {"table": settings.table, "frost_textures": frost_textures}
        makers = [Corrupt(*cell, settings.seed, **how) for cell in cells]
        for maker in makers:  # missing textures are noticed before the run
            maker(np.zeros((settings.size, settings.size, 3), dtype=np.uint8))
        several: dict[str, Any] = {}
        if workers > 1:  # spawned, because OpenCV has threads
            several = {"num_workers": workers, "multiprocessing_context": "spawn"}
            several["worker_init_fn"] = _one_thread
        loader = DataLoader(_Copies(images, target, makers, settings), batch_size=None, **several)
        count: int = sum(track(loader, "corrupted copies", console=Console(stderr=True)))
        shutil.rmtree(target / PARTS)
        return count


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
        # a crash can leave an empty file
        missing = {m: p for m, p in places.items() if not (p.is_file() and p.stat().st_size)}
        if missing:
            resize, size = self.settings.resize, self.settings.size
            picture = center_crop(decode(path, "pil"), resize, size, InterpolationMode.BILINEAR)
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
    listed = "".join(f"{name} {path.stat().st_size}\n" for path, name in images)
    libraries = ("numpy", "scipy", "opencv-python-headless", "pillow")
    wanted = {
        "corruptions": "generated",
        "images": len(images),
        "files": hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest(),
        **asdict(settings),
        **{name: version(name) for name in libraries},
    }
    found = read_manifest(target)
    if not found and any(not entry.name.startswith(".") for entry in target.iterdir()):
        raise ValueError(
            f"{target} is not empty and was not made by this command. Give another folder."
        )
    changed = [
        f"{k} was {v!r}, is {wanted.get(k)!r}" for k, v in found.items() if wanted.get(k) != v
    ]
    if changed:
        raise ValueError(
            f"{target} was started with other settings: {'; '.join(changed)}. Give the same "
            "settings and images, or another folder."
        )
    shutil.rmtree(target / PARTS, ignore_errors=True)  # of an interrupted call
    (target / PARTS).mkdir()
    half = target / PARTS / MANIFEST
    half.write_text(json.dumps(wanted, indent=2) + "\n")
    half.replace(target / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The settings of a folder of written copies; empty for other folders."""
    path = folder / MANIFEST
    text = path.read_text() if path.is_file() else None
    if text is not None and '"generated"' not in text:
        raise ValueError(f"{path} is damaged. Restore it, or generate the copies again.")
    found: dict[str, Any] = json.loads(text or "{}")
    return found
