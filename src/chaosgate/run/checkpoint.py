"""Checkpoints: written whole, read as plain data, chosen by validation, exact to resume from."""

import math
import os
import random
import shutil
import signal
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from chaosgate.data.atomic import replace_link
from chaosgate.run.directory import LAST, SELECTION, RunDirectory, replace_file, write_json
from chaosgate.train.weights import read_checkpoint

_RANDOM = "random_states"  # key in a checkpoint
_STOPS = {int(signal.SIGTERM): SIGTERMException, int(signal.SIGINT): KeyboardInterrupt}
_RULE = "best: smallest val/nll; among epochs within {:g} of it, smallest val/ece"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint beside its place and rename it; read plain data of local files only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            replace_file(Path(path), partial(torch.save, checkpoint))
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            raise OSError(
                f"checkpoint {path} could not be written ({str(error).strip().splitlines()[0]}). An "
                "earlier file of that name is intact. Free some space, then use --resume."
            ) from error

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Whoever asks for it: no pickled object, no address, no damaged file."""
        if problem := damage(Path(path)):
            raise ValueError(problem)
        return read_checkpoint(path)


def damage(path: Path) -> str | None:
    """Why a checkpoint cannot be used; None if it can. torch does not compare its checksums."""
    try:
        read_checkpoint(path)
        with ZipFile(path) as archive:
            wrong = archive.testzip()
    except BadZipFile:
        return f"checkpoint {path} is not of a run. To start from its weights, use --model.weights."
    except (OSError, ValueError) as error:
        return str(error)
    return f"checkpoint {path} is damaged: a checksum does not match." if wrong else None


class EpochScore(NamedTuple):
    """Validation of one epoch."""

    epoch: int
    nll: float
    ece: float
    top1: float


def select(scores: Sequence[EpochScore], tolerance: float) -> tuple[int, int, list[int]]:
    """The best epoch, the one of the best Top-1, and all that may still become the best one.

    The paper's rule: smallest validation NLL; among epochs within ``tolerance`` of it, smallest ECE.
    Ties go to the smaller NLL, then to the earlier epoch. Epochs without validation never win.

    >>> select([EpochScore(0, 0.5, 0.01, 0.8), EpochScore(1, 0.4005, 0.02, 0.9), EpochScore(2, 0.4, 0.05, 0.85)], 1e-3)
    (1, 1, [1, 2])
    """
    measured = [score for score in scores if math.isfinite(score.nll)] or list(scores[-1:])
    least = min(score.nll for score in measured)
    close = [score for score in measured if not score.nll > least + tolerance]
    best = min(close, key=lambda score: (score.ece, score.nll, score.epoch))
    top1 = min(measured, key=lambda score: (-score.top1, score.nll, score.epoch))
    return best.epoch, top1.epoch, [score.epoch for score in close]


class KeepCheckpoints(ModelCheckpoint):
    """Write ``last.ckpt`` to resume from, and keep the epochs that validation selects.

    ``last.ckpt`` is written after every epoch, every ``every_n_steps`` optimizer steps, and when
    SIGTERM or Ctrl-C ends training between two steps. ``epoch-NNNN.ckpt`` are the epochs that are or
    may become the best one, ``best.ckpt`` and ``top1.ckpt`` are links to them, and ``selection.json``
    states the rule and the scores. A checkpoint also has the random streams of every process: a
    resumed run has the same weights as an uninterrupted one. Nothing is saved within validation,
    because its metrics cannot be resumed.

    Args:
        every_n_steps: Optimizer steps between checkpoints within an epoch; null saves after epochs.
        tolerance: Difference in NLL up to which two epochs count as equal and ECE decides.
    """

    def __init__(self, every_n_steps: int | None = None, tolerance: float = 1e-3) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(
                f"saving.every_n_steps is {every_n_steps}; give a positive number, or null."
            )
        save: dict[str, Any] = {"enable_version_counter": False, "save_on_train_epoch_end": True}
        super().__init__(filename=Path(LAST).stem, save_on_exception=True, **save)
        self.every_n_steps, self.tolerance = every_n_steps, tolerance
        self.scores: list[EpochScore] = []
        self._random: list[dict[str, Any]] = []  # streams of a loaded checkpoint, by rank
        self._between_steps, self._signal = False, 0

    def state_dict(self) -> dict[str, Any]:
        return {"scores": [list(score) for score in self.scores]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scores = [EpochScore(*score) for score in state_dict["scores"]]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Any
    ) -> None:
        checkpoint[_RANDOM] = _random_states()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Any
    ) -> None:
        self._random = checkpoint.get(_RANDOM, [])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.dirpath = str(RunDirectory(trainer.default_root_dir).checkpoints)
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose again if a process was killed before it could; forget the epochs of another run."""
        run, start = Path(trainer.default_root_dir).resolve(), trainer.ckpt_path
        if start is None or run not in Path(start).resolve().parents:
            self.scores = []
        self._choose(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let SIGTERM and Ctrl-C wait for the end of the step; Lightning restores the handlers.

        Its own handler of SIGTERM talks to the other processes in the middle of a step, and hangs.
        """
        super().on_train_start(trainer, pl_module)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._remember)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._remember)

    def _remember(self, signum: int, frame: Any) -> None:
        if self._signal:  # the second time at once
            raise _STOPS[signum]
        self._signal = signum

    def _stop_if_told(self, trainer: Trainer) -> None:
        """Stop all processes at the same place if one of them has received a signal."""
        told = torch.tensor(self._signal, device=trainer.strategy.root_device)
        if trainer.world_size > 1:
            dist.all_reduce(told, dist.ReduceOp.MAX)
        if told:
            raise _STOPS[int(told)]

    def on_train_batch_start(self, trainer: Trainer, *unused: Any) -> None:
        """Restore the random streams; what was drawn before the first batch does not count."""
        self._between_steps = False
        if trainer.global_rank < len(self._random):
            _restore_random_state(self._random[trainer.global_rank])
        self._random = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time, but neither before validation nor with accumulated gradients."""
        whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and not trainer.is_last_batch
        self._between_steps = whole and not trainer.fast_dev_run
        if self._between_steps:
            self._stop_if_told(trainer)
        if self._between_steps and trainer.global_step % (self.every_n_steps or math.inf) == 0:
            trainer.save_checkpoint(self.format_checkpoint_name({}), weights_only=False)

    def on_validation_batch_start(self, trainer: Trainer, *unused: Any) -> None:
        self._between_steps = False
        self._stop_if_told(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the epoch with its scores, then choose."""
        self._between_steps, found = False, trainer.callback_metrics
        value = {name: float(found.get(f"val/{name}", "nan")) for name in ("nll", "ece", "top1")}
        before = [score for score in self.scores if score.epoch < trainer.current_epoch]
        self.scores = [*before, EpochScore(trainer.current_epoch, **value)]
        super().on_train_epoch_end(trainer, pl_module)
        self._choose(trainer)
        self._stop_if_told(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save after a signal, unless a step is half done; errors may have left anything behind."""
        if self._between_steps and isinstance(exception, KeyboardInterrupt | SIGTERMException):
            super().on_exception(trainer, pl_module, exception)

    def _choose(self, trainer: Trainer) -> None:
        """Give the newest epoch its own file, write down the chosen epochs, remove the others."""
        folder = RunDirectory(trainer.default_root_dir).checkpoints
        if not (self.scores and trainer.is_global_zero and (folder / LAST).is_file()):
            return
        best, top1, close = select(self.scores, self.tolerance)
        names = {
            epoch: f"epoch-{epoch:04d}.ckpt"
            for epoch in (self.scores[-1].epoch, best, top1, *close)
        }
        newest = folder / names[self.scores[-1].epoch]
        if not newest.exists():
            try:
                os.link(folder / LAST, newest)  # the file is never changed in place
            except OSError:  # a file system without hard links
                shutil.copyfile(folder / LAST, newest)
        record = {
            "rule": _RULE.format(self.tolerance),
            **{"best": names[best], "top1": names[top1], "last": LAST},
            "candidates": [names[epoch] for epoch in close],
            "epochs": [score._asdict() for score in self.scores],
        }
        write_json(folder / SELECTION, record)
        for role in ("best", "top1"):
            replace_link(folder / f"{role}.ckpt", str(record[role]))
        self.best_model_path = str(folder / "best.ckpt")
        for path in folder.glob("epoch-*.ckpt"):
            if path.name not in {names[epoch] for epoch in (best, top1, *close)}:
                path.unlink()


def _random_states() -> list[dict[str, Any]]:
    """The global random streams of all processes, by rank, as plain data."""
    numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
    key = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    mine = {
        "python": random.getstate(),
        "numpy": {**numpy, "state": {**numpy["state"], "key": key}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, mine)
    return states


def _restore_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    numpy = state["numpy"]
    key = numpy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])


class StopAtNonFiniteLoss(Callback):
    """Raise an error at a loss that is infinite or not a number, before it reaches the weights."""

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        if not bool(torch.isfinite(loss)):
            raise RuntimeError(
                f"the loss became {float(loss.detach())} at step {trainer.global_step} of epoch "
                f"{trainer.current_epoch}. Lower the learning rate or the noise, or clip gradients "
                "(trainer.gradient_clip_val); the last checkpoint is untouched."
            )
