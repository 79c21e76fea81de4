"""Corrupted images made on the fly, for test sets that do not fit into memory."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from chaosgate.data.dataset import Images, Split
from chaosgate.data.decoding import as_tensor
from chaosgate.data.sample import CLEAN, Cell

Table = Literal["imagenet", "small"]


def table_for(image_size: int) -> Table:
    """Parameters that suit an image size: those of ImageNet-C, or up to 64 pixels those for small images."""
    return "small" if image_size <= 64 else "imagenet"


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
    """Images under one corruption: image i is a function of (seed, corruption, severity, i) and of the clean image.

    With ``jpeg`` the result goes through the JPEG save (quality 85) that is part of the released ImageNet-C.
    """

    def __init__(self, images: Images, cell: Cell, seed: int, table: Table, jpeg: bool) -> None:
        self.images = images
        self.cell = cell
        self.seed = seed
        self.table = table
        self.jpeg = jpeg

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        from chaosgate.corruptions import corrupt, jpeg_roundtrip

        image = as_tensor(self.images[index]).permute(1, 2, 0).contiguous().numpy()
        corruption, severity = self.cell
        image = corrupt(image, corruption, severity=severity, seed=self.seed, index=index, table=self.table)
        if self.jpeg:
            image = jpeg_roundtrip(image, quality=85)
        return torch.from_numpy(image).permute(2, 0, 1)


def generated_cells(clean: Split, cells: Sequence[Cell], seed: int, table: Table, jpeg: bool) -> list[Split]:
    """One split per cell over shared clean images; go through them image by image."""
    shared = LastImage(clean.images)
    return [
        Split(shared if cell == CLEAN else CorruptedImages(shared, cell, seed, table, jpeg), clean.targets)
        for cell in cells
    ]
