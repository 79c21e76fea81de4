"""Told to go: SIGTERM, SIGUSR1 and Ctrl-C become a checkpoint at the next step, on all processes together."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


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
    they are exchanging; this one only takes a note. A second signal ends the process at once.
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
        """Give them back."""
        for signum, handler in self._before.items():
            if signal.getsignal(signum) == self._note:
                signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received:  # told twice: whoever sends it cannot wait for the next step
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        self.received = signum
