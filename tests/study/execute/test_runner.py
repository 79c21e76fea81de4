"""The runner with a stub for the training: who works on what, and what survives."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaosgate.run.directory import RunDirectory
from chaosgate.study import Run
from chaosgate.study.execute.state import FAILED, read_json, state_of, write_json
from tests.study.execute.stub_runner import attempts, start_stub, until
from tests.study.execute.stub_runner import ended as finish
from tests.study.toy_studies import Write, toy_runs

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a runner in its own process; the stub's behaviour is an override of the study."""
    return lambda study, jobs=1, **environment: start_stub(
        study, tmp_path / "runs", jobs, **environment
    )


@pytest.fixture
def runs_of(tmp_path: Path) -> Callable[[Path], list[Run]]:
    return lambda study: toy_runs(study, tmp_path / "runs")


def test_every_run_is_worked_on_once_and_never_again(
    write_study: Write, start: Start, runs_of: Any
) -> None:
    study = write_study(seeds=[0, 1])
    for _ in range(2):
        assert finish(start(study)) == {"failed": {}, "refused": None, "interrupted": False}
    runs = runs_of(study)
    assert [state_of(run).condition for run in runs] == ["done"] * 4
    assert [attempts(run) for run in runs] == [1] * 4


def test_failing_run_is_tried_twice_and_the_study_goes_on(
    write_study: Write, start: Start, runs_of: Any
) -> None:
    methods = {
        "none": "none.yaml",
        "a": ["gch.yaml", {"stub": "fail"}],
        "b": ["gch.yaml", {"stub": "fail_once", "noise.stages": ["L3"]}],
    }
    study = write_study(methods=methods)
    none, a, b = runs_of(study)
    outcome = finish(start(study))
    assert outcome["failed"] == {a.name: ["attempt", "attempt"]}
    assert [state_of(run).condition for run in (none, a, b)] == ["done", "failed", "done"]
    assert [attempts(run) for run in (none, a, b)] == [1, 2, 2]
    assert state_of(a).record["status"] == 3
    finish(start(study))  # somebody may have repaired it: another two attempts
    assert attempts(a) == 4


def test_study_that_the_command_line_refuses_ends_at_once(
    write_study: Write, start: Start, runs_of: Any
) -> None:
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
    assert [len(RunDirectory(run.directory).rows()) for run in runs] == [1] * 8
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


def test_killed_runner_loses_nothing(
    write_study: Write, start: Start, runs_of: Any, tmp_path: Path
) -> None:
    study = write_study(overrides={"stub": "wait"})
    none, gch = runs_of(study)
    first = start(study)
    until(
        lambda: (
            state_of(none).condition == "running"
            and "pid" in read_json(none.directory / "progress.json")
        )
    )
    first.kill()
    first.wait()  # not communicate: the worker that lives on keeps its output open
    assert state_of(none).condition == "running"  # the worker lives on
    os.kill(read_json(none.directory / "progress.json")["pid"], signal.SIGKILL)
    until(lambda: state_of(none).condition == "interrupted")
    first.communicate()
    (tmp_path / "runs" / "small" / "go").touch()
    assert finish(start(study))["failed"] == {}
    assert (attempts(none), attempts(gch)) == (2, 1)
    assert [len(RunDirectory(run.directory).rows()) for run in (none, gch)] == [1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_worker_too_and_keeps_what_is_done(
    write_study: Write, start: Start, runs_of: Any, number: int
) -> None:
    methods = {"none": "none.yaml", "gch": ["gch.yaml", {"stub": "wait"}]}
    study = write_study(methods=methods)
    none, gch = runs_of(study)
    process = start(study)
    until(lambda: state_of(gch).condition == "running" and bool(state_of(gch).progress))
    process.send_signal(number)
    assert finish(process)["interrupted"] is True
    assert [state_of(run).condition for run in (none, gch)] == ["done", "interrupted"]


def test_lost_row_makes_a_run_unfinished(write_study: Write, start: Start, runs_of: Any) -> None:
    study = write_study()
    finish(start(study))
    run = runs_of(study)[0]
    (run.directory / "results.jsonl").unlink()
    assert state_of(run).condition == "interrupted"
    finish(start(study))
    assert state_of(run).condition == "done"


@pytest.mark.parametrize(("jobs", "expected"), [(2, {"3", "5"}), (1, {"3,5"})])
def test_workers_at_a_time_have_a_device_each_and_one_alone_has_all(
    jobs: int,
    expected: set[str],
    write_study: Write,
    start: Start,
    runs_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    study = write_study(seeds=[0, 1])
    finish(start(study, jobs=jobs))
    assert {(run.directory / "device.txt").read_text() for run in runs_of(study)} == expected


def test_crash_of_one_run_leaves_the_others_alone(
    write_study: Write, start: Start, runs_of: Any
) -> None:
    methods = {
        "none": "none.yaml",
        "a": ["gch.yaml", {"stub": "crash"}],
        "b": ["gch.yaml", {"stub": "work", "noise.stages": ["L3"]}],
    }
    study = write_study(methods=methods, seeds=[0, 1])
    outcome = finish(start(study, jobs=2))
    runs = runs_of(study)
    assert [state_of(run).condition for run in runs] == ["done", "failed", "done"] * 2
    assert len(outcome["failed"]) == 2 and state_of(runs[1]).record["reason"] == "ended by SIGABRT"
    assert [attempts(run) for run in runs] == [1, 2, 1] * 2


@pytest.mark.parametrize("ahead", [86400.0, -86400.0])
def test_note_from_another_clock_does_not_block_a_run(
    ahead: float, write_study: Write, start: Start, runs_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study()
    run = runs_of(study)[0]
    run.directory.mkdir(parents=True)
    now = time.time()
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: now + ahead)
        write_json(run.directory / FAILED, {"attempts": 2, "status": 1, "lines": ["old"]})
    assert finish(start(study))["failed"] == {}
    assert state_of(run).condition == "done"


def test_deleted_run_directory_is_the_failure_of_that_run_only(
    write_study: Write, start: Start, runs_of: Any, tmp_path: Path
) -> None:
    methods = {"none": ["none.yaml", {"stub": "wait"}], "gch": ["gch.yaml", {"stub": "wait"}]}
    study = write_study(methods=methods)
    none, gch = runs_of(study)
    process = start(study, jobs=2)
    until(lambda: state_of(none).condition == state_of(gch).condition == "running")
    until(
        lambda: shutil.rmtree(gch.directory, ignore_errors=True) or not gch.directory.exists()
    )  # it is written to
    until(lambda: attempts(gch) == 0)
    (tmp_path / "runs" / "small" / "go").touch()
    assert finish(process)["interrupted"] is False
    assert state_of(none).condition == "done" and attempts(none) == 1
    assert state_of(gch).condition == "done"  # tried again, in a new directory


def test_failure_that_cannot_be_noted_does_not_end_the_others(
    write_study: Write, start: Start, runs_of: Any
) -> None:
    methods = {"none": "none.yaml", "gch": ["gch.yaml", {"stub": "fail"}]}
    study = write_study(methods=methods, seeds=[0, 1])
    runs = runs_of(study)
    (runs[1].directory / FAILED / "in_the_way").mkdir(
        parents=True
    )  # a folder of this name: nothing can replace it
    process = start(study, jobs=2)
    outcome = finish(process)
    assert set(outcome["failed"]) == {runs[1].name, runs[3].name}
    assert [state_of(run).condition for run in (runs[0], runs[2])] == ["done", "done"]


def test_order_that_cannot_be_written_is_the_failure_of_that_run_only(
    write_study: Write, start: Start, runs_of: Any
) -> None:
    study = write_study(seeds=[0, 1])
    runs = runs_of(study)
    runs[1].directory.parent.mkdir(parents=True)
    runs[1].directory.write_text("a file in the place of its directory")
    assert set(finish(start(study))["failed"]) == {runs[1].name}
    assert [state_of(run).condition for run in runs] == ["done", "missing", "done", "done"]
