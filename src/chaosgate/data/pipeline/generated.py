"""Corrupted images made on the fly, for test sets that do not fit into memory."""

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from chaosgate.data.pipeline.dataset import Images, Split
from chaosgate.data.pipeline.decoding import as_tensor
from chaosgate.data.pipeline.sample import CLEAN, Cell

Table = Literal["imagenet", "small"]


def table_for(image_size: int) -> Table:
    """Parameters that suit an image size: those of ImageNet-C, or up to 64 pixels those for small images."""
    return "small" if image_size <= 64 else "imagenet"


class Corruption(Protocol):
    """The corruption of the image at a position."""

    def __call__(self, image: Tensor, index: int = 0) -> Tensor:
        """Image in, corrupted image out."""
        ...


class LastImage:
    """Images that remember the one asked for last: the cells of an image follow each other and share its decoding."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self._last: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        if self._last is None or self._last[0] != index:
            self._last = index, as_tensor(self.images[index])
        return self._last[1]


class CorruptedImages:
    """Images under one corruption."""

    def __init__(self, images: Images, corruption: Corruption) -> None:
        self.images = images
        self.corruption = corruption

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.corruption(as_tensor(self.images[index]), index)


def corruptions_of(
    cells: Sequence[Cell], image_size: int, seed: int, table: Table, jpeg: bool, frost_textures: str | None
) -> list[Corruption | None]:
    """The corruption of every cell, none for the clean one.

    Image i becomes a function of (seed, corruption, severity, i) and of the clean image. With ``jpeg`` it then goes
    through the JPEG save (quality 85) that is part of the released ImageNet-C. Each is tried on a black image, so
    that whatever it lacks is known before the run.
    """
    from chaosgate.corruptions import Corrupt

    quality = 85 if jpeg else None
    made: list[Corruption | None] = []
    for cell in cells:
        if cell == CLEAN:
            made.append(None)
            continue
        corruption = Corrupt(*cell, seed, table, jpeg_quality=quality, frost_textures=frost_textures)
        corruption(torch.zeros(3, image_size, image_size, dtype=torch.uint8), index=0)
        made.append(corruption)
    return made


def generated_splits(clean: Split, corruptions: Sequence[Corruption | None]) -> list[Split]:
    """One split per corruption over shared clean images; go through them image by image."""
    shared = LastImage(clean.images)
    return [
        Split(shared if corruption is None else CorruptedImages(shared, corruption), clean.targets)
        for corruption in corruptions
    ]
