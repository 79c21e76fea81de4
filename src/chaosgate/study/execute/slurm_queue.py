"""Which runs wait in a SLURM queue: job ids live in the run directories, SLURM knows which are still alive."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chaosgate.study.execute.state import State, read_json, state_of, write_json
from chaosgate.study.plan.runs import Run

JOB = "job.json"
_ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")


def record_job(run: Run, job_id: str, logs: Path) -> None:
    """Write down which job works on a run, and where its own logs are."""
    write_json(run.directory / JOB, {"job": job_id, "logs": str(logs)})


def job_of(run: Run) -> dict[str, Any]:
    """The job that the run was last submitted as; empty if it never was."""
    return read_json(run.directory / JOB)


def alive(jobs: Sequence[str]) -> set[str]:
    """Those of these jobs that SLURM has not ended: pending, running, suspended, on their way back to the queue.

    Jobs that SLURM has forgotten are over. Where no SLURM answers nobody knows, and all count as alive.
    """
    if not jobs:
        return set()
    # --array: one line per task. All of the user's jobs: squeue fails if one of the ids asked for is forgotten by now.
    command = ["squeue", "--noheader", "--array", "--me", "--format=%i %T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return set(jobs)
    states = dict(line.split() for line in answer.stdout.splitlines() if line.strip())
    return {job for job in jobs if states.get(job, "COMPLETED") not in _ENDED}


def states_of(runs: Sequence[Run]) -> dict[str, State]:
    """How far the runs are; ``queued`` are those that nobody works on now and whose job is still alive."""
    states = {run.name: state_of(run) for run in runs}
    waiting = {
        run.name: job["job"]
        for run in runs
        if states[run.name].condition not in ("done", "running") and (job := job_of(run))
    }
    there = alive(list(waiting.values()))
    return {
        name: replace(state, condition="queued", record={"job": waiting[name]}) if waiting.get(name) in there else state
        for name, state in states.items()
    }
