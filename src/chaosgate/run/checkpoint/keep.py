"""The callback that keeps checkpoints: of epochs, of steps in between, on a signal; and which epoch is the best."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from chaosgate.data.files.atomic import replace_file, replace_link
from chaosgate.run.checkpoint.continuation import (
    count_as_not_begun,
    gather_random_states,
    load_forgotten_loader_state,
    restore_random_state,
)
from chaosgate.run.checkpoint.files import checkpoints_by_age, read_record, record_of
from chaosgate.run.checkpoint.stopping import Preempted, SignalWatch
from chaosgate.run.directory import BEST, LAST, SELECTION, TOP1, RunDirectory

_RANDOM = "random_states"


class EpochScore(NamedTuple):
    """Validation of one epoch."""

    epoch: int
    nll: float
    ece: float
    top1: float


class Selection(NamedTuple):
    """Epochs by role. ``candidates`` are those within the tolerance of the smallest NLL, by epoch."""

    best: int
    top1: int
    last: int
    candidates: list[int]

    @property
    def epochs(self) -> set[int]:
        """All that have a role."""
        return {self.best, self.top1, self.last, *self.candidates}


def select(scores: Sequence[EpochScore], tolerance: float) -> Selection:
    """Choose among the epochs so far.

    Two networks whose NLL differs by less than ``tolerance`` are alike as far as the likelihood goes; among them the
    better calibrated one is taken. What remains equal goes to the smaller NLL, then to the earlier epoch. A metric
    that is not a number never wins.

    >>> scores = [EpochScore(0, 0.50, 0.01, 0.80), EpochScore(1, 0.4005, 0.02, 0.90), EpochScore(2, 0.40, 0.05, 0.85)]
    >>> select(scores, 1e-3)
    Selection(best=1, top1=1, last=2, candidates=[1, 2])
    """
    least = min(_worst_last(score.nll) for score in scores)
    candidates = [score for score in scores if _worst_last(score.nll) <= least + tolerance]
    best = min(candidates, key=lambda s: (_worst_last(s.ece), _worst_last(s.nll), s.epoch))
    top1 = min(scores, key=lambda s: (_worst_last(-s.top1), _worst_last(s.nll), s.epoch))
    return Selection(best.epoch, top1.epoch, scores[-1].epoch, [score.epoch for score in candidates])


def _worst_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


class KeepCheckpoints(Checkpoint):
    """Keep what a run needs to be continued exactly, and the selected networks.

    After every epoch ``epoch-NNNN.ckpt`` is written; those with a role stay: ``best`` (smallest validation NLL, ECE
    decides among epochs within ``tolerance``, all of which stay), ``top1``, ``last``. Links of these names lead to
    them, and ``selection.json`` says which and why. Between epochs ``step-NNNNNNNN.ckpt`` is written every
    ``every_n_steps`` optimiser steps, and at the next step after SIGTERM, SIGUSR1 or Ctrl-C; training then ends with
    :class:`~chaosgate.run.checkpoint.stopping.Preempted`. The two newest files always stay, so that there is one to
    fall back on.

    A checkpoint between epochs is written when the next batch is at hand but untouched: all that belongs to the steps
    before, logged values included, is out by then. It holds the random streams of all processes. Resuming from any of
    the files therefore gives the same weights and the same log as not having stopped.

    Args:
        every_n_steps: Optimiser steps between two checkpoints within an epoch; null keeps epochs only.
        tolerance: NLL difference within which two epochs count as equal and ECE decides.
    """

    def __init__(self, every_n_steps: int | None = 1000, tolerance: float = 1e-3) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"saving.every_n_steps is {every_n_steps}; give a whole number of at least 1, or null.")
        if not 0 <= tolerance < float("inf"):
            raise ValueError(f"saving.tolerance is {tolerance}; give a finite NLL difference of at least 0.")
        self.every_n_steps = every_n_steps
        self.tolerance = tolerance
        self._folder = Path()
        self.scores: list[EpochScore] = []
        self._watch = SignalWatch()
        self._restored: list[dict[str, Any]] | None = None
        self._saved_step = -1
        self._between_batches = False

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"scores": [list(score) for score in self.scores]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scores = [EpochScore(*score) for score in state_dict["scores"]]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the random streams; between batches, count the batch at hand as not begun."""
        checkpoint[_RANDOM] = gather_random_states()
        if self._between_batches:
            count_as_not_begun(checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the random streams for the moment when training goes on."""
        self._restored = checkpoint.get(_RANDOM)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._folder = RunDirectory.of(trainer).checkpoints

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that ended after it wrote its last epoch, before the names led there, trains no epoch that would."""
        if self.scores and trainer.is_global_zero and (self._folder / _name(self.scores[-1].epoch)).is_file():
            self._point()

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals over from Lightning as early as possible."""
        self._watch.start()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals over from Lightning; what was loaded is saved already."""
        self._watch.start()
        self._saved_step = trainer.global_step
        load_forgotten_loader_state(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Between two batches: restore the random streams after a restart, save when due, stop after a signal."""
        if self._restored is not None:
            restore_random_state(self._restored, trainer.global_rank)
            self._restored = None
        if batch_idx % trainer.accumulate_grad_batches:
            return  # half of a step is in the gradients, which no checkpoint holds
        told = self._told(trainer)
        step = trainer.global_step
        due = self.every_n_steps is not None and step - self._saved_step >= self.every_n_steps
        if batch_idx > 0 and step != self._saved_step and (told or due):
            self._between_batches = True
            self._save(trainer, f"step-{step:08d}.ckpt")
            self._between_batches = False
            self._prune(trainer)
        if told:
            raise Preempted(told, _stopped(told, self._what_is_saved()))

    def on_validation_batch_start(self, trainer: Trainer, *unused: Any) -> None:
        """Do not finish a long validation after a signal; the last checkpoint leads back to its beginning."""
        if trainer.state.fn == "fit" and (told := self._told(trainer)):
            raise Preempted(told, _stopped(told, f"in validation, {self._what_is_saved()}"))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the epoch, choose, tidy up. Runs after all other callbacks and after the module itself."""
        value = {name: float(trainer.callback_metrics.get(f"val/{name}", "nan")) for name in ("nll", "ece", "top1")}
        epoch = trainer.current_epoch
        self.scores = [score for score in self.scores if score.epoch < epoch] + [EpochScore(epoch, **value)]
        self._save(trainer, _name(epoch))
        if trainer.is_global_zero:
            self._point()
        self._prune(trainer)
        if told := self._told(trainer):
            raise Preempted(told, _stopped(told, f"saved at the end of epoch {epoch}"))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._watch.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._watch.stop()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _save(self, trainer: Trainer, name: str) -> None:
        for logger in trainer.loggers:  # what was logged up to here must outlive a crash as the checkpoint does
            flush = getattr(getattr(logger, "experiment", None), "flush", None)
            if flush is not None and trainer.is_global_zero:
                flush()
        trainer.save_checkpoint(self._folder / name, weights_only=False)
        self._saved_step = trainer.global_step

    def _point(self) -> None:
        """Write down which epochs were chosen; let the names lead to them."""
        chosen = select(self.scores, self.tolerance)
        roles = {BEST: chosen.best, TOP1: chosen.top1, LAST: chosen.last}
        record = {
            "rule": f"best: smallest val/nll; among epochs within {self.tolerance:g} of it, smallest val/ece",
            **{name.removesuffix(".ckpt"): _name(epoch) for name, epoch in roles.items()},
            "candidates": [_name(epoch) for epoch in chosen.candidates],
            "epochs": [score._asdict() for score in self.scores],
        }
        replace_file(self._folder / SELECTION, json.dumps(record, indent=1) + "\n")
        for name, epoch in roles.items():
            link = self._folder / name
            if not (link.is_symlink() and os.readlink(link) == _name(epoch)):
                replace_link(link, _name(epoch))

    def _prune(self, trainer: Trainer) -> None:
        """Remove files without a role, except the two newest."""
        if not trainer.is_global_zero:
            return
        chosen = select(self.scores, self.tolerance).epochs if self.scores else set()
        roles = {_name(epoch) for epoch in chosen}
        for path in checkpoints_by_age(self._folder)[2:]:
            if path.name not in roles:
                path.unlink(missing_ok=True)
                record_of(path).unlink(missing_ok=True)

    def _what_is_saved(self) -> str:
        newest = next(iter(checkpoints_by_age(self._folder)), None)
        record = None if newest is None else read_record(newest)
        return "before the first checkpoint" if record is None else f"saved at step {record['step']}"

    def _told(self, trainer: Trainer) -> int:
        """The signal that any of the processes has received, or 0."""
        told = self._watch.received
        if trainer.world_size > 1 and dist.is_initialized():
            shared = torch.tensor([told], device=trainer.strategy.root_device)
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
            told = int(shared)
        return told


def _name(epoch: int) -> str:
    return f"epoch-{epoch:04d}.ckpt"


def _stopped(signum: int, where: str) -> str:
    return f"stopped by signal {signum}: {where}. Continue with the same command and --resume."
