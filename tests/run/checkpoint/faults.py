"""Callbacks that break a run at a given step."""

import os
import signal

from lightning.pytorch import Callback


class FailAt(Callback):
    """Raise in the middle of a step, as a crash would; what was saved before is all there is."""

    def __init__(self, step: int, phase: str = "backward") -> None:
        self.step, self.phase = step, phase

    def on_before_backward(self, trainer, pl_module, loss):
        if self.phase == "backward" and trainer.global_step == self.step:
            raise RuntimeError(f"broken on purpose at step {self.step}")

    def on_train_epoch_end(self, trainer, pl_module):
        if self.phase == "epoch end" and trainer.global_step == self.step:
            raise RuntimeError(f"broken on purpose after step {self.step}")

    def on_validation_start(self, trainer, pl_module):
        if self.phase == "validation" and trainer.global_step == self.step:
            raise RuntimeError(f"broken on purpose in validation after step {self.step}")


class SignalAt(Callback):
    """Send this process a signal, as a scheduler would; at step -1 before the first batch."""

    def __init__(self, step: int, name: str = "SIGTERM") -> None:
        self.step, self.name = step, name

    def on_train_epoch_start(self, trainer, pl_module):
        if self.step == -1:
            os.kill(os.getpid(), getattr(signal, self.name))

    def on_before_backward(self, trainer, pl_module, loss):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), getattr(signal, self.name))


class BadLossAt(Callback):
    """Make the images of one batch infinite."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            batch[0].fill_(float("inf"))
