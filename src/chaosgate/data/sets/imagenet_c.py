"""ImageNet-C (Hendrycks and Dietterich 2019): the released JPEGs, or the same corruptions of clean images."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from chaosgate.data.cells import SEVERITIES, Corruptions, plan_cells
from chaosgate.data.files.corrupted_copies import read_manifest
from chaosgate.data.files.folders import Listing
from chaosgate.data.files.index import image_files
from chaosgate.data.module import Contents, ImageData, named_path, one_of
from chaosgate.data.pipeline.decoding import Decoder, FileImages, Picture, decode, picture_size
from chaosgate.data.pipeline.samples import Cell, Split
from chaosgate.data.sets.imagenet import ImageNet
from chaosgate.data.sets.imagenet_layout import has_classes, list_class_folders
from chaosgate.data.sets.published import all_common_cells, mean_corruption_error

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
"""The five archives of the release and what is in them."""


class ImageNetC(ImageNet):
    """Corrupted copies of the ImageNet validation set, for testing only; all cells in one pass.

    ``released``: ``root`` holds ``<corruption>/<severity>/<wnid>/`` or the same below the groups of the archives
    (``noise/gaussian_noise/1/...``). The images are taken as they are: they were resized and cut when they were made.
    Missing cells are listed before anything runs. Every cell must have the same files. Copies that ``chaosgate data
    corrupt`` wrote are read in the same way; their manifest says that they were generated, and so do the results.

    ``generated``: ``root`` holds clean images in any layout of :class:`~chaosgate.data.sets.imagenet.ImageNet`; they
    are resized, cut, corrupted and saved as JPEG of quality 85, as the release was. The law of the
    corruptions is the same, the draws are not. Every result says which of the two it is.

    Args:
        root: Folder of the released set, or of clean images.
        image_size: Side of the square that the network sees; that of the release is 224.
        source: ``released`` for images on disk, ``generated`` to make them from clean ones.
        clean: ``released``: folder of the clean set, to test it in the same pass (as cell ``clean``).
        corruptions: ``paper`` for the seven of the paper, or a list of names.
        severities: Severities of each corruption, from 1 to 5.
        corruption_jpeg: ``generated``: save as JPEG.
        imagenet: Settings of :class:`~chaosgate.data.sets.imagenet.ImageNet`.
    """

    name = "imagenet_c"
    test_only = True

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        *,
        source: Literal["released", "generated"] = "released",
        clean: str | None = None,
        corruptions: Corruptions = "paper",
        severities: Sequence[int] = SEVERITIES,
        corruption_jpeg: bool = True,
        **imagenet: Any,
    ) -> None:
        one_of("source", source, ("released", "generated"))
        if corruptions is None:
            raise ValueError("data.corruptions is null; ImageNetC needs some. Use chaosgate.ImageNet for clean images.")
        released = source == "released"
        self.source = source
        self.cell_root = named_path("root", root)
        self.has_clean = not released or clean is not None
        super().__init__(
            clean if released and clean is not None else root,
            image_size,
            corruptions=None if released else corruptions,
            severities=severities,
            corruption_jpeg=corruption_jpeg,
            **imagenet,
        )
        if released:
            cells = plan_cells(corruptions, severities)
            self.test_cells = cells if self.has_clean else cells[1:]
            self.cell_folders = find_cells(self.cell_root, cells[1:])
            self.cells_by_image = False
            self.cell_digest = ""
            self.manifest = read_manifest(self.cell_root)

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """Folders ``<corruption>/<severity>``, below those of the groups or not; a corruption has all severities."""
        groups = [root, *(root / group for group in GROUPS)]
        places = [group / name for group in groups for names in GROUPS.values() for name in names]
        cells = [place / str(severity) for place in places for severity in SEVERITIES]
        cells = [cell for cell in cells if cell.is_dir() and has_classes(cell)]
        if not cells:
            return []
        size = picture_size(image_files(cells[0])[0])[0]
        corruptions = list(dict.fromkeys(cell.parent.name for cell in cells))
        severities = sorted({int(cell.name) for cell in cells})
        return [cls(str(root), size, corruptions=corruptions, severities=severities, index_dir="")]

    def contents(self) -> dict[str, Contents]:
        """One split: the images of the first cell; all others have the same."""
        if self.source == "generated":
            return super().contents()
        return {"test": Contents.of_files(self._list_cells().paths)}

    def setup(self, stage: str) -> None:
        """List the files of every cell and check that they are the same; generated cells follow their clean image."""
        if self.source == "generated" or stage not in ("test", "predict"):
            super().setup(stage)
        elif not self.test_splits:
            self._setup_released()

    def describe(self) -> dict[str, Any]:
        """As for ImageNet; ``corruptions`` is ``released`` or ``generated``, which copies on disk know themselves."""
        told = super().describe()
        if self.source == "released":
            made = self.manifest or {}
            told |= {
                "corruptions": self.origin,
                "corruption_table": made.get("table"),
                "corruption_seed": made.get("seed"),
                "corruption_jpeg": True,  # the release was saved as JPEG, too
                "transform": "clean as ImageNet; corrupted as they are" if self.has_clean else "none",
                "files": {**told["files"], "cells": self.cell_digest},
                **({"manifest": made} if made else {}),
            }
        del told["validation"]
        return {**told, "split": "official val"}

    @property
    def origin(self) -> str:
        """``generated`` for corruptions made by this package, now or when the copies were written."""
        return self.source if self.source == "generated" or self.manifest is None else "generated"

    def teardown(self, stage: str) -> None:
        """Log the mCE, if all fifteen common corruptions were tested."""
        super().teardown(stage)
        rows = self._tested(stage)
        top1 = {(row["corruption"], row["severity"]): row["top1"] for row in rows if "top1" in row}
        if rows and all(cell in top1 for cell in all_common_cells()):
            print(f"mCE {mean_corruption_error(top1):.2f} ({self.origin} corruptions, relative to AlexNet)")

    def _check_root(self) -> None:
        if self.has_clean:
            super()._check_root()

    def _setup_released(self) -> None:
        listing = self._list_cells()
        names = FileImages(listing.names)
        splits = [
            Split(ReleasedImages(folder, names, self.image_size, self.decoder), listing.targets)
            for folder in self.cell_folders.values()
        ]
        if self.has_clean:
            clean = self._cut(self._list("val"))
            order = {Path(name).name: place for place, name in enumerate(clean.names)}
            absent = [name for name in listing.names if Path(name).name not in order]
            if absent:
                raise ValueError(
                    f"{len(absent)} images of the cells are not among the clean ones in {self.root}, e.g. {absent[0]}. "
                    "Set data.clean to the validation set they were made from, or to null."
                )
            places = np.array([order[Path(name).name] for name in listing.names], dtype=np.int64)
            self.listings["test"] = clean.pick(places)
            splits.insert(0, self._split("test", self.central_view()))
        self.test_splits = splits

    def _list_cells(self) -> Listing:
        """The files that all cells have; one that cannot be read in a cell is left out of all, or stops the run."""
        listings: dict[str, Listing] = {}
        first: Listing | None = None
        for cell, folder in self.cell_folders.items():
            listing = self._relabelled(list_class_folders(folder, self.index_dir, set(self.labels.tolist())))
            if first is None:
                first = self._checked("val", listing, folder)
            elif listing.names != first.names:
                differing = sorted(set(listing.names) ^ set(first.names))
                raise ValueError(
                    f"{folder} has {len(listing)} images and {first.root} {len(first)}; the cells differ in "
                    f"{len(differing)} files, e.g. {differing[0]}. All cells of a test must have the same images."
                )
            listings[f"{cell.corruption} {cell.severity}"] = replace(listing, names=first.names)
        assert first is not None
        digests = "".join(f"{name} {listing.digest()}\n" for name, listing in listings.items())
        self.cell_digest = hashlib.sha256(digests.encode()).hexdigest()
        listings = {name: self._cut(listing) for name, listing in listings.items()}
        self.left_out = self.bad_files(listings)
        bad = {f"{path.parent.name}/{path.name}" for path in self.left_out}
        shared = next(iter(listings.values()))
        return shared.pick(np.flatnonzero([name not in bad for name in shared.names])) if bad else shared


def group_of(corruption: str) -> str:
    """Archive that a corruption is released in."""
    return next(group for group, names in GROUPS.items() if corruption in names)


def find_cells(root: Path, cells: Sequence[Cell]) -> dict[Cell, Path]:
    """Folder of every cell, in ``<corruption>/<severity>`` or ``<group>/<corruption>/<severity>``.

    Raises:
        FileNotFoundError: Some are missing; the message lists them all, and which archives hold them.
    """
    found: dict[Cell, Path] = {}
    for cell in cells:
        name, severity = cell.corruption, str(cell.severity)
        places = (root / name / severity, root / group_of(name) / name / severity)
        place = next((place for place in places if place.is_dir()), None)
        if place is not None:
            found[cell] = place
    missing = [cell for cell in cells if cell not in found]
    if missing:
        by_name: dict[str, list[str]] = {}
        for cell in missing:
            by_name.setdefault(cell.corruption, []).append(str(cell.severity))
        listed = "; ".join(f"{name} {','.join(severities)}" for name, severities in by_name.items())
        archives = sorted({f"{group_of(name)}.tar" for name in by_name})
        raise FileNotFoundError(
            f"{root} lacks {len(missing)} of {len(cells)} cells: {listed}. They are in {', '.join(archives)} "
            "(chaosgate data download imagenet-c-noise, ...). Or ask for fewer (data.corruptions, data.severities), or "
            "set data.source to 'generated' and data.root to clean images."
        )
    return found


class ReleasedImages:
    """Images of one cell as they are: no resize and no cut.

    Args:
        folder: Folder of the cell.
        names: Names relative to it; all cells share one block of them, so memory does not grow with the cells.
        size: Side of the square that every image must have.
        decoder: As for all photographs.
    """

    def __init__(self, folder: Path, names: FileImages, size: int, decoder: Decoder) -> None:
        self.folder = folder
        self.names = names
        self.size = size
        self.decoder: Decoder = decoder

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Picture:
        path = self.folder / self.names.path(index)
        picture = decode(path, self.decoder)
        size = (picture.shape[2], picture.shape[1]) if isinstance(picture, Tensor) else picture.size
        if size != (self.size, self.size):
            raise ValueError(
                f"{path} is {size[0]}x{size[1]}; the images of a cell are {self.size}x{self.size} and are neither "
                "resized nor cut. Set data.image_size, or point data.root at the released set."
            )
        return picture
