"""Submit the runs of a study to SLURM: an array of jobs through submitit, one job for each run."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosgate.study.execute.display import Display
from chaosgate.study.execute.runner import Outcome
from chaosgate.study.execute.slurm_options import SlurmOptions
from chaosgate.study.execute.slurm_queue import job_of, record_job, states_of
from chaosgate.study.execute.state import State, state_of
from chaosgate.study.execute.worker import configurations, first_complaint, write_order
from chaosgate.study.plan.runs import Run

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


def submit(runs: Sequence[Run], options: SlurmOptions, threads: int) -> Submission:
    """Submit what is neither done, nor queued, nor being worked on, as one array: a job for each training.

    Every configuration is parsed before: a typo costs seconds here and hours in a queue. A training that is queued
    or at work for another study of the project is left alone; when it has ended, the same command submits the tests
    that this study adds.
    """
    submitit = _submitit()
    states = states_of(runs)
    left = [run for run in runs if states[run.name].condition not in ("done", "queued", "running")]
    logs = runs[0].root / LOGS
    kept = sum(state.condition == "done" for state in states.values())
    if not left:
        return Submission({}, kept, len(runs) - kept, logs)
    if complaint := first_complaint({name: words for run in left for name, words in configurations(run).items()}):
        raise NotSubmitted(complaint)
    from chaosgate.study.execute.slurm_job import RunJob

    here = Path.cwd()
    trainings: dict[Path, list[Run]] = {}
    for run in left:
        trainings.setdefault(run.directory, []).append(run)
    orders = [write_order(first, threads, others=others) for first, *others in trainings.values()]
    work = [RunJob(order.absolute(), here, threads, options.notice) for order in orders]
    try:
        executor = submitit.SlurmExecutor(logs.absolute(), max_num_timeout=options.requeues)
        executor.update_parameters(**options.parameters(f"chaosgate-{left[0].study}"))
        jobs = executor.submit_array(work)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        words = " ".join(str(error).split())
        raise NotSubmitted(f"SLURM refused the jobs: {words} Look at the --slurm options, and at sinfo.") from error
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
                    elif state.condition == "done" or (ask and state.condition not in ("running", "queued")):
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
            lines = [f"job {job_of(run).get('job')} is over and the run is not done", *_last_words(run)]
            state = State("failed", record={"attempts": 1, "lines": lines})
        outcome.failed[run.name] = state.record["lines"]
    display.ended(run, state)


def _last_words(run: Run) -> list[str]:
    """The end of what the job itself wrote to its error stream."""
    job = job_of(run)
    path = Path(job.get("logs", "")) / f"{job.get('job')}_0_log.err"
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:] if path.is_file() else []


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise NotSubmitted("--launcher slurm needs submitit: pip install 'chaosgate[slurm]'.") from None
    if missing := [name for name in ("sbatch", "squeue", "srun") if shutil.which(name) is None]:
        raise NotSubmitted(
            f"there is no {missing[0]} here: run this on a machine that submits to SLURM, or without --launcher."
        )
    return submitit
