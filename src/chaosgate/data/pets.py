"""Oxford-IIIT Pets (Parkhi et al. 2012): 37 breeds of cats and dogs, the fine-grained pilot of the paper."""

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn

from chaosgate.data.download import download
from chaosgate.data.listing import Listing, some_of_each_class, spaced_holdout
from chaosgate.data.module import ImageData, images_per_class, share
from chaosgate.data.photos import PhotoData

COUNTS = {"trainval": 3_680, "test": 3_669}
CLASSES = 37
_FOLDER = "oxford-iiit-pet"


class OxfordPets(PhotoData):
    """The official trainval and test photographs; validation images are taken from trainval (app. pets_results).

    The folder is that of torchvision: ``root/oxford-iiit-pet/images`` and ``.../annotations``; the folder
    ``oxford-iiit-pet`` may also be given itself. Of trainval, every class gives ``val_fraction`` of its images for
    validation, evenly spaced in the order of the official list
    (:func:`~chaosgate.data.listing.spaced_holdout`): the paper fixes a split and does not publish it. The
    test set may be corrupted on request (Pets-C), always generated.

    Args:
        root: Folder that holds ``oxford-iiit-pet``.
        image_size: Side of the square that the network sees, in pixels.
        download: Fetch the set into ``root`` if it is not there.
        val_fraction: Share of each class of trainval that is held out for validation.
        per_class: How many images of each class to use at most, by split, e.g. ``{train: 40, test: 20}``, chosen by the
            hash of their paths. Null uses all.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name = "oxford_pets"
    num_classes = CLASSES

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        *,
        download: bool = False,
        val_fraction: float = 0.2,
        per_class: dict[str, int] | None = None,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.val_fraction = share("val_fraction", val_fraction)
        self.per_class = images_per_class(per_class)
        self.download = download
        self.class_names: list[str] = []
        self.missing: dict[str, int] = {}
        if not download:
            self._folder()

    @classmethod
    def found_in(cls, root: Path) -> "list[ImageData]":
        """A folder of torchvision's layout."""
        lists = any((folder / "annotations" / "trainval.txt").is_file() for folder in (root / _FOLDER, root))
        return [cls(str(root))] if lists else []

    def prepare_data(self) -> None:
        if self.download and not any((folder / "annotations").is_dir() for folder in (self.root / _FOLDER, self.root)):
            download("oxford-pets", self.root)

    def list_images(self, stage: str) -> dict[str, Listing]:
        """The official lists, checked against the files; trainval divided."""
        folder = self._folder()
        trainval, test = (self._read(folder, part) for part in COUNTS)
        held = spaced_holdout(trainval.targets, self.val_fraction)
        if not held.any():
            raise ValueError(f"data.val_fraction {self.val_fraction} leaves no validation image; give a larger one.")
        train, val = (trainval.pick(np.flatnonzero(mask)) for mask in (~held, held))
        return some_of_each_class({"train": train, "val": val, "test": test}, self.per_class)

    def split_rule(self) -> str:
        return f"val: {self.val_fraction} of each class of the official trainval list, evenly spaced; official test"

    def describe(self) -> dict[str, Any]:
        """As for all photographs; ``subset`` says whether images were left out, ``missing`` how many files were."""
        lacking = any(self.missing.values())
        missing = {"missing": self.missing} if lacking else {}
        return {**super().describe(), "subset": self.per_class or lacking, **missing}

    def _folder(self) -> Path:
        for folder in (self.root / _FOLDER, self.root):
            if (folder / "images").is_dir() and (folder / "annotations").is_dir():
                return folder
        raise FileNotFoundError(
            f"no oxford-iiit-pet/images and oxford-iiit-pet/annotations in {self.root}. Set data.root to the folder "
            "that holds them, or set data.download to true."
        )

    def _read(self, folder: Path, part: str) -> Listing:
        """Files of an official list that are there, in its order; lines are ``name class species breed``."""
        path = folder / "annotations" / f"{part}.txt"
        lines = [line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
        faulty = [line for line in lines if len(line) != 4 or not line[1].isdigit() or not 1 <= int(line[1]) <= CLASSES]
        if faulty or len(lines) != COUNTS[part]:
            reason = f"a line {' '.join(faulty[0])!r}" if faulty else f"{len(lines)} images"
            raise ValueError(f"{path} has {reason}; the official list has {COUNTS[part]} images of classes 1 to 37.")
        images = folder / "images"
        sizes = {entry.name: entry.stat().st_size for entry in images.iterdir()}
        there = [(f"{line[0]}.jpg", int(line[1]) - 1) for line in lines if f"{line[0]}.jpg" in sizes]
        self._note_missing(part, len(lines) - len(there), {target for _, target in there}, images)
        if not self.class_names:
            names = {int(line[1]) - 1: line[0].rsplit("_", 1)[0] for line in lines}
            self.class_names = [names[target].replace("_", " ") for target in range(CLASSES)]
        prefix = images.relative_to(self.root).as_posix()
        return Listing(
            self.root,
            [f"{prefix}/{name}" for name, _ in there],
            np.array([sizes[name] for name, _ in there], dtype=np.int64),
            np.array([target for _, target in there], dtype=np.int64),
        )

    def _note_missing(self, part: str, count: int, classes: set[int], images: Path) -> None:
        self.missing[part] = count
        if not classes:
            raise FileNotFoundError(f"none of the {COUNTS[part]} {part} images is in {images}. Unpack images.tar.gz.")
        if count:
            rank_zero_warn(
                f"{count} of the {COUNTS[part]} {part} images are not in {images}; {len(classes)} of {CLASSES} classes "
                "are left. Results will say so."
            )
