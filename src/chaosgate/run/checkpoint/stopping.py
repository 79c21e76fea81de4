"""Training that ends early: after a signal, a full disk or a lost process, or at a loss that is not a number.

Whatever the reason, the message says what is left and how to continue.
"""

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from chaosgate.data.files.atomic import replace_file
from chaosgate.run.checkpoint.files import newest_intact
from chaosgate.run.directory import RunDirectory

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "connection closed")


class Preempted(Exception):
    """Training was asked to stop and has saved its state; nothing is wrong.

    Args:
        signum: The signal.
        message: Where it stopped and how to go on.
    """

    def __init__(self, signum: int, message: str) -> None:
        super().__init__(message)
        self.signum = signum

    @property
    def exit_status(self) -> int:
        """What a shell shows for a process that ended by this signal."""
        return 128 + self.signum


class SignalWatch:
    """Remembers a signal until the training loop has time for it.

    Lightning's own handler talks to the other processes from inside the signal handler, in the middle of whatever
    they are exchanging; this one only records the signal. A second signal ends the process at once.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def start(self) -> None:
        """Take the signals over; without effect outside of the main thread, which alone may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in SIGNALS:
            if signal.getsignal(signum) == signal.SIG_IGN:
                continue  # whoever started this process wants it so: nohup, a shell's background job
            handler = signal.signal(signum, self._note)
            if handler != self._note:
                self._before[signum] = handler

    def stop(self) -> None:
        for signum, handler in self._before.items():
            if signal.getsignal(signum) == self._note:
                signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received:  # told twice: whoever sends it cannot wait for the next step
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        self.received = signum


@contextmanager
def telling_what_is_left(run: RunDirectory) -> Iterator[None]:
    """Let errors of the disk, of data workers and of other processes say which checkpoint to go on from.

    The logger writes in a thread; an error there reaches the main thread at its next write and is reported once, here.
    """
    hook, threading.excepthook = threading.excepthook, _quiet_about_the_disk(threading.excepthook)
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise OSError(
            f"{error.strerror} while writing to {run.path}. {_left(run)} Make room or repair the folder, then continue "
            "with --resume."
        ) from error
    except RuntimeError as error:
        text = str(error)
        if "DataLoader worker" in text:
            raise RuntimeError(
                f"a process that prepares batches died, often because memory ran out ({text.splitlines()[0]}). "
                f"{_left(run)} Continue with --resume; lower data.num_workers or data.batch_size if it happens again."
            ) from error
        if any(words in text for words in _LOST_PEER):
            raise RuntimeError(
                f"another process of this run has died; its own message says why. {_left(run)} Continue with --resume."
            ) from error
        raise
    finally:
        threading.excepthook = hook


def _left(run: RunDirectory) -> str:
    kept = newest_intact(run.checkpoints)
    return "There is no checkpoint yet." if kept is None else f"The last checkpoint, {kept.name}, is intact."


def _quiet_about_the_disk(others: Any) -> Any:
    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not (isinstance(arguments.exc_value, OSError) and arguments.exc_value.errno in _NO_ROOM):
            others(arguments)

    return hook


class NonFiniteLoss(RuntimeError):
    """The loss is infinite or not a number."""


class StopAtNonFiniteLoss(Callback):
    """Look at every loss before it reaches the weights; if it is not finite, save the state and stop.

    The file ``nonfinite-rankR.pt`` in the run directory holds the weights before the step, the batch, the indices of
    its images, and the states of all callbacks, gates' counters included: loading them and running one training step
    gives the same loss. The checkpoints are older and stay as they are.
    """

    def __init__(self) -> None:
        self._batch: Any = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Remember the batch while it is worked on."""
        self._batch = batch

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if bool(torch.isfinite(loss)):
            return
        indices = _indices(self._batch)
        path = RunDirectory.of(trainer).path / f"nonfinite-rank{trainer.global_rank}.pt"
        state = {
            "loss": float(loss.detach()),
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "indices": indices,
            "batch": [part.detach().cpu() for part in self._batch if isinstance(part, Tensor)],
            "state_dict": {name: value.detach().cpu() for name, value in pl_module.state_dict().items()},
            "callbacks": {one.state_key: one.state_dict() for one in trainer.callbacks},  # type: ignore[attr-defined]
        }
        saved = _try_to_save(state, path)
        shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        raise NonFiniteLoss(
            f"the loss became {float(loss.detach())} at step {trainer.global_step} of epoch {trainer.current_epoch}, "
            f"on images {shown or 'without indices'} (rank {trainer.global_rank}). {saved} Lower the learning rate or "
            "the noise, or clip gradients (trainer.gradient_clip_val); the last checkpoint is untouched."
        )

    def on_train_batch_end(self, trainer: Trainer, *unused: Any) -> None:
        self._batch = None


def _indices(batch: Any) -> list[int]:
    index = getattr(batch, "index", None)  # of a plain tuple it is a method
    return [int(i) for i in index] if isinstance(index, Tensor) and index.ndim == 1 else []


def _try_to_save(state: dict[str, Any], path: Path) -> str:
    try:
        replace_file(path, partial(torch.save, state))
    except (OSError, RuntimeError) as error:
        return f"The state could not be saved ({error})."
    return f"The state to reproduce it is in {path}."
