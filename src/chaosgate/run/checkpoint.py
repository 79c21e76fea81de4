"""Checkpoints of a training, for exact resuming and selected by validation; its curve."""

import math
import os
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jsonargparse.typing import NonNegativeFloat, PositiveInt
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from chaosgate.inject.callback import NoiseInjection
from chaosgate.run.files import (
    SELECTION,
    RunDirectory,
    replace_file,
    report_progress,
    write_json,
    write_lines,
)
from chaosgate.train.backbones import read_checkpoint

_RANDOM, _LINES = "random_states", "curve"  # keys in a checkpoint
_CURVES = ("train/loss", "val/top1", "val/nll", "val/ece", "val/gap")
_STOPS = {int(signal.SIGTERM): SIGTERMException, int(signal.SIGINT): KeyboardInterrupt}
EPOCH = "epoch-{:04d}.ckpt"
_RULE = "best: smallest val/nll; among epochs within {:g} of it, smallest val/ece"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically; read them as plain data, only from local files."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(path), partial(torch.save, checkpoint))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Refuse pickled objects, URLs and damaged files, whatever the arguments."""
        return read_checkpoint(path)


def damage(path: Path) -> str | None:
    """Why a checkpoint cannot be used; None if it can."""
    try:
        read_checkpoint(path)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def select(curve: Sequence[Mapping[str, Any]], tolerance: float) -> tuple[int, int, list[int]]:
    """The best epoch, the epoch of the best Top-1, and all epochs that may still become the best.

    The paper's rule: smallest validation NLL; among epochs within ``tolerance`` of it, smallest
    ECE. Ties go to the smaller NLL, then to the earlier epoch. Epochs without validation never win.

    >>> names = ("epoch", "val/nll", "val/ece", "val/top1")
    >>> rows = (0, 0.5, 0.01, 0.8), (1, 0.4005, 0.02, 0.9), (2, 0.4, 0.05, 0.85)
    >>> select([dict(zip(names, row)) for row in rows], tolerance=1e-3)
    (1, 1, [1, 2])
    """
    scores = [
        (line["val/ece"], line["val/nll"], line["epoch"], line["val/top1"])
        for line in curve
        if math.isfinite(line.get("val/nll", math.nan))
    ] or [(0.0, 0.0, curve[-1]["epoch"], 0.0)]
    least = min(nll for _, nll, *_ in scores)
    close = [score for score in scores if score[1] <= least + tolerance]
    top1 = min((-top1, nll, epoch) for _, nll, epoch, top1 in scores)
    return min(close)[2], top1[2], [epoch for _, _, epoch, _ in close]


class KeepCheckpoints(Checkpoint):
    """Write ``last.ckpt`` to resume from, keep the epochs that validation selects, and the curve.

    ``last.ckpt`` is written after every epoch, every ``every_n_steps`` optimizer steps, and when
    SIGTERM or Ctrl-C stops training; both wait for the end of the step, because a half-done step
    cannot be resumed. ``epoch-NNNN.ckpt`` are the epochs that are or may become the best one,
    ``best.ckpt`` and ``top1.ckpt`` are links to them, and ``selection.json`` states the rule. A
    checkpoint also has the random streams of every process: a resumed run has the same weights as
    an uninterrupted one. Nothing is saved within validation, because its metrics cannot be resumed,
    or once the loss is not finite, which is an error.

    ``curves.jsonl`` has loss and validation metrics of every epoch. Its lines are part of the
    checkpoint: a file that was lost or is ahead of the checkpoint is replaced. ``progress.json``
    is for programs that watch the run, ``noise.json`` has the strengths of the gates at the end.

    Args:
        every_n_steps: Optimizer steps between checkpoints within an epoch; null saves after epochs.
        tolerance: Difference in NLL up to which two epochs count as equal and ECE decides.
    """

    def __init__(
        self, every_n_steps: PositiveInt | None = None, tolerance: NonNegativeFloat = 1e-3
    ) -> None:
        self.every_n_steps, self.tolerance = every_n_steps or math.inf, float(tolerance)
        self._curve: list[dict[str, Any]] = []
        self._random: list[dict[str, Any]] = []  # streams of a loaded checkpoint, by rank
        self._losses: Tensor | float = 0.0  # their sum: not finite from the first such loss on
        self._signal = 0
        self._requeue: Any = None  # Lightning's handler of SIGUSR1 in a SLURM job

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._run = RunDirectory(trainer.default_root_dir)
        self._writes = trainer.is_global_zero and not trainer.fast_dev_run

    def on_fit_start(self, *unused: Any) -> None:
        """Write the curve and the selection again, which a killed process may not have done."""
        if self._writes:
            write_lines(self._run.curves, self._curve)
            if self._curve and self._run.last.is_file():
                self._select()

    def on_fit_end(self, trainer: Any, *unused: Any) -> None:
        gates = NoiseInjection.of(trainer)
        sites = [asdict(report) for one in gates for report in one.reports]
        if sites and self._writes:
            write_json(self._run.noise, sites)

    # -- saving, and exact resuming --------------------------------------------------------------

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Restore the random streams just before the first batch of a resumed run."""
        for state in self._random[trainer.global_rank :][:1]:
            random.setstate(state["python"])
            np.random.set_state(tuple(state["numpy"]))
            torch.set_rng_state(state["torch"])
            if state["cuda"] is not None and torch.cuda.is_available():
                torch.cuda.set_rng_state(state["cuda"])
        self._random = []
        epochs = {"epoch": trainer.current_epoch, "epochs": trainer.max_epochs or -1}
        batches = {"batch": batch_idx, "batches": trainer.num_training_batches}
        report_progress(trainer, "fit", every=5.0, **epochs, **batches)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Check the loss, but not in every step, because that stalls a GPU."""
        self._losses = self._losses + loss.detach().float()
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._require_finite(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save every ``every_n_steps``, but not before validation or between accumulated steps."""
        if trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        stop = self._received(trainer)
        if stop == signal.SIGUSR1:
            self._signal = 0
            self._requeue(stop, None)
        elif stop or trainer.global_step % self.every_n_steps == 0:
            self._save(trainer)
        self._end(stop)

    def on_validation_batch_start(self, trainer: Any, *unused: Any) -> None:
        self._end(self._received(trainer))

    def on_train_epoch_end(self, trainer: Any, *unused: Any) -> None:
        found = trainer.callback_metrics  # validation of this epoch is over
        values = {name: float(found[name]) for name in _CURVES if name in found}
        self._curve.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **values})
        self._save(trainer)
        self.on_fit_start()
        self._end(self._received(trainer))

    def _save(self, trainer: Any) -> None:
        if not trainer.fast_dev_run:
            trainer.save_checkpoint(self._run.last, weights_only=False)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._require_finite(trainer)
        states: list[Any] = [_random_state()] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(states, _random_state())
        checkpoint |= {"random_states": states, "curve": self._curve}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._random = checkpoint.get("random_states", [])
        self._curve = checkpoint.get("curve", [])

    def _require_finite(self, trainer: Any) -> None:
        if not math.isfinite(self._losses):
            raise RuntimeError(
                f"the loss is not finite at step {trainer.global_step}. Lower the learning rate or "
                "the noise, or set trainer.gradient_clip_val; the last checkpoint is untouched."
            )

    # -- signals wait for the end of the step ----------------------------------------------------

    def on_train_start(self, *unused: Any) -> None:
        """Replace the handlers of SIGTERM, Ctrl-C and SLURM's signal; Lightning restores them.

        Its own handler of SIGTERM communicates with the other processes within a step, and hangs;
        that of SIGUSR1 saves and asks SLURM to start the job again.
        """
        self._requeue = signal.getsignal(signal.SIGUSR1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            if callable(signal.getsignal(signum)):  # neither ignored nor left to the system
                signal.signal(signum, self._remember)

    def _remember(self, signum: int, frame: Any) -> None:
        if self._signal:  # the second time at once
            self._end(signum)
        self._signal = signum

    def _received(self, trainer: Any) -> int:
        """The signal that any process has received; all processes stop at the same step."""
        if trainer.world_size == 1:
            return self._signal
        received = torch.tensor(self._signal, device=trainer.strategy.root_device)
        dist.all_reduce(received, dist.ReduceOp.MAX)
        return int(received)

    @staticmethod
    def _end(stop: int) -> None:
        if stop in _STOPS:
            raise _STOPS[stop]

    # -- the selected epochs ---------------------------------------------------------------------

    def _select(self) -> None:
        """Name the file of the newest epoch, write the selection, remove the other files."""
        folder = self._run.checkpoints
        files = {line["epoch"]: folder / EPOCH.format(line["epoch"]) for line in self._curve}
        newest = files[self._curve[-1]["epoch"]]
        if not newest.exists():
            os.link(self._run.last, newest)  # the file is never changed in place
        # removed ones could not be selected again
        kept = [line for line in self._curve if files[line["epoch"]].exists()]
        best, top1, close = select(kept, self.tolerance)
        names = {"best": files[best].name, "top1": files[top1].name}
        candidates = [files[epoch].name for epoch in close]
        record = {"rule": _RULE.format(self.tolerance), **names, "candidates": candidates}
        write_json(folder / SELECTION, record)
        for role, name in names.items():
            (link := folder / f".{role}.tmp").unlink(missing_ok=True)
            link.symlink_to(name)
            os.replace(link, folder / f"{role}.ckpt")
        for epoch in files.keys() - {best, top1, *close}:
            files[epoch].unlink(missing_ok=True)


def _random_state() -> dict[str, Any]:
    """The global random streams of this process as plain data."""
    kind, key, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(key).tolist(), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
