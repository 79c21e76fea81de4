"""The SLURM launcher: its options, and studies through a real SLURM on one machine."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

from chaosgate.study.execute.slurm import JOB, SlurmOptions, alive
from chaosgate.study.execute.state import read_json, state_of
from tests.study.real_studies import numbers, runs_of, study, tiny

OWN = Path(os.environ.get("CHAOSGATE_SLURM", "/var/lib/chaosgate-slurm")) / "slurm.conf"
SUBMIT = "--launcher slurm --slurm.partition test --slurm.minutes 30 --slurm.notice 60".split()


def test_options_become_those_of_submitit(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("partition: gpu\nminutes: 2880\ncpus: 8\nextra: {mail-type: FAIL}\n")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--slurm", type=SlurmOptions)
    options = parser.instantiate(parser.parse_args(["--slurm", str(file), "--slurm.cpus=4"])).slurm
    asked = {"partition": "gpu", "time": 2880, "cpus_per_task": 4, "gpus_per_node": None}
    asked["additional_parameters"] = {"requeue": True, "mail-type": "FAIL"}
    assert asked.items() <= options.parameters("chaosgate-x").items()


def test_pending_jobs_are_alive_and_ended_or_forgotten_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    squeue.write_text("#!/bin/sh\nprintf '7_0 PENDING\\n7_1 CANCELLED\\n8 COMPLETING\\n'\n")
    squeue.chmod(0o755)
    assert alive(["7_0", "7_1", "7_2", "8"]) == {"7_0", "8"}
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert alive(["7"]) == {"7"}  # SLURM does not answer


# -- a real SLURM ----------------------------------------------------------------------------------


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def until(true: Callable[[], Any], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"no {what}; {ask('squeue', '--array')}"
        time.sleep(0.2)


def says(job: str) -> str:
    return ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


@pytest.fixture(scope="module")
def slurm() -> None:
    if "SLURM_CONF" not in os.environ and OWN.exists():
        os.environ["SLURM_CONF"] = str(OWN)
    pytest.importorskip("submitit")
    command = ["sinfo", "--noheader", "--format=%P"]
    if (
        shutil.which("sinfo") is None
        or "urgent" not in subprocess.run(command, capture_output=True, text=True).stdout
    ):
        pytest.skip("no SLURM with a partition 'urgent'; scripts/slurm_one_machine.sh starts one")


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a study of these methods; all share the corrupted images."""
    overrides = {
        "trainer.max_epochs": 30,
        "trainer.limit_train_batches": 20,
        "model.backbone_args": {"channels": [8, 8, 8, 8]},
        "data.init_args.cache_dir": str(tmp_path_factory.mktemp("cache")),
    }
    return lambda folder, *methods: tiny(
        folder, "tiny", {name: f"noise/{name}" for name in methods}, **overrides
    )


@pytest.fixture(scope="module")
def local(
    slurm: None, tmp_path_factory: pytest.TempPathFactory, write: Callable[..., Path]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of the runs on this machine, by method."""
    path = write(tmp_path_factory.mktemp("local"), "none", "gch")
    process = study("run", path, "--threads", "1", "--jobs", "2")
    assert process.returncode == 0, process.stdout + process.stderr
    return {run.method: numbers(run) for run in runs_of(path)}


@pytest.mark.slow
def test_array_of_jobs_gives_the_rows_of_the_local_executor(
    tmp_path: Path, write: Callable[..., Path], local: dict[str, Any]
) -> None:
    path = write(tmp_path, "none", "gch")
    refused = study("run", path, "--launcher", "slurm", "--slurm.partition", "nowhere")
    assert refused.returncode == 1 and "invalid partition" in refused.stderr
    held = study("run", path, *SUBMIT, "--slurm.extra", "{hold: true}")
    runs = runs_of(path)
    job = read_json(runs[0].directory / JOB)["job"]
    assert f"scancel {job.split('_')[0]}" in held.stdout
    assert "2 queued" in study("status", path).stdout
    assert (
        "Submitted 0 runs; 0 were done before, 2 are queued" in study("run", path, *SUBMIT).stdout
    )
    ask("scancel", job.split("_")[0])
    assert "2 missing" in study("status", path).stdout
    again = study("run", path, *SUBMIT)
    until(lambda: {state_of(run).condition for run in runs} == {"done"}, "finished runs")
    assert re.search(r"Submitted 2 runs as SLURM job \d+", again.stdout)
    assert {run.method: numbers(run) for run in runs} == local
    assert "Submitted 0 runs; 2 were done before" in study("run", path, *SUBMIT).stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "requeued", "preempted", "time limit"])
def test_interrupted_job_resumes_to_the_same_rows(
    how: str, tmp_path: Path, write: Callable[..., Path], local: dict[str, Any]
) -> None:
    path = write(tmp_path, "gch")
    process = study("run", path, *SUBMIT)
    assert process.returncode == 0, process.stdout + process.stderr
    (run,) = runs_of(path)
    job = read_json(run.directory / JOB)["job"]
    until(lambda: state_of(run).progress.get("epoch", 0) >= 3, "three epochs of training")
    if how == "cancelled":
        ask("scancel", job)
        until(lambda: state_of(run).condition == "interrupted", "end of the worker")
        until(lambda: says(job) == "CANCELLED", "end of the job")
        assert study("run", path, *SUBMIT).returncode == 0
    elif how == "requeued":
        ask("scontrol", "requeue", job)
    elif how == "preempted":
        ask("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
    else:
        ask("scancel", "--signal=USR2", job)  # what SLURM sends --slurm.notice before the limit
    if how != "cancelled":
        resume(job)
        assert read_json(run.directory / JOB)["job"] == job
    until(lambda: state_of(run).condition == "done", "finished run")
    assert "Restored all states" in (run.directory / "log.txt").read_text()
    assert numbers(run) == local["gch"] and not (run.directory / "failed.json").exists()


def resume(job: str) -> None:
    """SLURM holds a requeued job for two minutes; a node refuses it at once after its end."""
    until(lambda: says(job) == "PENDING", "job in the queue")
    time.sleep(5)
    ask("scontrol", "update", f"jobid={job}", "starttime=now")
