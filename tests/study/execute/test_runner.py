"""The runner with a stub for the training: who works on what, and what survives."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaosgate.study import Run, load_study, plan_runs
from chaosgate.study.execute.state import read_json, result_rows, state_of
from tests.study.conftest import Write

Start = Callable[..., "subprocess.Popen[str]"]
SCRIPT = Path(__file__).with_name("run_stub.py")


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a runner in its own process; the stub's behaviour is an override of the study."""

    def start(study: Path, jobs: int = 1) -> "subprocess.Popen[str]":
        command = [sys.executable, str(SCRIPT), str(study), str(tmp_path / "runs"), str(jobs)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def runs_of(tmp_path: Path) -> Callable[[Path], list[Run]]:
    return lambda study: plan_runs(load_study(study), tmp_path / "runs")


def finish(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    outcome: dict[str, Any] = json.loads(out)
    return outcome


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def attempts(run: Run) -> int:
    path = run.directory / "log.txt"
    return path.read_text().count("attempt") if path.exists() else 0


def test_every_run_is_worked_on_once_and_never_again(write_study: Write, start: Start, runs_of: Any) -> None:
    study = write_study(seeds=[0, 1])
    for _ in range(2):
        assert finish(start(study)) == {"failed": {}, "refused": None, "interrupted": False}
    runs = runs_of(study)
    assert [state_of(run).condition for run in runs] == ["done"] * 4
    assert [attempts(run) for run in runs] == [1] * 4


def test_failing_run_is_tried_twice_and_the_study_goes_on(write_study: Write, start: Start, runs_of: Any) -> None:
    methods = {"none": "none.yaml", "a": ["gch.yaml", {"stub": "fail"}], "b": ["gch.yaml", {"stub": "fail_once"}]}
    study = write_study(methods=methods)
    none, a, b = runs_of(study)
    outcome = finish(start(study))
    assert outcome["failed"] == {a.name: ["attempt", "attempt"]}
    assert [state_of(run).condition for run in (none, a, b)] == ["done", "failed", "done"]
    assert [attempts(run) for run in (none, a, b)] == [1, 2, 2]
    assert state_of(a).record["status"] == 3
    finish(start(study))  # somebody may have mended it: another two attempts
    assert attempts(a) == 4


def test_study_that_the_command_line_refuses_ends_at_once(write_study: Write, start: Start, runs_of: Any) -> None:
    study = write_study(overrides={"stub": "bad"})
    outcome = finish(start(study))
    assert outcome["refused"] == "attempt" and outcome["failed"] == {}
    assert [attempts(run) for run in runs_of(study)] == [1, 0]


def test_two_runners_share_the_work_without_a_duplicate_or_a_lost_row(
    write_study: Write, start: Start, runs_of: Any
) -> None:
    study = write_study(seeds=list(range(4)))
    both = [start(study), start(study, jobs=2)]
    for process in both:
        assert finish(process)["failed"] == {}
    runs = runs_of(study)
    assert [len(result_rows(run.directory)) for run in runs] == [1] * 8
    assert [attempts(run) for run in runs] == [1] * 8


def test_runner_waits_for_a_run_of_another_and_takes_its_result(
    write_study: Write, start: Start, runs_of: Any, tmp_path: Path
) -> None:
    study = write_study(methods={"none": "none.yaml"}, overrides={"stub": "wait"})
    (run,) = runs_of(study)
    first = start(study)
    until(lambda: state_of(run).condition == "running")
    second = start(study)
    time.sleep(1.0)
    assert second.poll() is None
    (tmp_path / "runs" / "small" / "go").touch()
    assert finish(first)["failed"] == finish(second)["failed"] == {}
    assert attempts(run) == 1


def test_killed_runner_loses_nothing(write_study: Write, start: Start, runs_of: Any, tmp_path: Path) -> None:
    study = write_study(overrides={"stub": "wait"})
    none, gch = runs_of(study)
    first = start(study)
    until(lambda: state_of(none).condition == "running" and "pid" in read_json(none.directory / "progress.json"))
    first.kill()
    first.communicate()
    assert state_of(none).condition == "running"  # the worker lives on
    os.kill(read_json(none.directory / "progress.json")["pid"], signal.SIGKILL)
    until(lambda: state_of(none).condition == "cut")
    (tmp_path / "runs" / "small" / "go").touch()
    assert finish(start(study))["failed"] == {}
    assert (attempts(none), attempts(gch)) == (2, 1)
    assert [len(result_rows(run.directory)) for run in (none, gch)] == [1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_worker_too_and_keeps_what_is_done(
    write_study: Write, start: Start, runs_of: Any, number: int
) -> None:
    methods = {"none": "none.yaml", "gch": ["gch.yaml", {"stub": "wait"}]}
    study = write_study(methods=methods)
    none, gch = runs_of(study)
    process = start(study)
    until(lambda: state_of(gch).condition == "running")
    process.send_signal(number)
    assert finish(process)["interrupted"] is True
    assert [state_of(run).condition for run in (none, gch)] == ["done", "cut"]


def test_lost_row_makes_a_run_unfinished(write_study: Write, start: Start, runs_of: Any) -> None:
    study = write_study()
    finish(start(study))
    run = runs_of(study)[0]
    (run.directory / "results.jsonl").unlink()
    assert state_of(run).condition == "cut"
    finish(start(study))
    assert state_of(run).condition == "done"


@pytest.mark.parametrize(("jobs", "expected"), [(2, {"3", "5"}), (1, {"3,5"})])
def test_workers_at_a_time_have_a_device_each_and_one_alone_has_all(
    jobs: int, expected: set[str], write_study: Write, start: Start, runs_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    study = write_study(seeds=[0, 1])
    finish(start(study, jobs=jobs))
    assert {(run.directory / "device.txt").read_text() for run in runs_of(study)} == expected
