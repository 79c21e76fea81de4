"""A SLURM job: its options for the cluster, and what it does (the local worker on one run)."""

import os
import re
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from chaosgate.study.execute.runner import ATTEMPTS, failure, log_tail
from chaosgate.study.execute.state import FAILED, write_json
from chaosgate.study.execute.worker import BUSY

_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


@dataclass(frozen=True)
class SlurmOptions:
    """Resources of one job, that is of one run. A study says what is computed; this says where.

    Args:
        partition: Partition, or several separated by commas; None takes the cluster's default.
        account: Account that is charged.
        qos: Quality of service.
        constraint: Features that a node must have.
        time: Limit of one job in minutes, or ``H:MM``, ``H:MM:SS``, ``D-H:MM:SS``; in quotes in a YAML file. A run may
            take longer: before the limit it is stopped, requeued and resumed.
        gpus: GPUs of one job.
        cpus: Cores of one job; its threads, if the study does not say.
        memory: Gigabytes of one job.
        parallel: Jobs of the array at a time.
        requeues: How often a run may reach the time limit before it is given up; preemptions are not counted.
        notice: Seconds before the limit at which a run is told to save its state.
        setup: Shell lines before the job, e.g. ``module load``.
        extra: Further options of sbatch by name, e.g. {mail-type: FAIL}; true for those without a value.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str = "24:00:00"
    gpus: PositiveInt | None = None
    cpus: PositiveInt = 1
    memory: PositiveFloat | None = None
    parallel: PositiveInt | None = None
    requeues: NonNegativeInt = 100
    notice: PositiveInt = 120
    setup: list[str] = field(default_factory=list)
    extra: dict[str, str | int | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if 60 * self.minutes <= self.notice:
            raise ValueError(
                f"slurm.time is {self.minutes} min, and a run is told to save slurm.notice={self.notice} s before: it "
                "would never train. Give more time, or less notice."
            )

    @property
    def minutes(self) -> int:
        """The time limit in minutes.

        >>> SlurmOptions(time="1-02:30:00").minutes, SlurmOptions(time="2:30").minutes, SlurmOptions(time="20").minutes
        (1590, 150, 20)
        """
        if self.time.isdigit() and int(self.time) > 0:
            return int(self.time)
        if (match := _TIME.fullmatch(self.time)) is None:
            raise ValueError(
                f"slurm.time is {self.time!r}; give minutes, H:MM, H:MM:SS or D-H:MM:SS."
            )
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return (days * 24 + hours) * 60 + minutes + (seconds > 0)

    def parameters(self, name: str) -> dict[str, Any]:
        """What submitit calls these, for jobs of this name."""
        named = {
            "job_name": name,
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "time": self.minutes,
            "gpus_per_node": self.gpus,
            "cpus_per_task": self.cpus,
            "mem": None if self.memory is None else f"{round(1024 * self.memory)}MB",
            "array_parallelism": self.parallel,
            "signal_delay_s": self.notice,
            "setup": list(self.setup) or None,
            # A node that fails gives the job back; without this some clusters end it there.
            "additional_parameters": {"requeue": True, **self.extra},
        }
        return {key: value for key, value in named.items() if value is not None}


_LOOK = 0.1  # seconds between two looks at the worker
_LAST_SECONDS = 15.0  # of the notice, kept for writing the job back to the queue
KILL_WAIT = 900.0  # seconds that SLURM has to end a job after SIGTERM (its KillWait, a partition's GraceTime)


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
        worker: Command that carries out the order given as its last argument.
    """

    order: Path
    folder: Path
    threads: int
    notice: int
    worker: tuple[str, ...]

    @property
    def directory(self) -> Path:
        return self.order.parent

    def __call__(self) -> str:
        """Return a word for the job's log; raise if the run failed twice."""
        self._worker: subprocess.Popen[bytes] | None = None
        self._told = False
        signal.signal(signal.SIGTERM, self._terminate)
        attempt = 1
        while (status := self._attempt()) != 0 or self._told:
            if status == BUSY:
                return "another process is working on this run"
            if self._told:  # and yet the job was not ended: go on
                self._told = False
                continue
            lines = log_tail(self.directory)
            write_json(self.directory / FAILED, failure(attempt, status, lines))
            if attempt == ATTEMPTS:
                raise RuntimeError(
                    f"{self.directory} failed {attempt} times; its log ends with:\n"
                    + "\n".join(lines)
                )
            attempt += 1
        return "done"

    def checkpoint(self) -> Any:
        """Have the state saved; give back the same work. submitit calls this from its handler of SIGUSR2."""
        self._told = True
        self._tell()
        deadline = time.monotonic() + max(1.0, self.notice - _LAST_SECONDS)
        while self._status is None and time.monotonic() < deadline:
            time.sleep(_LOOK)
        if self._status is None and self._worker is not None:  # what was saved before stays whole
            os.killpg(self._worker.pid, signal.SIGKILL)
        from submitit.helpers import DelayedSubmission  # an optional dependency

        return DelayedSubmission(
            RunJob(self.order, self.folder, self.threads, self.notice, self.worker)
        )

    def _attempt(self) -> int:
        self._status: int | None = None
        # The worker trains as it does anywhere: a Lightning that knows of SLURM would requeue the job by itself.
        known = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM_", "SUBMITIT_"))
        }
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **known, "OMP_NUM_THREADS": str(self.threads)}
        self._worker = subprocess.Popen(
            [*self.worker, str(self.order)],
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
        deadline = time.monotonic() + KILL_WAIT
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
