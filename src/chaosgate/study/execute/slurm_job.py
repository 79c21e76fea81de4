"""A SLURM job: its options for the cluster, and what it does (the local worker on one run)."""

import argparse
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from chaosgate.run.config_files import did_you_mean, read_yaml
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
        time: Limit of one job in minutes, or ``H:MM``, ``H:MM:SS``, ``D-H:MM:SS``. A run may take longer: before the
            limit it is stopped, requeued and resumed.
        gpus: GPUs of one job.
        cpus: Cores of one job; its threads, if the study does not say.
        memory: Gigabytes of one job.
        parallel: Jobs of the array at a time.
        requeues: How often a run may reach the time limit before it is given up; preemptions are not counted.
        notice: Seconds before the limit at which a run is told to save its state.
        setup: Shell lines before the job, e.g. ``module load``.
        extra: Further options of sbatch by name, e.g. ``{mail-type: FAIL}``; true for those without a value.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: int | str = 1440
    gpus: int | None = None
    cpus: int = 1
    memory: float | None = None
    parallel: int | None = None
    requeues: int = 100
    notice: int = 120
    setup: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("cpus", "notice", "gpus", "parallel", "memory"):
            value = getattr(self, name)
            whole = isinstance(value, int) or (name == "memory" and isinstance(value, float))
            if value is not None and not (whole and value > 0):
                raise ValueError(f"slurm.{name} is {value!r}; give a number above zero.")
        if not isinstance(self.requeues, int) or self.requeues < 0:
            raise ValueError(f"slurm.requeues is {self.requeues!r}; give 0 or more.")
        if isinstance(self.setup, str) or not isinstance(self.extra, Mapping):
            raise ValueError("slurm.setup is a list of shell lines, slurm.extra a mapping of names to values.")
        if 60 * self.minutes <= self.notice:
            raise ValueError(
                f"slurm.time is {self.minutes} min, and a run is told to save slurm.notice={self.notice} s before: it "
                "would never train. Give more time, or less notice."
            )

    @property
    def minutes(self) -> int:
        """The time limit in minutes.

        >>> SlurmOptions(time="1-02:30:00").minutes, SlurmOptions(time="2:30").minutes, SlurmOptions(time=20).minutes
        (1590, 150, 20)
        """
        text = str(self.time)
        if text.isdigit() and int(text) > 0:
            return int(text)
        if (match := _TIME.fullmatch(text)) is None:
            raise ValueError(f"slurm.time is {self.time!r}; give minutes, H:MM, H:MM:SS or D-H:MM:SS.")
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


def add_slurm_flags(parser: argparse.ArgumentParser) -> None:
    """``--slurm FILE`` and ``--slurm.KEY VALUE`` for every key; flags win over the file."""
    group = parser.add_argument_group("run --launcher slurm: options of the cluster")
    group.add_argument("--slurm", type=Path, metavar="FILE", help="YAML file of the keys below")
    known: dict[str, dict[str, Any]] = {
        "partition": {"help": "the cluster's default"},
        "account": {},
        "qos": {},
        "constraint": {},
        "time": {
            "help": "minutes, H:MM, H:MM:SS or D-H:MM:SS of one job (a day); longer runs are requeued and resumed"
        },
        "gpus": {"type": int, "help": "of one job"},
        "cpus": {"type": int, "help": "of one job (1)"},
        "memory": {"type": float, "help": "GB of one job"},
        "parallel": {"type": int, "help": "jobs at a time"},
        "requeues": {"type": int, "help": "times a run may reach its limit (100)"},
        "notice": {"type": int, "help": "seconds to save before the limit (120)"},
        "setup": {"action": "append", "help": "a shell line before the job; may be repeated"},
        "extra": {"action": "append", "metavar": "NAME[=VALUE]", "help": "an option of sbatch; may be repeated"},
    }
    for name, settings in known.items():
        group.add_argument(f"--slurm.{name}", **({"metavar": name.upper()} | settings))


def read_slurm_options(namespace: argparse.Namespace) -> SlurmOptions:
    """The options of a command line made by :func:`add_slurm_flags`."""
    given = vars(namespace)
    content: dict[str, Any] = {}
    names = [item.name for item in fields(SlurmOptions)]
    if (file := given["slurm"]) is not None:
        if not file.is_file():
            raise FileNotFoundError(f"--slurm {file}: there is no such file. Give a YAML file of {', '.join(names)}.")
        content = read_yaml(file)
        if "time" in content:  # as written: YAML reads 1:00:00 as a number to base 60
            content["time"] = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)["time"]
        for key in content:
            if key not in names:
                raise ValueError(f"{file}: no key '{key}'. {did_you_mean(key, names)}")
    flags = {name: value for name in names if (value := given[f"slurm.{name}"]) is not None}
    if "extra" in flags:
        words = (word.partition("=") for word in flags["extra"])
        flags["extra"] = {**content.get("extra", {}), **{name: value if sign else True for name, sign, value in words}}
    return SlurmOptions(**{**content, **flags})


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
                raise RuntimeError(f"{self.directory} failed {attempt} times; its log ends with:\n" + "\n".join(lines))
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

        return DelayedSubmission(RunJob(self.order, self.folder, self.threads, self.notice, self.worker))

    def _attempt(self) -> int:
        self._status: int | None = None
        # The worker trains as it does anywhere: a Lightning that knows of SLURM would requeue the job by itself.
        known = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SUBMITIT_"))}
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
