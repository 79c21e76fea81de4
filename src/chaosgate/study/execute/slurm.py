"""Submit the runs of a study to SLURM, an array of jobs through submitit; ask which jobs are alive; wait for them."""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from chaosgate.study.execute.display import Display
from chaosgate.study.execute.runner import Outcome
from chaosgate.study.execute.slurm_job import RunJob, SlurmOptions
from chaosgate.study.execute.state import State, read_json, state_of, write_json
from chaosgate.study.execute.worker import write_order
from chaosgate.study.plan.runs import Run

JOB = "job.json"
_ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "TIMEOUT",
)


def record_job(run: Run, job_id: str, logs: Path) -> None:
    """Write down which job works on a run, and where its own logs are."""
    write_json(run.directory / JOB, {"job": job_id, "logs": str(logs)})


def job_of(run: Run) -> dict[str, Any]:
    """The job that the run was last submitted as; empty if it never was."""
    return read_json(run.directory / JOB)


def alive(jobs: Sequence[str]) -> set[str]:
    """Those of these jobs that SLURM has not ended: pending, running, suspended, on their way back to the queue.

    Jobs that SLURM has forgotten are over. Where SLURM does not answer, all count as alive.
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
        name: replace(state, condition="queued", record={"job": waiting[name]})
        if waiting.get(name) in there
        else state
        for name, state in states.items()
    }


LOGS = "slurm"  # folder of submitit's files beside the runs
_ASK = 10.0  # seconds between two questions to SLURM; run directories are looked at every second


class NotSubmitted(Exception):
    """SLURM, submitit or the study is not ready; the text says what to do."""


@dataclass(frozen=True)
class Submission:
    """What was submitted.

    Args:
        jobs: Job ids by name of the run.
        kept: Runs that were done before.
        busy: Runs that are queued or worked on already.
        logs: Where the jobs write about themselves.
    """

    jobs: dict[str, str]
    kept: int
    busy: int
    logs: Path

    @property
    def array(self) -> str | None:
        """The id that stands for all jobs."""
        return next(iter(self.jobs.values())).split("_")[0] if self.jobs else None


def submit(
    runs: Sequence[Run], options: SlurmOptions, threads: int, worker: Sequence[str]
) -> Submission:
    """Submit what is neither done, nor queued, nor being worked on, as one array: a job for each training.

    Every configuration was parsed when the study was planned: a typo costs seconds, not hours in a queue. A training
    that is queued or at work for another study of the project is left alone; when it has ended, the same command
    submits the tests that this study adds.
    """
    submitit = _submitit()
    states = states_of(runs)
    left = [run for run in runs if states[run.name].condition not in ("done", "queued", "running")]
    logs = runs[0].root / LOGS
    kept = sum(state.condition == "done" for state in states.values())
    if not left:
        return Submission({}, kept, len(runs) - kept, logs)
    here = Path.cwd()
    trainings: dict[Path, list[Run]] = {}
    for run in left:
        trainings.setdefault(run.directory, []).append(run)
    orders = [write_order(first, threads, others=others) for first, *others in trainings.values()]
    work = [
        RunJob(order.absolute(), here, threads, options.notice, tuple(worker)) for order in orders
    ]
    try:
        executor = submitit.SlurmExecutor(logs.absolute(), max_num_timeout=options.requeues)
        executor.update_parameters(**options.parameters(f"chaosgate-{left[0].study}"))
        jobs = executor.submit_array(work)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        words = " ".join(str(error).split())
        raise NotSubmitted(
            f"SLURM refused the jobs: {words} Look at the --slurm options, and at sinfo."
        ) from error
    submitted: dict[str, str] = {}
    for job, same in zip(jobs, trainings.values(), strict=True):
        record_job(same[0], str(job.job_id), logs)
        submitted |= {run.name: str(job.job_id) for run in same}
    return Submission(submitted, kept, len(runs) - kept - len(left), logs)


def wait(runs: Sequence[Run], display: Display) -> Outcome:
    """Watch until every run is done or its job is over; jobs go on if somebody interrupts the watching."""
    outcome = Outcome()
    states = states_of(runs)
    pending = [run for run in runs if states[run.name].condition != "done"]
    shown: set[str] = set()
    asked = time.monotonic()
    with display.watching(runs, states):
        try:
            while pending:
                if ask := time.monotonic() - asked >= _ASK:
                    asked = time.monotonic()
                states = states_of(pending) if ask else {run.name: state_of(run) for run in pending}
                for run in list(pending):
                    state = states[run.name]
                    if state.condition == "running" and run.name not in shown:
                        shown.add(run.name)
                        display.started(run, attempt=1)
                    elif state.condition == "done" or (
                        ask and state.condition not in ("running", "queued")
                    ):
                        pending.remove(run)
                        _end(run, state, display, outcome)
                display.update({run.name: states[run.name] for run in pending})
                time.sleep(1.0 if pending else 0.0)
        except KeyboardInterrupt:
            outcome.interrupted = True
    return outcome


def _end(run: Run, state: State, display: Display, outcome: Outcome) -> None:
    if state.condition != "done":
        if state.condition != "failed":  # cancelled, or ended before the worker began
            lines = [
                f"job {job_of(run).get('job')} is over and the run is not done",
                *_last_words(run),
            ]
            state = State("failed", record={"attempts": 1, "lines": lines})
        outcome.failed[run.name] = state.record.get("lines", [])
    display.ended(run, state)


def _last_words(run: Run) -> list[str]:
    """The end of what the job itself wrote to its error stream."""
    job = job_of(run)
    path = Path(job.get("logs", "")) / f"{job.get('job')}_0_log.err"
    return (
        path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        if path.is_file()
        else []
    )


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise NotSubmitted(
            "--launcher slurm needs submitit: pip install 'chaosgate[slurm]'."
        ) from None
    if missing := [name for name in ("sbatch", "squeue", "srun") if shutil.which(name) is None]:
        raise NotSubmitted(
            f"there is no {missing[0]} here: run this on a machine that submits to SLURM, or without --launcher."
        )
    return submitit


def launch(
    runs: Sequence[Run],
    options: SlurmOptions,
    threads: int,
    worker: Sequence[str],
    again: Callable[[str], str],
    console: Console,
    until_done: bool,
) -> Outcome:
    """Submit what is left; with ``until_done`` return when it has ended.

    Args:
        runs: The runs of the study.
        options: Resources of one job.
        threads: Of each worker.
        worker: The command that takes an order.
        again: The command line for another action about this study.
        console: Where to print.
        until_done: Whether to wait.
    """
    try:
        submission = submit(runs, options, threads, worker)
    except (NotSubmitted, ValueError, OSError) as error:
        return Outcome(refused=" ".join(str(error).split()))
    for line in summary(submission, again):
        console.print(line, soft_wrap=True, markup=False)
    return wait(runs, Display(console)) if until_done else Outcome()


def summary(submission: Submission, again: Callable[[str], str]) -> list[str]:
    """What was submitted, how to watch it, how to stop it, what to do at the end."""
    before = [f"{submission.kept} were done before"] if submission.kept else []
    before += [f"{submission.busy} are queued or running already"] if submission.busy else []
    count = len(submission.jobs)
    first = f"Submitted {count} {'run' if count == 1 else 'runs'}" + (
        f" as SLURM job {submission.array}" if submission.array else ""
    )
    lines = [f"{'; '.join([first, *before])}.", f"  watch:   {again('status')}"]
    if submission.array:
        lines += [
            f"  logs:    {submission.logs} (the jobs), log.txt of every run directory (the training)",
            f"  cancel:  scancel {submission.array}   (what was trained stays; the same command submits the rest)",
        ]
    return [*lines, f"  report:  {again('report')}"]
