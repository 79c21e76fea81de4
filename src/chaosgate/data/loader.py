"""Which process reads which image, and a training loader that starts where the trainer is.

Both samplers subclass torch's ``DistributedSampler``, so Lightning does not replace them.
"""

from collections.abc import Callable, Iterator, Sized
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from chaosgate.data.samples import PADDING, Sample, epoch_order


class TrainSampler(DistributedSampler[tuple[int, int]]):
    """Tokens ``(index, epoch)`` of one rank's part of a shuffled epoch.

    The order depends on (seed, epoch) alone, and rank r of R takes every R-th image from r on: the
    images of a global step do not depend on the number of processes. The epoch travels with the
    index, so workers that outlive an epoch hold no stale state.

    ``drop_last`` cuts the order to whole steps of ``batch_size * num_replicas`` images; otherwise
    the order continues from its beginning until all ranks have equally many. The next iteration
    skips ``start`` images of the rank's part: this resumes an epoch.
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
        super().__init__(dataset, num_replicas, rank, shuffle=True, seed=seed, drop_last=drop_last)
        assert isinstance(dataset, Sized)
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

    Blocks are contiguous, so that neighbors that share a decoded image stay together. Shorter
    blocks end in :data:`PADDING`: all ranks take equally many steps and no collective waits.

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
    """The epoch that the trainer is in, and the batches of it that it has processed."""

    epoch: int
    batches: int


class ResumableLoader(DataLoader[Sample]):
    """Training batches that begin where the trainer is, also in the middle of an epoch.

    The samples are pure functions of (seed, epoch, index) and the order of (seed, epoch), so the
    position is all there is to restore. An iterator starts at its first ``next``, because Lightning
    calls ``iter`` before it has restored its own position, and then asks ``progress``. Batches that
    workers have prepared ahead are not counted.
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
