"""Studies through a real SLURM (``scripts/slurm_one_machine.sh``): jobs cancelled, requeued, preempted."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaosgate.study import Run
from chaosgate.study.execute.slurm import job_of
from chaosgate.study.execute.state import read_json, state_of
from tests.study.real_studies import noise, numbers, runs_of, study, tiny

OWN = Path(os.environ.get("CHAOSGATE_SLURM", "/var/lib/chaosgate-slurm")) / "slurm.conf"
SUBMIT = (
    "--launcher",
    "slurm",
    "--slurm.partition",
    "test",
    "--slurm.time",
    "30",
    "--slurm.notice",
    "60",
)


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module", autouse=True)
def slurm() -> None:
    if "SLURM_CONF" not in os.environ and OWN.exists():
        os.environ["SLURM_CONF"] = str(OWN)
    if shutil.which("sinfo") is None:
        pytest.skip(
            "SLURM is not installed; scripts/slurm_one_machine.sh installs and starts it (as root)"
        )
    answer = subprocess.run(["sinfo", "--noheader", "--format=%P"], capture_output=True, text=True)
    if answer.returncode or "urgent" not in answer.stdout:
        pytest.skip(
            "no SLURM with a partition 'urgent' answers; start one with scripts/slurm_one_machine.sh"
        )
    pytest.importorskip("submitit")


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a study of these methods; all share the folder of corrupted images, so that their rows can be equal."""
    overrides = {
        "trainer.max_epochs": 30,
        "trainer.limit_train_batches": 20,
        "model.backbone_args": {"channels": [8, 8, 8, 8]},
        "data.init_args.cache_dir": str(tmp_path_factory.mktemp("cache")),
    }
    return lambda folder, *methods: tiny(
        folder, "tiny", {name: noise(name) for name in methods}, **overrides
    )


@pytest.fixture(scope="module")
def local(
    tmp_path_factory: pytest.TempPathFactory, write: Callable[..., Path]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of the runs on this machine, by method."""
    path = write(tmp_path_factory.mktemp("local"), "none", "gch")
    process = study("run", path, "--threads", "1", "--jobs", "2")
    assert process.returncode == 0, process.stdout + process.stderr
    return {run.method: numbers(run) for run in runs_of(path)}


@pytest.fixture
def submitted(tmp_path: Path, write: Callable[..., Path]) -> tuple[Path, Run, str]:
    """A study of one run that a job has trained for some epochs; its file, the run, the job."""
    path = write(tmp_path, "gch")
    process = study("run", path, *SUBMIT)
    assert process.returncode == 0, process.stdout + process.stderr
    (run,) = runs_of(path)
    job = job_of(run)["job"]
    assert f"scancel {job}" in process.stdout and "study status" in process.stdout
    until(lambda: state_of(run).progress.get("epoch", 0) >= 3, "three epochs of training")
    assert state_of(run).condition == "running" and not (run.directory / "fitted.json").exists()
    return path, run, job


def until(true: Callable[[], bool], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, (
            f"waited {seconds} s in vain for {what}; {ask('squeue', '--array')}"
        )
        time.sleep(0.2)


def slurm_says(job: str) -> str:
    return ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def start_now(job: str) -> None:
    """SLURM holds a requeued job back for two minutes; a node refuses it in the second in which it was ended there."""
    until(lambda: slurm_says(job) == "PENDING", "the job to be back in the queue")
    time.sleep(5)
    ask("scontrol", "update", f"jobid={job}", "starttime=now")


def assert_resumed_to_the_same_rows(run: Run, rows: list[dict[str, Any]]) -> None:
    until(lambda: state_of(run).condition == "done", "the run to be done")
    assert "Restored all states" in (run.directory / "log.txt").read_text()
    assert numbers(run) == rows
    assert (
        len({row["nll"] for row in rows}) == 5
    )  # a network that answers: every cell another number


@pytest.mark.slow
def test_array_of_jobs_gives_the_rows_of_the_local_launcher(
    tmp_path: Path, write: Callable[..., Path], local: dict[str, Any]
) -> None:
    path = write(tmp_path, "none", "gch")
    process = study("run", path, *SUBMIT, "--wait")
    assert process.returncode == 0, process.stdout + process.stderr
    runs = runs_of(path)
    assert (
        re.search(r"Submitted 2 runs as SLURM job \d+", process.stdout)
        and "Report:" in process.stdout
    )
    assert {run.method: numbers(run) for run in runs} == local
    jobs = [job_of(run)["job"] for run in runs]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1"]
    again = study("run", path, *SUBMIT)
    assert "Submitted 0 runs; 2 were done before" in again.stdout
    assert [job_of(run)["job"] for run in runs] == jobs


@pytest.mark.slow
def test_queued_runs_are_shown_and_not_submitted_twice(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    path = write(tmp_path, "none", "gch")
    assert study("run", path, *SUBMIT, "--slurm.extra", "{hold: true}").returncode == 0
    runs = runs_of(path)
    jobs = [job_of(run)["job"] for run in runs]
    try:
        assert "2 queued" in study("status", path).stdout
        assert (
            "Submitted 0 runs; 2 are queued or running already"
            in study("run", path, *SUBMIT).stdout
        )
        assert [job_of(run)["job"] for run in runs] == jobs
    finally:
        ask("scancel", jobs[0].split("_")[0])
    assert "2 missing" in study("status", path).stdout


@pytest.mark.slow
def test_cancelled_job_goes_on_when_submitted_again(
    submitted: tuple[Path, Run, str], local: dict[str, Any]
) -> None:
    path, run, job = submitted
    ask("scancel", job)
    until(lambda: slurm_says(job) == "CANCELLED", "the job to be cancelled")
    until(lambda: state_of(run).condition == "interrupted", "the worker to be gone")
    assert "1 interrupted" in study("status", path).stdout
    assert study("run", path, *SUBMIT).returncode == 0
    assert job_of(run)["job"] != job
    assert_resumed_to_the_same_rows(run, local["gch"])


@pytest.mark.slow
def test_requeued_job_resumes(submitted: tuple[Path, Run, str], local: dict[str, Any]) -> None:
    path, run, job = submitted
    ask("scontrol", "requeue", job)
    until(lambda: slurm_says(job) == "PENDING", "the job to be back in the queue")
    assert f"queued, job {job}" in study("status", path).stdout
    start_now(job)
    assert_resumed_to_the_same_rows(run, local["gch"])
    assert job_of(run)["job"] == job and "Restarts=1" in ask("scontrol", "show", "job", job)


@pytest.mark.slow
def test_job_that_a_more_urgent_one_takes_the_place_of_resumes(
    submitted: tuple[Path, Run, str], local: dict[str, Any], tmp_path: Path
) -> None:
    _, run, job = submitted
    ask(
        "sbatch",
        "--partition=urgent",
        "--exclusive",
        f"--output={tmp_path}/urgent.txt",
        "--wrap=echo urgent; sleep 3",
    )
    start_now(job)
    assert_resumed_to_the_same_rows(run, local["gch"])
    assert (tmp_path / "urgent.txt").read_text() == "urgent\n"
    assert "Restarts=1" in ask("scontrol", "show", "job", job)


@pytest.mark.slow
def test_notice_before_the_time_limit_saves_and_requeues(
    submitted: tuple[Path, Run, str], local: dict[str, Any]
) -> None:
    _, run, job = submitted
    ask("scancel", "--signal=USR2", job)  # what SLURM sends --slurm.notice seconds before the limit
    start_now(job)
    assert_resumed_to_the_same_rows(run, local["gch"])
    log = (Path(job_of(run)["logs"]) / f"{job}_0_log.out").read_text()
    assert f"Requeued job {job}" in log
    assert not read_json(run.directory / "failed.json")


@pytest.mark.slow
def test_jobs_that_slurm_refuses_leave_a_sentence_and_no_trace(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    path = write(tmp_path, "none")
    process = study("run", path, "--launcher", "slurm", "--slurm.partition", "nowhere")
    assert process.returncode == 1 and "nothing was trained" in process.stderr
    assert "invalid partition" in process.stderr and "Traceback" not in process.stderr
    assert not job_of(runs_of(path)[0])
