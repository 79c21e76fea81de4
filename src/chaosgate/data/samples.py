"""Samples, and splits as data sets of them: augmented for training, plain and in cells for counting."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from chaosgate.data.decoding import Picture, as_tensor
from chaosgate.data.streams import sample_generator

Augmentation = Callable[[Any, torch.Generator], Picture]
PADDING = -1


class Sample(NamedTuple):
    """One image of a split; a batch is the same tuple with a leading batch axis on every field.

    ``image`` is uint8 (C, H, W) as the workers hand it over and a normalised float tensor on the device once the data
    module's ``on_after_batch_transfer`` has run. ``index`` is the position of the image in its split, the same in
    every cell of a test set; ``-1`` marks padding that makes the shards of several processes equally long and that
    no metric may count (a whole batch can be padding). ``cell`` points into ``ImageData.test_cells``.
    """

    image: Tensor
    target: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody needs here
    cell: int = 0


class Cell(NamedTuple):
    """One part of a test set: a corruption at a severity from 1 to 5; ``Cell("clean", 0)`` is the set itself."""

    corruption: str
    severity: int


CLEAN = Cell("clean", 0)


def as_sample(batch: Any) -> Any:
    """A batch of any loader as a :class:`Sample`; images without an index all count, those without a cell are clean.

    >>> as_sample([torch.zeros(2, 1, 4, 4), torch.tensor([3, 1])]).index
    tensor([0, 1])
    """
    if isinstance(batch, Sample):
        return batch
    image, target, *rest = batch if isinstance(batch, list | tuple) and len(batch) > 1 else (None, None)
    pair = isinstance(image, Tensor) and isinstance(target, Tensor)
    if not pair or image.ndim != 4 or not image.is_floating_point() or len(target) != len(image):
        raise ValueError(
            f"a batch of the data is {_outline(batch)}. A custom data module gives pairs (image, target): images "
            "(B, C, H, W) as normalised floats, and B class numbers as integers (or class weights (B, K) in training)."
        )
    index: Any = rest[0] if rest else torch.arange(len(image), device=image.device)
    cell: Any = rest[1] if len(rest) > 1 else torch.zeros_like(index)
    return Sample(image, target, index, cell)


def _outline(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
    if isinstance(batch, list | tuple):
        return f"[{', '.join(_outline(part) for part in batch)}]"
    return f"a dictionary of {', '.join(map(str, batch))}" if isinstance(batch, dict) else f"a {type(batch).__name__}"


class Images(Protocol):
    """Images by position: uint8 tensors (C, H, W), or PIL images."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Picture: ...


class Split(NamedTuple):
    """Images and their classes, in one order. ``images`` is any :class:`Images`, so also a tensor (N, C, H, W)."""

    images: Images
    targets: NDArray[np.int64]


class TrainSet(Dataset[Sample]):
    """The augmented image of a token ``(index, epoch)``: a pure function of (seed, epoch, index).

    A bare index stands for epoch 0 (Lightning's ``overfit_batches`` brings a sampler of its own).
    """

    def __init__(self, split: Split, augment: Augmentation | None, seed: int) -> None:
        self.split = split
        self.augment = augment
        self.seed = seed

    def __len__(self) -> int:
        return len(self.split.targets)

    def __getitem__(self, token: tuple[int, int] | int) -> Sample:
        index, epoch = token if isinstance(token, tuple) else (token, 0)
        image: Any = self.split.images[index]
        if self.augment is not None:
            image = self.augment(image, sample_generator(self.seed, epoch, index))
        return Sample(as_tensor(image), int(self.split.targets[index]), index)

    def __getitems__(self, tokens: Sequence[tuple[int, int] | int]) -> list[Sample] | Sample:
        """What a loader asks for: a whole batch at once where images in memory are taken as they are."""
        if self.augment is not None or not isinstance(self.split.images, Tensor):
            return [self[token] for token in tokens]
        index = np.array([token[0] if isinstance(token, tuple) else token for token in tokens])
        return _batch([self.split], np.zeros_like(index), index, index)


class EvalSet(Dataset[Sample]):
    """All cells of a split in one sequence, so that one pass with one pool of workers serves them all.

    With ``by_image`` the cells of an image follow each other (generated corruptions then decode it once); otherwise
    whole cells follow each other (sets on disk). Position :data:`PADDING` gives an
    image that is not to be counted.
    """

    def __init__(self, cells: Sequence[Split], by_image: bool = False) -> None:
        sizes = [len(cell.targets) for cell in cells]
        if len(set(sizes)) != 1:
            raise ValueError(f"the cells of a test set must hold equally many images; found {sizes}.")
        self.cells = list(cells)
        self.size = sizes[0]
        self.by_image = by_image

    def __len__(self) -> int:
        return self.size * len(self.cells)

    def locate(self, position: Any) -> tuple[Any, Any]:
        """Cell and image at a position, or at an array of positions."""
        if self.by_image:
            image, cell = divmod(position, len(self.cells))
            return cell, image
        cell, image = divmod(position, self.size)
        return cell, image

    def __getitem__(self, position: int) -> Sample:
        cell, index = self.locate(max(position, 0))
        images, targets = self.cells[cell]
        return Sample(as_tensor(images[index]), int(targets[index]), PADDING if position == PADDING else index, cell)

    def __getitems__(self, positions: Sequence[int]) -> list[Sample] | Sample:
        """What a loader asks for: a whole batch at once where the images are in memory."""
        if not all(isinstance(cell.images, Tensor) for cell in self.cells):
            return [self[position] for position in positions]
        asked = np.array(positions)
        cell, index = self.locate(np.maximum(asked, 0))
        return _batch(self.cells, cell, index, np.where(asked == PADDING, PADDING, index))


def _batch(cells: Sequence[Split], cell: NDArray[Any], index: NDArray[Any], shown: NDArray[Any]) -> Sample:
    """Images ``index`` of their cells as one batch: the same tensors as samples that are collated one by one."""
    images, targets = [], []
    for run in np.split(np.arange(len(cell)), np.flatnonzero(np.diff(cell)) + 1):
        source: Any = cells[cell[run[0]]].images
        images.append(source.index_select(0, torch.from_numpy(index[run])))
        targets.append(cells[cell[run[0]]].targets[index[run]])
    image = images[0] if len(images) == 1 else torch.cat(images)
    numbers: list[Any] = [torch.from_numpy(part) for part in (np.concatenate(targets), shown, cell)]
    return Sample(image, *numbers)


def collate(samples: list[Sample] | Sample) -> Sample:
    """One batch; samples that were taken at once are one already."""
    batch: Sample = samples if isinstance(samples, Sample) else default_collate(samples)
    return batch
