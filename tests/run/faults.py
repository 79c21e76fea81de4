"""Callbacks that break a run at a given step, once; and the comparison of a resumed run with an
undisturbed one."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from chaosgate.run.files import SELECTION, RunDirectory

FILES = ("base", "data/fashion_mnist", "noise/gch")
SMALL = (
    "--model.backbone_args={channels: [8, 8, 16, 16], drop_rate: 0.2}",
    "--noise.schedule={start: 0.2, until: 0.8}",
    "--data.init_args.batch_size=100",
    "--trainer.max_epochs=3",
    "--trainer.limit_train_batches=7",
    "--trainer.limit_val_batches=2",
    "--trainer.log_every_n_steps=2",
    "--trainer.enable_progress_bar=false",
    "--saving.every_n_steps=2",
)
"""A run of 21 steps with dropout (the global random stream), momentum, schedules of rate and noise,
and checkpoints within epochs."""
_PARTS = """state_dict optimizer_states lr_schedulers callbacks random_states curve global_step
    epoch""".split()


def differences(run: Path, other: Path) -> list[str]:
    """Names of what differs between two finished runs, to the last bit."""
    mine, theirs = (torch.load(RunDirectory(path).last, weights_only=True) for path in (run, other))
    found = [part for part in _PARTS if not same(mine[part], theirs[part])]
    best, also = (torch.load(RunDirectory(p).selected(), weights_only=True) for p in (run, other))
    found += [] if same(best["state_dict"], also["state_dict"]) else ["best"]
    for name in (f"checkpoints/{SELECTION}", "curves.jsonl", "noise.json"):
        found += [] if (run / name).read_text() == (other / name).read_text() else [name]
    return found


def same(one: Any, two: Any) -> bool:
    """Equality of nested plain data and tensors; not-a-number equals itself."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and bool(one == two or one != one)


def first_time(trainer):
    """Whether no fault has happened in this run; a file in its directory remembers it."""
    mark = Path(trainer.default_root_dir, "fault.txt")
    if mark.exists():
        return False
    mark.touch()
    return True


class FailAt(Callback):
    """Raise an error in the middle of a step."""

    def __init__(self, step: int, phase: str = "backward") -> None:
        self.step, self.phase = step, phase

    def fail(self, trainer, phase):
        if self.phase == phase and trainer.global_step == self.step and first_time(trainer):
            raise RuntimeError(f"broken on purpose at step {self.step}, in {phase}")

    def on_before_backward(self, trainer, pl_module, loss):
        self.fail(trainer, "backward")

    def on_train_epoch_end(self, trainer, pl_module):
        self.fail(trainer, "epoch end")


class SignalAt(Callback):
    """Send a signal to this process in the middle of a step, or in validation."""

    def __init__(self, step: int, name: str = "SIGTERM", phase: str = "backward") -> None:
        self.step, self.name, self.phase = step, name, phase

    def send(self, trainer, phase):
        if self.phase == phase and trainer.global_step == self.step and first_time(trainer):
            os.kill(os.getpid(), getattr(signal, self.name))

    def on_train_epoch_start(self, trainer, pl_module):
        self.send(trainer, "epoch start")

    def on_before_backward(self, trainer, pl_module, loss):
        self.send(trainer, "backward")

    def on_validation_batch_end(self, trainer, *unused):
        self.send(trainer, "validation")


class BadLossAt(Callback):
    """Make the images of one batch infinite."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step and first_time(trainer):
            batch[0].fill_(float("inf"))
