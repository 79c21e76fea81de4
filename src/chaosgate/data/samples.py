"""Samples, the order in which processes read them, and the random numbers of the data.

Every random number is a function of its purpose and of (seed, epoch, index). Global random streams
are not used.
"""

import random
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate
from torchvision.transforms.v2 import functional as pixels

from chaosgate.metrics.aggregate import CLEAN as CLEAN
from chaosgate.metrics.aggregate import Cell as Cell

Picture = Tensor | Image.Image  # uint8 (3, H, W), or an RGB image that PIL also resizes
Augmentation = Callable[[Any, torch.Generator], Picture]
PADDING = -1


def stream_key(purpose: str, *numbers: int, size: int = 8) -> int:
    """Hash a purpose and integers into an integer of ``size`` bytes."""
    text = "/".join([purpose, *(str(int(one)) for one in numbers)])
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "little")


def epoch_order(seed: int, epoch: int, length: int, purpose: str = "epoch order") -> NDArray[Any]:
    """The order of ``length`` images in an epoch: the ranks of as many Philox words.

    numpy guarantees the same raw words in all versions, but not the same ``permutation``.

    >>> sorted(epoch_order(seed=0, epoch=3, length=5).tolist())
    [0, 1, 2, 3, 4]
    """
    words = np.random.Philox(key=stream_key(purpose, seed, epoch, size=16)).random_raw(length)
    return np.argsort(words, kind="stable").astype(np.int64)


def sample_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """Generator of the augmentation of image ``index`` in ``epoch``."""
    key = stream_key("augmentation", seed, epoch, index, size=7)
    return torch.Generator().manual_seed(key)


@contextmanager
def lent_streams(key: int) -> Iterator[None]:
    """Context in which the global streams of Python, NumPy and torch (CPU) are seeded by ``key``.

    It makes libraries such as timm, which use these streams, reproducible.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(key)
        np.random.seed(key % 2**32)
        torch.default_generator.manual_seed(key)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


class Sample(NamedTuple):
    """One image of a split; a batch is the same tuple with a leading batch axis on every field.

    ``image`` is uint8 (C, H, W) from the workers, and a normalized float tensor once the data
    module's ``on_after_batch_transfer`` has run. ``index`` is the position in the split, the same
    in every test cell; ``-1`` marks padding for equally long shards, which metrics do not count.
    ``cell`` is an index into ``ImageData.test_cells``.
    """

    image: Tensor
    target: int
    index: int  # type: ignore[assignment]  # shadows tuple.index
    cell: int = 0


def as_sample(batch: Any) -> Any:
    """Convert a batch of any loader to a :class:`Sample`.

    Without an index every image counts; without a cell the images are clean.

    >>> as_sample([torch.zeros(2, 1, 4, 4), torch.tensor([3, 1])]).index
    tensor([0, 1])
    """
    if isinstance(batch, Sample):
        return batch
    several = isinstance(batch, list | tuple) and len(batch) > 1
    image: Any
    target: Any
    image, target, *rest = batch if several else (None, None)
    pair = isinstance(image, Tensor) and isinstance(target, Tensor)
    if not pair or image.ndim != 4 or not image.is_floating_point() or len(target) != len(image):
        raise ValueError(
            f"a batch of the data is {_outline(batch)}. A custom data module gives pairs (image, "
            "target): images (B, C, H, W) as normalized floats, and B class numbers."
        )
    index: Any = rest[0] if rest else torch.arange(len(image), device=image.device)
    cell: Any = rest[1] if len(rest) > 1 else torch.zeros_like(index)
    return Sample(image, target, index, cell)


def _outline(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
    if isinstance(batch, list | tuple):
        return f"[{', '.join(_outline(part) for part in batch)}]"
    if isinstance(batch, dict):
        return f"a dictionary of {', '.join(map(str, batch))}"
    return f"a {type(batch).__name__}"


def as_tensor(picture: Picture) -> Tensor:
    """uint8 (C, H, W) of a tensor or PIL image."""
    if isinstance(picture, Tensor):
        return picture
    tensor: Tensor = pixels.pil_to_tensor(picture)
    return tensor


def normalized(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """float32 of uint8 (..., C, H, W): ``(image / 255 - mean) / std``."""
    m, s = (torch.tensor(values, device=image.device).view(-1, 1, 1) for values in (mean, std))
    return (image.float() / 255 - m) / s


class Images(Protocol):
    """Images by position: uint8 tensors (C, H, W), or PIL images."""

    def __getitem__(self, index: int) -> Picture: ...


class Split(NamedTuple):
    """Images (any :class:`Images`, e.g. a tensor (N, C, H, W)) and their classes."""

    images: Images
    targets: NDArray[np.int64]


class TrainSet(Dataset[Sample]):
    """The augmented image of a token ``(index, epoch)``: a function of (seed, epoch, index).

    A bare index stands for epoch 0 (Lightning's ``overfit_batches`` uses its own sampler).
    """

    def __init__(self, split: Split, augment: Augmentation | None, seed: int) -> None:
        self.split, self.augment, self.seed = split, augment, seed

    def __len__(self) -> int:
        return len(self.split.targets)

    def __getitem__(self, token: tuple[int, int] | int) -> Sample:
        index, epoch = token if isinstance(token, tuple) else (token, 0)
        image: Any = self.split.images[index]
        if self.augment is not None:
            image = self.augment(image, sample_generator(self.seed, epoch, index))
        return Sample(as_tensor(image), int(self.split.targets[index]), index)

    def __getitems__(self, tokens: Sequence[tuple[int, int] | int]) -> list[Sample] | Sample:
        """A whole batch at once where the images are in memory and not augmented."""
        if self.augment is not None or not isinstance(self.split.images, Tensor):
            return [self[token] for token in tokens]
        index = np.array([token[0] if isinstance(token, tuple) else token for token in tokens])
        return _batch([self.split], np.zeros_like(index), index, index)


class EvalSet(Dataset[Sample]):
    """All test cells in one sequence, to be read in one pass by one pool of workers.

    With ``by_image`` the cells of an image are consecutive, so that generated corruptions decode it
    once; otherwise whole cells are consecutive. Position :data:`PADDING` is not counted.
    """

    def __init__(self, cells: Sequence[Split], by_image: bool = False) -> None:
        self.cells, self.by_image = list(cells), by_image
        self.size = len(cells[0].targets)

    def __len__(self) -> int:
        return self.size * len(self.cells)

    def locate(self, position: Any) -> tuple[Any, Any]:
        """Cell and image at a position, or at an array of positions."""
        if self.by_image:
            image, cell = divmod(position, len(self.cells))
        else:
            cell, image = divmod(position, self.size)
        return cell, image

    def __getitem__(self, position: int) -> Sample:
        cell, index = self.locate(max(position, 0))
        images, targets = self.cells[cell]
        shown = PADDING if position == PADDING else index
        return Sample(as_tensor(images[index]), int(targets[index]), shown, cell)

    def __getitems__(self, positions: Sequence[int]) -> list[Sample] | Sample:
        """A whole batch at once where the images are in memory."""
        if not all(isinstance(cell.images, Tensor) for cell in self.cells):
            return [self[position] for position in positions]
        asked = np.array(positions)
        cell, index = self.locate(np.maximum(asked, 0))
        return _batch(self.cells, cell, index, np.where(asked == PADDING, PADDING, index))


def _batch(
    cells: Sequence[Split], cell: NDArray[Any], index: NDArray[Any], shown: NDArray[Any]
) -> Sample:
    """Images ``index`` of their cells, as collating them one by one would give them."""
    images, targets = [], []
    for run in np.split(np.arange(len(cell)), np.flatnonzero(np.diff(cell)) + 1):
        source: Any = cells[cell[run[0]]].images
        images.append(source.index_select(0, torch.from_numpy(index[run])))
        targets.append(cells[cell[run[0]]].targets[index[run]])
    image = images[0] if len(images) == 1 else torch.cat(images)
    numbers: list[Any] = [torch.from_numpy(part) for part in (np.concatenate(targets), shown, cell)]
    return Sample(image, *numbers)


def collate(samples: list[Sample] | Sample) -> Sample:
    """Collate samples; batches read at once do not change."""
    batch: Sample = samples if isinstance(samples, Sample) else default_collate(samples)
    return batch


# Both samplers subclass torch's DistributedSampler, so Lightning does not replace them.


class TrainSampler(DistributedSampler[tuple[int, int]]):
    """Tokens ``(index, epoch)`` of one rank's part of a shuffled epoch.

    The order depends only on (seed, epoch), and rank r of R takes every R-th image from r on, so
    the images of a global step do not depend on the number of processes. Tokens contain the epoch,
    so persistent workers have no stale state.

    ``drop_last`` cuts the order to whole steps of ``batch_size * num_replicas`` images; otherwise
    the order continues from its beginning until all ranks have the same number. To resume an
    epoch, the next iteration skips ``start`` images of the rank.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        batch_size: int,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = True,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, True, seed, drop_last)  # type: ignore[arg-type]
        self.length, self.start = len(dataset), 0
        step = batch_size * num_replicas
        whole, padded = self.length // step * step, -(-self.length // num_replicas) * num_replicas
        self.total_size = whole if drop_last else padded
        self.num_samples = self.total_size // num_replicas

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.resize(epoch_order(self.seed, self.epoch, self.length), self.total_size)
        epoch, mine = self.epoch, order[self.rank :: self.num_replicas][self.start :]
        return ((index, epoch) for index in mine.tolist())


class EvalSampler(DistributedSampler[int]):
    """One rank's block of positions 0, 1, ..., each counted once over all ranks.

    Blocks are contiguous, so that samples of the same decoded image stay together. Shorter blocks
    end with :data:`PADDING`, so that all ranks have the same number of steps.

    >>> [list(EvalSampler(range(7), num_replicas=3, rank=rank)) for rank in range(3)]
    [[0, 1, 2], [3, 4, -1], [5, 6, -1]]
    """

    def __init__(self, dataset: Sized, *, num_replicas: int = 1, rank: int = 0) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=False)  # type: ignore[arg-type]
        self.length = len(dataset)

    def __iter__(self) -> Iterator[int]:
        short, longer = divmod(self.length, self.num_replicas)
        first = self.rank * short + min(self.rank, longer)
        size = short + (self.rank < longer)
        yield from range(first, first + size)
        yield from [PADDING] * (self.num_samples - size)


class Progress(NamedTuple):
    """The trainer's current epoch, and the number of batches processed in it."""

    epoch: int
    batches: int


class ResumableLoader(DataLoader[Sample]):
    """Training batches from the trainer's position on, also in the middle of an epoch.

    The samples are pure functions of (seed, epoch, index) and the order is one of (seed, epoch), so
    only the position has to be restored. An iterator asks ``progress`` at its first ``next``,
    because Lightning calls ``iter`` before it restores its position. Batches that workers have
    prepared ahead are not counted.
    """

    def __init__(
        self, *args: Any, progress: Callable[[], Progress | None] = lambda: None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.progress = progress

    def __iter__(self) -> Iterator[Sample]:  # type: ignore[override]
        sampler, progress = self.sampler, self.progress()
        if progress is not None and isinstance(sampler, TrainSampler):  # not with overfit_batches
            assert self.batch_size is not None
            sampler.set_epoch(progress.epoch)
            sampler.start = progress.batches * self.batch_size
        yield from super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Empty: these two methods tell Lightning that the loader can resume within an epoch."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass
