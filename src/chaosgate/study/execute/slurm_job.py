"""What a SLURM job does: the worker of the local launcher on one run, told to save before the job is ended."""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from submitit.helpers import DelayedSubmission

from chaosgate.study.execute.runner import ATTEMPTS, WORKER, log_tail
from chaosgate.study.execute.state import FAILED, write_json
from chaosgate.study.execute.worker import BUSY

_LOOK = 0.1  # seconds between two looks at the worker
_LAST_SECONDS = 15.0  # of the notice, kept for writing the job back to the queue
_RESPITE = 900.0  # seconds that SLURM has to end a job after SIGTERM (its KillWait, a partition's GraceTime)


@dataclass
class RunJob:
    """Works on one run; submitit stores it, calls it in the job, and stores it again when the job is requeued.

    The worker is a process of its own in a session of its own: SLURM's signals come here, and become the one that
    the worker understands. SIGUSR2 (the time limit, or a preemption where the cluster sends it) ends in submitit
    calling :meth:`checkpoint` and requeueing the job. SIGTERM (a preemption, a requeue, scancel) makes the worker save
    its state; what becomes of the job is then SLURM's decision, so this waits for it.

    Args:
        order: What the worker is started with, a file in the run directory.
        folder: Current directory of the worker; relative paths in configurations mean what they meant at submission.
        threads: Of the worker.
        notice: Seconds from SIGUSR2 to the end.
    """

    order: Path
    folder: Path
    threads: int
    notice: int

    @property
    def directory(self) -> Path:
        """Of the run."""
        return self.order.parent

    def __call__(self) -> str:
        """Return a word for the job's log; raise if the run failed twice."""
        self._worker: subprocess.Popen[bytes] | None = None
        self._told = False
        signal.signal(signal.SIGTERM, self._terminate)
        attempt = 1
        while (status := self._attempt()) != 0 or self._told:
            if status == BUSY:
                return "another process is at work on this run"
            if self._told:  # and yet the job was not ended: go on
                self._told = False
                continue
            lines = log_tail(self.directory)
            write_json(self.directory / FAILED, {"attempts": attempt, "status": status, "lines": lines})
            if attempt == ATTEMPTS:
                raise RuntimeError(f"{self.directory} failed {attempt} times; its log ends with:\n" + "\n".join(lines))
            attempt += 1
        return "done"

    def checkpoint(self) -> DelayedSubmission:
        """Have the state saved; give back the same work. submitit calls this from its handler of SIGUSR2."""
        self._told = True
        self._tell()
        deadline = time.monotonic() + max(1.0, self.notice - _LAST_SECONDS)
        while self._status is None and time.monotonic() < deadline:
            time.sleep(_LOOK)
        if self._status is None and self._worker is not None:  # what was saved before stays whole
            os.killpg(self._worker.pid, signal.SIGKILL)
        return DelayedSubmission(RunJob(self.order, self.folder, self.threads, self.notice))

    def _attempt(self) -> int:
        self._status: int | None = None
        # The worker trains as it does anywhere: a Lightning that knows of SLURM would requeue the job by itself.
        known = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SUBMITIT_"))}
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **known, "OMP_NUM_THREADS": str(self.threads)}
        self._worker = subprocess.Popen(
            [*WORKER, str(self.order)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # SLURM may signal every process of a job; unhandled, this one kills. Inherited by what the worker starts.
            preexec_fn=_ignore_usr2,
        )
        # A thread waits, and everybody else looks at a number: a signal handler that waited for the process itself
        # would hang on the lock that the interrupted wait holds.
        threading.Thread(target=self._wait, args=[self._worker], daemon=True).start()
        if self._told:  # while there was no worker to tell
            self._tell()
        while self._status is None:
            time.sleep(_LOOK)
        deadline = time.monotonic() + _RESPITE
        # Whatever its status: a training that is told to end may leave with 0, as if it were finished.
        while self._told and time.monotonic() < deadline:
            time.sleep(_LOOK)
        return self._status

    def _wait(self, worker: "subprocess.Popen[bytes]") -> None:
        self._status = worker.wait()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """SLURM will end the job soon; whether it starts again is known to SLURM only."""
        self._told = True
        self._tell()

    def _tell(self) -> None:
        """Ask the worker to save its state and end."""
        if self._worker is not None and self._status is None:
            os.kill(self._worker.pid, signal.SIGTERM)


def _ignore_usr2() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
