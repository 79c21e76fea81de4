"""Checkpoints: written whole, read as plain data only, chosen by validation, and exact to resume from."""

import json
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

from chaosgate.data.files.atomic import replace_file, replace_link
from chaosgate.run.directory import LAST, SELECTION, RunDirectory
from chaosgate.train.weights import read_checkpoint

_RANDOM = "random_states"  # key in a checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint beside its place and rename it; read tensors and plain data of local files only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            replace_file(path, partial(torch.save, checkpoint))
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            reason = str(error).strip().splitlines()[0]
            kept = (
                "The file before it is intact"
                if path.exists()
                else "There is no earlier file of that name"
            )
            raise OSError(
                f"checkpoint {path} could not be written ({reason}). {kept}. Free some space, then use --resume."
            ) from error

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Whatever asks for it: no pickled object, no address, no damaged file."""
        if problem := damage(Path(path)):
            raise ValueError(problem)
        return read_checkpoint(path)


def damage(path: Path) -> str | None:
    """Why a checkpoint cannot be used; None if it can. torch does not compare the checksums in it."""
    try:
        read_checkpoint(path)
        with ZipFile(path) as archive:
            wrong = archive.testzip()
    except BadZipFile:
        return f"checkpoint {path} is not of a run. To start from its weights, use --model.weights."
    except (OSError, ValueError) as error:
        return str(error)
    return f"checkpoint {path} is damaged: a checksum does not match." if wrong else None


# -- which epoch is the best -------------------------------------------------------------------------------------------


class EpochScore(NamedTuple):
    """Validation of one epoch."""

    epoch: int
    nll: float
    ece: float
    top1: float


class Selection(NamedTuple):
    """Epochs by role. ``candidates`` are those within the tolerance of the smallest NLL."""

    best: int
    top1: int
    candidates: list[int]


def select(scores: Sequence[EpochScore], tolerance: float) -> Selection:
    """The paper's rule: smallest validation NLL; among epochs within ``tolerance`` of it, smallest ECE.

    Remaining ties go to the smaller NLL, then to the earlier epoch. A metric that is not a number never wins.

    >>> scores = [EpochScore(0, 0.50, 0.01, 0.80), EpochScore(1, 0.4005, 0.02, 0.90), EpochScore(2, 0.40, 0.05, 0.85)]
    >>> select(scores, 1e-3)
    Selection(best=1, top1=1, candidates=[1, 2])
    """
    measured = [score for score in scores if math.isfinite(score.nll)] or list(scores[-1:])
    least = min(_worst_last(score.nll) for score in measured)
    candidates = [score for score in measured if _worst_last(score.nll) <= least + tolerance]
    best = min(candidates, key=lambda s: (_worst_last(s.ece), _worst_last(s.nll), s.epoch))
    top1 = min(measured, key=lambda s: (_worst_last(-s.top1), _worst_last(s.nll), s.epoch))
    return Selection(best.epoch, top1.epoch, [score.epoch for score in candidates])


def _worst_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


class KeepCheckpoints(ModelCheckpoint):
    """Write ``last.ckpt`` to resume from, and keep the epochs that validation selects.

    ``last.ckpt`` is written after every epoch, every ``every_n_steps`` optimizer steps, and when SIGTERM or Ctrl-C ends
    training between two steps. ``epoch-NNNN.ckpt`` are the epochs that are or may become the best one, ``best.ckpt``
    and ``top1.ckpt`` are links to them, and ``selection.json`` states the rule and the scores. A checkpoint also has
    the random streams of every process, so that a resumed run has the same weights as an uninterrupted one. Nothing is
    saved within validation: its metrics cannot be resumed.

    Args:
        every_n_steps: Optimizer steps between two checkpoints within an epoch; null saves after epochs only.
        tolerance: Difference in NLL up to which two epochs count as equal and ECE decides.
    """

    def __init__(self, every_n_steps: int | None = None, tolerance: float = 1e-3) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(
                f"saving.every_n_steps is {every_n_steps}; give a positive number, or null."
            )
        if not 0 <= tolerance < math.inf:
            raise ValueError(f"saving.tolerance is {tolerance}; give a number of at least 0.")
        super().__init__(
            filename=Path(LAST).stem,
            enable_version_counter=False,
            save_on_exception=True,
            save_on_train_epoch_end=True,
        )
        self.every_n_steps, self.tolerance = every_n_steps, tolerance
        self.scores: list[EpochScore] = []
        self._restored: list[dict[str, Any]] | None = None
        self._between_steps = False
        self._interrupted = False

    def state_dict(self) -> dict[str, Any]:
        return {"scores": [list(score) for score in self.scores]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scores = [EpochScore(*score) for score in state_dict["scores"]]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[_RANDOM] = _gather_random_states()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the random streams until the first batch; what is drawn before it does not count."""
        self._restored = checkpoint.get(_RANDOM)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.dirpath = str(RunDirectory(trainer.default_root_dir).checkpoints)
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose again if a process was killed before it could; forget the epochs of another run."""
        run, start = Path(trainer.default_root_dir).resolve(), trainer.ckpt_path
        if start is None or run not in Path(start).resolve().parents:
            self.scores = []
        if self.scores and trainer.is_global_zero:
            self._choose()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let Ctrl-C wait for the end of the step; Lightning restores the handler. A second one ends it at once."""
        super().on_train_start(trainer, pl_module)
        here = threading.current_thread() is threading.main_thread() and trainer.world_size == 1
        if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *unused: Any) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._between_steps = False
        if self._restored is not None and trainer.global_rank < len(self._restored):
            _restore_random_state(self._restored[trainer.global_rank])
        self._restored = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is time to, but neither before the validation of an epoch nor with accumulated gradients."""
        whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self._between_steps = whole and not trainer.is_last_batch and not _is_trial(trainer)
        if self._between_steps and self._interrupted:
            raise KeyboardInterrupt
        if (
            self._between_steps
            and self.every_n_steps
            and trainer.global_step % self.every_n_steps == 0
        ):
            trainer.save_checkpoint(self.format_checkpoint_name({}), weights_only=False)

    def on_validation_batch_start(self, trainer: Trainer, *unused: Any) -> None:
        self._between_steps = False
        if self._interrupted:
            raise KeyboardInterrupt

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the epoch with its scores, then choose."""
        self._between_steps = False
        value = {
            name: float(trainer.callback_metrics.get(f"val/{name}", "nan"))
            for name in ("nll", "ece", "top1")
        }
        epoch = trainer.current_epoch
        self.scores = [score for score in self.scores if score.epoch < epoch] + [
            EpochScore(epoch, **value)
        ]
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.is_global_zero and not _is_trial(trainer):
            self._choose()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save after a signal, unless a step is half done; errors may have left anything behind."""
        if self._between_steps and isinstance(exception, KeyboardInterrupt | SIGTERMException):
            super().on_exception(trainer, pl_module, exception)

    def _choose(self) -> None:
        """Give the newest epoch its own file, write down which epochs are chosen, remove the others."""
        folder = RunDirectory(Path(str(self.dirpath)).parent).checkpoints
        chosen = select(self.scores, self.tolerance)
        kept = {_name(epoch) for epoch in (chosen.best, chosen.top1, *chosen.candidates)}
        newest = folder / _name(self.scores[-1].epoch)
        if newest.name in kept and not newest.exists():
            _link_or_copy(folder / LAST, newest)
        record = {
            "rule": f"best: smallest val/nll; among epochs within {self.tolerance:g} of it, smallest val/ece",
            **{"best": _name(chosen.best), "top1": _name(chosen.top1), "last": LAST},
            "candidates": [_name(epoch) for epoch in chosen.candidates],
            "epochs": [score._asdict() for score in self.scores],
        }
        replace_file(folder / SELECTION, json.dumps(record, indent=1) + "\n")
        for role in ("best", "top1"):
            replace_link(folder / f"{role}.ckpt", str(record[role]))
        self.best_model_path = str(folder / "best.ckpt")
        for path in folder.glob(_name(0).replace("0000", "*")):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _is_trial(trainer: Any) -> bool:
    return bool(trainer.fast_dev_run)


def _name(epoch: int) -> str:
    return f"epoch-{epoch:04d}.ckpt"


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file that is never changed in place."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _gather_random_states() -> list[dict[str, Any]]:
    """The global random streams of all processes, by rank, as plain data."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    mine = {
        "python": [version, list(words), gauss],
        "numpy": [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, mine)
    return states


def _restore_random_state(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])


class StopAtNonFiniteLoss(Callback):
    """Raise an error at a loss that is infinite or not a number, before it reaches the weights."""

    def __init__(self) -> None:
        self._batch: Any = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        if bool(torch.isfinite(loss)):
            return
        index = getattr(self._batch, "index", None)  # of a plain tuple it is a method
        indices = index.tolist() if isinstance(index, Tensor) else []
        raise RuntimeError(
            f"the loss became {float(loss.detach())} at step {trainer.global_step} of epoch {trainer.current_epoch}, "
            f"on images {indices[:8] or 'without indices'} (rank {trainer.global_rank}). Lower the learning rate or "
            "the noise, or clip gradients (trainer.gradient_clip_val); the last checkpoint is untouched."
        )
