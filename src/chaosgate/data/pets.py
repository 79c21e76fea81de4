"""Oxford-IIIT Pets (Parkhi et al. 2012): 37 breeds of cats and dogs, the paper's pilot study."""

from typing import Any

import numpy as np
from jsonargparse.typing import NotEmptyStr, OpenUnitInterval, PositiveInt
from lightning.pytorch.utilities import rank_zero_warn
from torchvision.datasets import OxfordIIITPet

from chaosgate.data.listing import (
    Listing,
    spaced_holdout,
)
from chaosgate.data.photos import PhotoData

COUNTS = {"trainval": 3_680, "test": 3_669}
CLASSES = 37
_FOLDER = "oxford-iiit-pet"


class OxfordPets(PhotoData):
    """The official trainval and test photographs; validation images come from trainval.

    The layout is torchvision's: ``root/oxford-iiit-pet/images`` and ``.../annotations``; ``root``
    may also be ``oxford-iiit-pet`` itself. ``val_fraction`` of the images of each trainval class
    are used for validation: evenly spaced in the official list
    (:func:`~chaosgate.data.listing.spaced_holdout`), or drawn with ``split_seed``. The split of the
    paper is not published.

    Args:
        root: Folder that contains ``oxford-iiit-pet``.
        image_size: Side of the square that the network sees, in pixels.
        download: Let torchvision download the set into ``root`` if it is missing.
        val_fraction: Share of each class of trainval that is held out for validation.
        photo: Settings of :class:`~chaosgate.data.photos.PhotoData`.
    """

    name = "oxford_pets"
    num_classes = CLASSES

    def __init__(
        self,
        root: NotEmptyStr,
        image_size: PositiveInt = 224,
        *,
        download: bool = False,
        val_fraction: OpenUnitInterval = 0.2,
        **photo: Any,
    ) -> None:
        super().__init__(root, image_size, **photo)
        self.val_fraction = float(val_fraction)
        self.download = download
        self.class_names: list[str] = []
        self.missing: dict[str, int] = {}
        itself = (self.root / "annotations").is_dir()
        self.folder = self.root if itself else self.root / _FOLDER
        folders = (self.folder / "images", self.folder / "annotations")
        if not download and not all(folder.is_dir() for folder in folders):
            raise FileNotFoundError(
                f"no {_FOLDER}/images and {_FOLDER}/annotations in {self.root}. Set data.root to "
                "their folder, or set data.download to true."
            )

    def prepare_data(self) -> None:
        if self.download:
            OxfordIIITPet(str(self.root), download=True)

    def list_images(self, stage: str) -> dict[str, Listing]:
        """The official lists, checked against the files; trainval is split."""
        trainval, test = self._read("trainval"), self._read("test")
        held = spaced_holdout(trainval.targets, self.val_fraction, self.split_seed)
        train, val = (trainval.pick(np.flatnonzero(mask)) for mask in (~held, held))
        return {"train": train, "val": val, "test": test}

    def split_rule(self) -> str:
        share = f"{self.val_fraction} of each class of the official trainval list"
        return f"val: {share}, evenly spaced; official test{self.seed_rule()}"

    def describe(self) -> dict[str, Any]:
        """As for all photographs; ``missing`` counts official images without a file."""
        lacking = any(self.missing.values())
        missing = {"missing": self.missing} if lacking else {}
        return {**super().describe(), "subset": self.per_class or lacking, **missing}

    def _read(self, part: str) -> Listing:
        """Files of an official list that are there; lines are ``name class species breed``."""
        path, images = self.folder / "annotations" / f"{part}.txt", self.folder / "images"
        count = COUNTS[part]
        lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
        entries = [(words[0], int(words[1]) - 1) for words in map(str.split, lines)]
        if len(entries) != count or {target for _, target in entries} != set(range(CLASSES)):
            raise ValueError(
                f"{path} lists {len(entries)} images; the official list has {count} of classes 1 "
                f"to {CLASSES}. Download it again."
            )
        names = {target: name.rsplit("_", 1)[0].replace("_", " ") for name, target in entries}
        self.class_names = [names[target] for target in range(CLASSES)]
        sizes = {entry.name: entry.stat().st_size for entry in images.iterdir()}
        there = [(f"{name}.jpg", target) for name, target in entries if f"{name}.jpg" in sizes]
        self.missing[part] = count - len(there)
        if self.missing[part]:
            rank_zero_warn(
                f"{self.missing[part]} of the {count} {part} images are not in {images}; "
                f"{len({target for _, target in there})} of {CLASSES} classes are left. Rows "
                "record this."
            )
        prefix = images.relative_to(self.root).as_posix()
        return Listing(
            self.root,
            [f"{prefix}/{name}" for name, _ in there],
            np.array([sizes[name] for name, _ in there], dtype=np.int64),
            np.array([target for _, target in there], dtype=np.int64),
        )
