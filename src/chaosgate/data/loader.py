"""Which process gets which image, and a DataLoader that can stop within an epoch and resume at the next batch.

Both samplers subclass torch's ``DistributedSampler``, the sign for Lightning not to put its own in their place.
"""

from collections.abc import Callable, Iterator, Sized
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from chaosgate.data.samples import PADDING, Sample
from chaosgate.data.streams import epoch_order


class TrainSampler(DistributedSampler[tuple[int, int]]):
    """Tokens ``(index, epoch)`` of one rank's part of a shuffled epoch.

    The order depends on (seed, epoch) alone, and rank r of R takes every R-th image from r on: the images of a global
    step do not depend on how many processes share them. The epoch travels with the index, so workers that outlive an
    epoch hold no state that could be stale.

    ``drop_last`` cuts the order to whole steps of ``batch_size * num_replicas`` images (other images are left out in
    other epochs); otherwise the order is continued from its own beginning until the ranks have equally many.
    ``start`` images of the rank's part are passed over at the next iteration: this is how an epoch is resumed.
    """

    def __init__(
        self,
        dataset: Dataset[object],
        *,
        batch_size: int,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = True,
    ) -> None:
        super().__init__(dataset, num_replicas=num_replicas, rank=rank, shuffle=True, seed=seed, drop_last=drop_last)
        assert isinstance(dataset, Sized)
        self.length = len(dataset)
        step = batch_size * num_replicas
        self.total_size = self.length // step * step if drop_last else -(-self.length // num_replicas) * num_replicas
        self.num_samples = self.total_size // num_replicas
        self.start = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.resize(epoch_order(self.seed, self.epoch, self.length), self.total_size)
        epoch = self.epoch
        return ((index, epoch) for index in order[self.rank :: self.num_replicas][self.start :].tolist())


class EvalSampler(DistributedSampler[int]):
    """One rank's block of positions 0, 1, ..., each counted once over all ranks.

    Blocks are contiguous, so that neighbours that share a decoded image stay together, and differ by at most one;
    the shorter ones end in :data:`PADDING`, so that all ranks take equally many steps and no collective waits.

    >>> [list(EvalSampler(range(7), num_replicas=3, rank=rank)) for rank in range(3)]
    [[0, 1, 2], [3, 4, -1], [5, 6, -1]]
    """

    def __init__(self, dataset: Sized, *, num_replicas: int = 1, rank: int = 0) -> None:
        super().__init__(dataset, num_replicas=num_replicas, rank=rank, shuffle=False)  # type: ignore[arg-type]
        self.length = len(dataset)

    def __iter__(self) -> Iterator[int]:
        short, longer = divmod(self.length, self.num_replicas)
        first = self.rank * short + min(self.rank, longer)
        size = short + (self.rank < longer)
        yield from range(first, first + size)
        yield from [PADDING] * (self.num_samples - size)


class Progress(NamedTuple):
    """The epoch that the trainer is in, and the batches of it that it has processed."""

    epoch: int
    batches: int


class ResumableLoader(DataLoader[Sample]):
    """Training batches that begin where the trainer is, also in the middle of an epoch.

    The samples are pure functions of (seed, epoch, index) and the order of (seed, epoch), so the position is all there
    is to restore. An iterator starts at its first ``next``, because Lightning calls ``iter`` before it has restored
    its own position, and then asks ``progress``. Batches that workers have prepared ahead are not counted.
    """

    def __init__(self, *args: Any, progress: Callable[[], Progress | None] = lambda: None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.progress = progress

    def __iter__(self) -> Iterator[Sample]:  # type: ignore[override]
        sampler, progress = self.sampler, self.progress()
        if progress is not None and isinstance(sampler, TrainSampler):  # overfit_batches puts another one in its place
            assert self.batch_size is not None
            sampler.set_epoch(progress.epoch)
            sampler.start = progress.batches * self.batch_size
        yield from super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Empty: these two methods tell Lightning that the loader can be resumed in the middle of an epoch."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass
