"""A DataLoader that can be left in the middle of a shuffled epoch and taken up again at the next batch."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from chaosgate.data.sample import Sample
from chaosgate.data.sampler import TrainSampler


class ResumableLoader(DataLoader[Sample]):
    """Training batches with a ``state_dict`` that Lightning keeps in its checkpoints.

    The samples are pure functions of (seed, epoch, index) and the order of (seed, epoch), so the state is the epoch,
    the number of batches used, and a fingerprint of what makes the order; it is the same on every rank. Batches that
    workers prepared ahead do not count, nor does one that was handed out but not finished: ``finished`` tells how
    many batches of the epoch the consumer has done (Lightning's own progress), which matters when a checkpoint is
    written because a step failed.

    An iterator starts at its first ``next``, not at ``iter``: Lightning calls ``iter`` before it tells the sampler
    the epoch of a resumed run, and workers would by then have fetched batches of epoch 0.
    """

    def __init__(
        self,
        *args: Any,
        fingerprint: dict[str, Any] | None = None,
        finished: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.fingerprint = fingerprint or {}
        self.finished = finished
        self._epoch = 0
        self._handed_out = 0
        self._resume_at: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[Sample]:  # type: ignore[override]
        return self._batches()

    def _batches(self) -> Iterator[Sample]:
        epoch, start = getattr(self.sampler, "epoch", 0), 0
        if self._resume_at is not None and self._resume_at[0] == epoch:
            start = self._resume_at[1]
        self._resume_at = None
        self._epoch, self._handed_out = epoch, start
        if isinstance(self.sampler, TrainSampler):
            assert self.batch_size is not None
            self.sampler.start = start * self.batch_size
        for batch in super().__iter__():
            self._handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Plain data: the epoch, batches used of it, batches in it, and the fingerprint."""
        used = self._handed_out if self.finished is None else min(self._handed_out, self.finished())
        return {"epoch": self._epoch, "batches": used, "of": len(self), "fingerprint": dict(self.fingerprint)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the batches that ``state_dict`` counts; a state of a whole epoch leads to the next epoch."""
        epoch, batches = int(state_dict["epoch"]), int(state_dict["batches"])
        then, now = state_dict["fingerprint"], self.fingerprint
        changed = [
            f"{key} {then.get(key)!r}, now {now.get(key)!r}" for key in {**then, **now} if then.get(key) != now.get(key)
        ]
        if 0 < batches < int(state_dict["of"]) and changed:
            raise ValueError(
                f"cannot go on after batch {batches} of epoch {epoch}: the checkpoint was written with "
                f"{'; '.join(changed)}. Resume with the same data settings, or from the end of an epoch."
            )
        if isinstance(self.sampler, TrainSampler):
            self.sampler.set_epoch(epoch)
        self._epoch, self._handed_out = epoch, batches
        self._resume_at = (epoch, batches)
