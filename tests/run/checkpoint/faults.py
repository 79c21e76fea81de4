"""Callbacks that break a run at a given step, once: the continued run has the same callbacks and goes through."""

import os
import signal
from pathlib import Path

from lightning.pytorch import Callback


def first_time(trainer):
    """Whether no fault has happened in this run; a file beside its checkpoints remembers it."""
    mark = Path(trainer.default_root_dir, "fault.txt")
    if mark.exists():
        return False
    mark.touch()
    return True


class FailAt(Callback):
    """Raise in the middle of a step, as a crash would; what was saved before is all there is."""

    def __init__(self, step: int, phase: str = "backward") -> None:
        self.step, self.phase = step, phase

    def fail(self, trainer, phase):
        if self.phase == phase and trainer.global_step == self.step and first_time(trainer):
            raise RuntimeError(f"broken on purpose at step {self.step}, in {phase}")

    def on_before_backward(self, trainer, pl_module, loss):
        self.fail(trainer, "backward")

    def on_train_epoch_end(self, trainer, pl_module):
        self.fail(trainer, "epoch end")

    def on_validation_start(self, trainer, pl_module):
        self.fail(trainer, "validation")


class SignalAt(Callback):
    """Send this process a signal, as a scheduler would; step -1: before the first batch, -2: in the sanity check."""

    def __init__(self, step: int, name: str = "SIGTERM") -> None:
        self.step, self.name = step, name

    def on_train_epoch_start(self, trainer, pl_module):
        if self.step == -1 and first_time(trainer):
            os.kill(os.getpid(), getattr(signal, self.name))

    def on_validation_start(self, trainer, pl_module):
        if self.step == -2 and first_time(trainer):
            os.kill(os.getpid(), getattr(signal, self.name))

    def on_before_backward(self, trainer, pl_module, loss):
        if trainer.global_step == self.step and first_time(trainer):
            os.kill(os.getpid(), getattr(signal, self.name))


class BadLossAt(Callback):
    """Make the images of one batch infinite."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step and first_time(trainer):
            batch[0].fill_(float("inf"))
