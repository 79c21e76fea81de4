"""Base of the sets of small images in memory: split, padded crop, corrupted copies."""

from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveInt
from numpy.typing import NDArray

from chaosgate.data.augment import crop_and_flip
from chaosgate.data.cells import (
    SEVERITIES,
    Corruptions,
    Severities,
    corrupted_copies,
    plan_cells,
)
from chaosgate.data.listing import hashed_share, spaced_holdout
from chaosgate.data.module import Contents, ImageData, PerClass, images_per_class
from chaosgate.data.samples import Augmentation, Images, Split


class Part(NamedTuple):
    """Images (N, H, W) or (N, H, W, C), uint8, and their classes (N,)."""

    images: NDArray[np.uint8]
    targets: NDArray[np.int64]

    def pick(self, places: NDArray[Any]) -> "Part":
        return Part(self.images[places], self.targets[places])

    def split(self) -> Split:
        return Split(as_images(self.images), self.targets)


class ArrayData(ImageData):
    """Small images in memory; the test set clean and under corruptions.

    Training images are padded with zeros, cropped at random and mirrored; the others are taken as
    they are. A subclass reads the images (:meth:`read`) and describes their source (``origin``).

    Args:
        val_fraction: Share of each class of the training part that is held out for validation,
            evenly spaced.
        per_class: How many images of each class to use at most, by split, e.g. ``{train: 300}``,
            chosen by the hash of their positions. Null uses all.
        corruptions: ``paper`` for the seven of the paper, ``common``, ``all``, a list of names, or
            null for the clean test set only.
        severities: Severities of each corruption, from 1 to 5.
        cache_dir: Folder that keeps generated corrupted copies between runs; null generates them in
            every run.
        crop_padding: Zeros around a training image before a random crop of its old size; 0 for no
            crop.
        horizontal_flip: Mirror training images at random.
        batch_size: Training images per process and step.
        num_workers: Processes that prepare batches; the images are in memory, so 0 is usually
            fastest.
        loading: Settings of :class:`~chaosgate.data.module.ImageData`.
    """

    corruption_table = "small"

    def __init__(
        self,
        *,
        val_fraction: OpenUnitInterval = 0.1,
        per_class: PerClass | None = None,
        corruptions: Corruptions = None,
        severities: Severities = SEVERITIES,
        cache_dir: str | None = None,
        crop_padding: NonNegativeInt = 4,
        horizontal_flip: bool = True,
        batch_size: PositiveInt = 128,
        num_workers: NonNegativeInt = 0,
        **loading: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, **loading)
        self.val_fraction = float(val_fraction)
        self.per_class = images_per_class(per_class)
        self.cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
        self.crop_padding, self.horizontal_flip = int(crop_padding), horizontal_flip
        self.test_cells = plan_cells(corruptions, severities, self.corruption_table)
        self.origin: dict[str, Any] = {}
        self._parts: dict[str, Part] = {}

    @abstractmethod
    def read(self) -> dict[str, Part]:
        """Images of ``train`` and ``test``, and of ``val`` if the set has such a part."""

    def cell_images(self, images: NDArray[np.uint8]) -> list[Images]:
        """Test images of every cell, generated from the clean ones."""
        copies = corrupted_copies(
            images,
            self.test_cells,
            self.seed,
            self.corruption_table,
            self.cache_dir,
            quiet=self._process()[1] > 0,
        )
        return [as_images(copy) for copy in copies]

    def setup(self, stage: str) -> None:
        """Read the images; for testing also the corrupted copies."""
        if not self._parts:
            parts = self.read()
            if "val" not in parts:
                whole = parts["train"]
                held = spaced_holdout(whole.targets, self.val_fraction)
                parts |= {"train": whole.pick(~held), "val": whole.pick(held)}
                self.origin["split"] = (
                    f"val: {self.val_fraction} of each class of the official training part, evenly "
                    "spaced"
                )
            for name, count in self.per_class.items():
                places = [str(place) for place in range(len(parts[name].targets))]
                parts[name] = parts[name].pick(hashed_share(places, parts[name].targets, count))
            self._parts = parts
            self.train_split, self.val_split = parts["train"].split(), parts["val"].split()
            self.test_splits = [parts["test"].split()]
        test = self._parts["test"]
        if stage == "test" and len(self.test_splits) < len(self.test_cells):
            cells = self.cell_images(test.images)
            self.test_splits = [Split(images, test.targets) for images in cells]

    def contents(self) -> dict[str, Contents]:
        """All parts; reading them checks their shapes and labels."""
        self.setup("test")
        return {
            split: Contents(
                [f"{self.name} {split} {place}" for place in range(len(images))],
                partial(_bytes_of, images),
            )
            for split, (images, _) in self._parts.items()
        }

    def augmentation(self) -> Augmentation | None:
        """Random crop of the padded image and random mirroring, as configured."""
        if not self.crop_padding and not self.horizontal_flip:
            return None
        return partial(crop_and_flip, padding=self.crop_padding, flip=self.horizontal_flip)

    def describe(self) -> dict[str, Any]:
        """Also the digests of the files and how they were split."""
        part = {"subset": self.per_class} if self.per_class else {}
        return {**super().describe(), **self.origin, **part}


def as_images(images: NDArray[np.uint8]) -> torch.Tensor:
    """(N, C, H, W) view of (N, H, W) or (N, H, W, C) images."""
    tensor = torch.from_numpy(images)
    return tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)


def _bytes_of(images: NDArray[np.uint8], place: int) -> bytes:
    data: bytes = images[place].tobytes()
    return data
