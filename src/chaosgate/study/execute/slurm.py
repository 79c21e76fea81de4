"""Run a study on a SLURM cluster: an array of jobs through submitit, one job for each training."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt
from rich.console import Console

from chaosgate.run.files import write_json
from chaosgate.study.execute.local import Display, stop_workers, work_through
from chaosgate.study.execute.run import Execute
from chaosgate.study.execute.state import State, read_json, state_of
from chaosgate.study.plan.runs import Run

JOB, LOGS = "job.json", "slurm"
_ENDED = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY TIMEOUT".split()
_KILL_WAIT = 900.0  # seconds that SLURM has to end a job after SIGTERM (KillWait, GraceTime)
_REQUEUES = 100  # times that a run may reach the time limit before it is given up


@dataclass(frozen=True)
class SlurmOptions:
    """Resources of one job.

    Args:
        partition: Partition, or several separated by commas; None takes the cluster's default.
        minutes: Time limit of one job. A run may take longer: it is stopped before the limit,
            requeued and resumed.
        gpus: GPUs of one job.
        cpus: Cores of one job; also its threads, unless the study sets them.
        notice: Seconds before the limit at which a run is asked to save its state.
        extra: Further options of sbatch by name, e.g. {account: x, mem: 16G}; true for those
            without a value.
    """

    partition: str | None = None
    minutes: PositiveInt = 24 * 60
    gpus: PositiveInt | None = None
    cpus: PositiveInt = 1
    notice: PositiveInt = 120
    extra: dict[str, str | int | bool] = field(default_factory=dict)

    def parameters(self, name: str) -> dict[str, Any]:
        """The parameters of submitit for jobs of this name."""
        return {
            "job_name": name,
            "partition": self.partition,
            "time": self.minutes,
            "gpus_per_node": self.gpus,
            "cpus_per_task": self.cpus,
            "signal_delay_s": self.notice,
            # A node that fails gives the job back; without this some clusters end it there.
            "additional_parameters": {"requeue": True, **self.extra},
        }


@dataclass
class Job:
    """A SLURM job: the local executor on the runs of one training.

    submitit stores it, calls it in the job, and stores it again when the job is requeued. SIGUSR2
    (the time limit) makes submitit call :meth:`checkpoint`. SIGTERM (a preemption, a requeue,
    scancel) stops the run, which saves its state; whether the job starts again is then SLURM's
    decision, so this waits for its end.

    Args:
        runs: Runs of one training.
        execute: Carries out ``fit`` and ``test``.
        threads: Of the run.
        folder: Directory of the submission, for relative paths.
    """

    runs: list[Run]
    execute: Execute
    threads: int
    folder: Path

    def __call__(self) -> str:
        """Raise an error if a run failed twice."""
        os.chdir(self.folder)
        outcome = work_through(self.runs, self.execute, Display(Console()), threads=self.threads)
        if outcome.interrupted:
            time.sleep(_KILL_WAIT)
        if outcome.failed or outcome.interrupted:
            lines = [line for one in outcome.failed.values() for line in one]
            raise RuntimeError("\n".join([f"{self.runs[0].directory} is not done:", *lines]))
        return "done"

    def checkpoint(self) -> Any:
        """Let the run save its state; return the same job."""
        from submitit.helpers import DelayedSubmission  # an optional dependency

        stop_workers()
        return DelayedSubmission(Job(self.runs, self.execute, self.threads, self.folder))


def alive(jobs: Sequence[str]) -> set[str]:
    """Those of these jobs that are pending, running, suspended or requeued.

    Jobs that SLURM has forgotten have ended. If SLURM does not answer, all count as alive.
    """
    if not jobs:
        return set()
    # All jobs of the user: squeue fails if one of the ids that it is asked for is forgotten.
    command = ["squeue", "--noheader", "--array", "--me", "--format=%i %T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return set(jobs)
    states = dict(line.split() for line in answer.stdout.splitlines() if line.strip())
    return {job for job in jobs if states.get(job, "COMPLETED") not in _ENDED}


def states_of(runs: Sequence[Run]) -> dict[str, State]:
    """Condition of the runs; ``queued`` are those that wait and whose job is still alive."""
    states = {run.name: state_of(run) for run in runs}
    idle = [run for run in runs if states[run.name].condition not in ("done", "running")]
    jobs = {run.name: job["job"] for run in idle if (job := read_json(run.directory / JOB))}
    there = alive(list(jobs.values()))
    return states | {
        name: replace(states[name], condition="queued", record={"job": job})
        for name, job in jobs.items()
        if job in there
    }


def submit(runs: Sequence[Run], execute: Execute, options: SlurmOptions, threads: int) -> list[str]:
    """Submit the runs that are not done, queued or running; return lines for the user."""
    try:
        import submitit
    except ImportError as error:
        text = "--launcher slurm needs submitit: pip install 'chaosgate[slurm]'."
        raise ImportError(text) from error

    conditions = {name: state.condition for name, state in states_of(runs).items()}
    busy = sum(one in ("queued", "running") for one in conditions.values())
    done = sum(one == "done" for one in conditions.values())
    counts = f"{done} were done before, {busy} are queued or running"
    trainings: dict[Path, list[Run]] = {}
    for run in runs:
        if conditions[run.name] not in ("done", "queued", "running"):
            absolute = replace(run, root=run.root.absolute())
            trainings.setdefault(run.directory, []).append(absolute)
    if not trainings:
        return [f"Submitted 0 runs; {counts}."]
    work = [Job(same, execute, threads, Path.cwd()) for same in trainings.values()]
    logs = runs[0].root / LOGS
    try:
        executor = submitit.SlurmExecutor(logs.absolute(), max_num_timeout=_REQUEUES)
        executor.update_parameters(**options.parameters(f"chaosgate-{runs[0].study}"))
        jobs = executor.submit_array(work)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"SLURM refused the jobs: {error} Look at --slurm, and sinfo.") from error
    for job, directory in zip(jobs, trainings, strict=True):
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / JOB, {"job": str(job.job_id)})
    array = str(jobs[0].job_id).split("_")[0]
    return [
        f"Submitted {len(runs) - done - busy} runs as SLURM job {array}; {counts}. Logs: {logs}",
        f"Cancel: scancel {array} (finished work is kept; the same command submits the rest)",
    ]
