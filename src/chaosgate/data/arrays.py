"""What all sets of small images in memory share: the split, pad and crop, and corrupted copies."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from chaosgate.data.cells import SEVERITIES, Corruptions, corrupted_copies, plan_cells
from chaosgate.data.listing import hashed_share, spaced_holdout
from chaosgate.data.module import Contents, ImageData, folder_at, images_per_class, share
from chaosgate.data.augment import crop_and_flip
from chaosgate.data.samples import Augmentation, Images, Split


class Part(NamedTuple):
    """Images (N, H, W) or (N, H, W, C), uint8, and their classes (N,)."""

    images: NDArray[np.uint8]
    targets: NDArray[np.int64]

    def some_of_each_class(self, count: int) -> "Part":
        kept = hashed_share([str(place) for place in range(len(self.targets))], self.targets, count)
        return Part(self.images[kept], self.targets[kept])


class ArrayData(ImageData):
    """Small images that fit into memory; the test set clean and under corruptions.

    Training images are padded with zeros, cut at random and mirrored, as is usual for small images; the others
    are taken as they are. A subclass reads the images (:meth:`read`) and says where they come from (``origin``).

    Args:
        val_fraction: Share of each class of the training part that is held out for validation, evenly spaced.
        per_class: How many images of each class to use at most, by split, e.g. ``{train: 300}``, chosen by the hash of
            their places in it. Null uses all.
        corruptions: ``paper`` for the seven of the paper, ``common``, ``all``, a list of names, or none for the clean
            test set only.
        severities: Severities of each corruption, from 1 to 5.
        cache_dir: Folder that keeps generated corrupted copies between runs; none generates them in every run.
        crop_padding: Zeros around a training image before a window of its old size is cut at random; 0 for no crop.
        horizontal_flip: Mirror training images at random.
        batch_size: Training images per process and step.
        num_workers: Processes that prepare batches; the images are in memory, so 0 is usually fastest.
        loading: Settings of :class:`~chaosgate.data.module.ImageData`.
    """

    table = "small"

    def __init__(
        self,
        *,
        val_fraction: float = 0.1,
        per_class: dict[str, int] | None = None,
        corruptions: Corruptions = None,
        severities: Sequence[int] = SEVERITIES,
        cache_dir: str | None = None,
        crop_padding: int = 4,
        horizontal_flip: bool = True,
        batch_size: int = 128,
        num_workers: int = 0,
        **loading: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, **loading)
        if not 0 <= crop_padding < self.image_size:
            raise ValueError(
                f"data.crop_padding is {crop_padding}; give a whole number from 0 to {self.image_size - 1}."
            )
        self.val_fraction = share("val_fraction", val_fraction)
        self.per_class = images_per_class(per_class)
        self.cache_dir = folder_at("cache_dir", cache_dir)
        self.crop_padding = crop_padding
        self.horizontal_flip = horizontal_flip
        self.test_cells = self.plan(corruptions, severities)
        self.origin: dict[str, Any] = {}
        self._parts: dict[str, Part] = {}

    @abstractmethod
    def read(self) -> dict[str, Part]:
        """Images of ``train`` and ``test``, and of ``val`` if the set has a part of its own for that."""

    def plan(self, corruptions: Corruptions, severities: Sequence[int]) -> list[Any]:
        return plan_cells(corruptions, severities, self.table)

    def cell_images(self, images: NDArray[np.uint8]) -> list[Images]:
        """Test images of every cell: generated from the clean ones, in memory."""
        quiet = self._process()[1] > 0
        copies = corrupted_copies(images, self.test_cells, self.seed, self.table, self.cache_dir, quiet)
        return [as_images(copy) for copy in copies]

    def setup(self, stage: str) -> None:
        """Read the images; for testing also the corrupted copies."""
        if not self._parts:
            self._parts = self.read()
            if "val" not in self._parts:
                self._hold_out()
            for name, count in self.per_class.items():
                self._parts[name] = self._parts[name].some_of_each_class(count)
            self.train_split, self.val_split = (_split(self._parts[name]) for name in ("train", "val"))
        if stage in ("fit", "validate") and not len(self._parts["val"].targets):
            raise ValueError(f"data.val_fraction {self.val_fraction} leaves no validation image; give a larger one.")
        test = self._parts["test"]
        if stage == "test" and len(self.test_splits) < len(self.test_cells):
            self.test_splits = [Split(images, test.targets) for images in self.cell_images(test.images)]
        elif not self.test_splits:
            self.test_splits = [_split(test)]

    def contents(self) -> dict[str, Contents]:
        """All parts; reading them checks their shapes and labels."""
        self.setup("test")
        return {
            split: Contents([f"{self.name} {split} {i}" for i in range(len(images))], partial(_bytes_of, images))
            for split, (images, _) in self._parts.items()
        }

    def augmentation(self) -> Augmentation | None:
        """Random crop of the padded image and random mirroring, as configured."""
        if not self.crop_padding and not self.horizontal_flip:
            return None
        return partial(crop_and_flip, padding=self.crop_padding, flip=self.horizontal_flip)

    def describe(self) -> dict[str, Any]:
        """Name, sizes, how corruptions and splits were made, digests of the files."""
        generated = len(self.test_cells) > 1
        return {
            "name": self.name,
            "images": self.sizes(),
            "subset": False,
            "corruptions": "generated" if generated else None,
            "corruption_table": self.table if generated else None,
            "corruption_seed": self.seed if generated else None,
            **self.origin,
            **({"subset": self.per_class} if self.per_class else {}),
        }

    def _hold_out(self) -> None:
        whole = self._parts["train"]
        held = spaced_holdout(whole.targets, self.val_fraction)
        for name, mask in (("train", ~held), ("val", held)):
            self._parts[name] = Part(whole.images[mask], whole.targets[mask])
        self.origin["split"] = f"val: {self.val_fraction} of each class of the official training part, evenly spaced"


def as_images(images: NDArray[np.uint8]) -> torch.Tensor:
    """(N, C, H, W) view of (N, H, W) or (N, H, W, C) images."""
    tensor = torch.from_numpy(images)
    return tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)


def _bytes_of(images: NDArray[np.uint8], place: int) -> bytes:
    data: bytes = images[place].tobytes()
    return data


def _split(part: Part) -> Split:
    return Split(as_images(part.images), part.targets)
