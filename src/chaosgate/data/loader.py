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
    """How far the consumer of the batches is: the epoch it is in, and the batches of it that it has finished."""

    epoch: int
    batches: int


class ResumableLoader(DataLoader[Sample]):
    """Training batches with a ``state_dict`` that Lightning keeps in its checkpoints.

    The samples are pure functions of (seed, epoch, index) and the order of (seed, epoch), so the state is the epoch,
    the number of batches used, and a fingerprint of what makes the order; it is the same on every rank.

    ``progress`` is the consumer's own count, where there is one. A batch that workers prepared ahead does not count
    as used, nor does one that was handed out to a step that failed. And the epoch is the consumer's: Lightning calls
    ``iter`` before it tells the sampler the epoch of a resumed run, and counts one epoch too many for the sampler
    when ``max_steps`` runs are resumed between epochs. Therefore an iterator starts at its first ``next``, and asks.
    A scheduler that wants to know the length of the run makes Lightning (2.6) build the loader before the checkpoint
    is read, and then forget the loader's state; the consumer's count has the position all the same.
    """

    def __init__(
        self,
        *args: Any,
        fingerprint: dict[str, Any] | None = None,
        progress: Callable[[], Progress | None] = lambda: None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.fingerprint = fingerprint or {}
        self.progress = progress
        self._position = Progress(0, 0)
        self._resume_at: Progress | None = None

    def __iter__(self) -> Iterator[Sample]:  # type: ignore[override]
        return self._batches()

    def _batches(self) -> Iterator[Sample]:
        sampler, start = self.sampler, 0
        if isinstance(sampler, TrainSampler):  # Lightning's overfit_batches puts a sequential one in its place
            if (progress := self.progress()) is not None:
                sampler.set_epoch(progress.epoch)
                start = progress.batches  # Lightning may have asked for the loader before it had a state to load
            if self._resume_at is not None and self._resume_at.epoch == sampler.epoch:
                start = self._resume_at.batches
            assert self.batch_size is not None
            sampler.start = start * self.batch_size
        self._resume_at = None
        self._position = Progress(getattr(sampler, "epoch", 0), start)
        for batch in super().__iter__():
            self._position = self._position._replace(batches=self._position.batches + 1)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Plain data: the epoch, the batches of it that were used, how many it has, and the fingerprint."""
        epoch, batches = self._position
        if (progress := self.progress()) is not None:
            batches = min(batches, progress.batches)
        return {"epoch": epoch, "batches": batches, "of": len(self), "fingerprint": dict(self.fingerprint)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the batches that ``state_dict`` counts; the state of a whole epoch leads to the next one."""
        position = Progress(int(state_dict["epoch"]), int(state_dict["batches"]))
        then, now = state_dict["fingerprint"], self.fingerprint
        changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
        if 0 < position.batches < int(state_dict["of"]) and changed:
            changes = "; ".join(f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in changed)
            raise ValueError(
                f"cannot continue after batch {position.batches} of epoch {position.epoch} of the checkpoint: "
                f"{changes}. Resume with the same data settings, or from a checkpoint at the end of an epoch."
            )
        if isinstance(self.sampler, TrainSampler):
            self.sampler.set_epoch(position.epoch)
        self._position = self._resume_at = position
