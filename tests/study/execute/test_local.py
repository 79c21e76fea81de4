"""The local executor, with a training that takes no time: who works on what, what survives."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

from chaosgate.study import Run
from chaosgate.study.execute.local import Display, Outcome, warm, work_through
from chaosgate.study.execute.state import LOCK, read_json, state_of
from tests.study.real_studies import environment
from tests.study.toy_studies import Plan, Write, attempts, toy_execute, toy_runs


def execute(runs: list[Run], jobs: int = 1) -> Outcome:
    """Work through runs in processes of this one."""
    display, context = Display(Console(file=StringIO())), warm("chaosgate.run.checkpoint")
    return work_through(runs, toy_execute, display, jobs, 1, context)


def start(study: Path, jobs: int = 1) -> "subprocess.Popen[str]":
    """Another runner."""
    words = [str(study), str(study.parent / "runs"), str(jobs)]
    command, pipe = [sys.executable, "-m", "tests.study.toy_studies", *words], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    outcome: dict[str, Any] = json.loads(out)
    return outcome


def until(condition: Callable[[], Any], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def conditions(runs: list[Run]) -> list[str]:
    return [state_of(run).condition for run in runs]


def at_work(run: Run) -> int | None:
    """The process that trains, once it does."""
    progress = read_json(run.directory / "progress.json")
    return progress.get("pid") if state_of(run).condition == "running" else None


def test_failing_and_killed_runs_are_tried_twice_and_the_study_goes_on(plan: Plan) -> None:
    methods = {
        "none": "none.yaml",
        "fails": ["gch.yaml", {"stub": "fail"}],
        "once": ["gch.yaml", {"stub": "fail_once", "noise.stages": ["L3"]}],
        "killed": ["gch.yaml", {"stub": "crash", "noise.stages": ["L2"]}],
        "no_folder": ["gch.yaml", {"noise.stages": ["L1"]}],
    }
    runs = plan(methods=methods)
    runs[4].root.mkdir(parents=True)
    runs[4].directory.write_text("a file in the place of the directory")
    outcome = execute(runs, jobs=2)
    assert set(outcome.failed) == {runs[k].name for k in (1, 3, 4)}
    assert conditions(runs) == ["done", "failed", "done", "failed", "missing"]
    assert [attempts(run.directory) for run in runs[:4]] == [1, 2, 2, 2]
    assert state_of(runs[1]).record["reason"] == "the loss became nan"
    assert "was killed" in state_of(runs[3]).record["reason"]
    assert "cannot be written" in outcome.failed[runs[4].name][0]


def test_checkpoints_and_tests_of_one_training_share_it(plan: Plan) -> None:
    runs = plan(checkpoint=["best", "last"])
    assert execute(runs, jobs=2).failed == {} and conditions(runs) == ["done"] * 4
    more = plan(tests={"test": None, "more": {"data.init_args.severities": [5]}})
    assert more[0].directory == runs[0].directory and conditions(more) == ["interrupted"] * 2
    assert execute(more).failed == {} and conditions([*runs, *more]) == ["done"] * 6
    assert attempts(runs[0].directory) == 1


def test_two_runners_share_the_work_and_nothing_is_repeated(write_study: Write) -> None:
    study = write_study(seeds=[0, 1, 2])
    runs = toy_runs(study, study.parent / "runs")
    for process in [start(study), start(study, jobs=2)]:
        assert ended(process)["failed"] == []
    assert execute(runs, jobs=2) == Outcome({}, False)
    assert conditions(runs) == ["done"] * 6
    assert [attempts(run.directory) for run in runs] == [1] * 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_workers_and_keeps_what_is_done(number: int, write_study: Write) -> None:
    methods = {"none": "none.yaml", "gch": ["gch.yaml", {"stub": "wait"}]}
    study = write_study(methods=methods)
    runs = toy_runs(study, study.parent / "runs")
    process = start(study)
    until(lambda: at_work(runs[1]))
    process.send_signal(number)
    assert ended(process) == {"failed": [], "interrupted": True}
    assert conditions(runs) == ["done", "interrupted"]


@pytest.mark.parametrize(("jobs", "expected"), [(2, {"3", "5"}), (1, {"3,5"})])
def test_runs_at_a_time_have_a_device_each_and_one_alone_has_all(
    jobs: int, expected: set[str], write_study: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    study = write_study(seeds=[0, 1])
    assert ended(start(study, jobs))["failed"] == []
    runs = toy_runs(study, study.parent / "runs")
    assert {(run.directory / "attempts.txt").read_text().strip() for run in runs} == expected


def test_progress_is_a_line_every_half_minute_where_there_is_no_terminal(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("chaosgate.study.execute.local.time.monotonic", lambda: now[0])
    shown, (run, *_) = Console(file=StringIO(), width=200), plan()
    run.directory.mkdir(parents=True)
    (run.directory / "progress.json").write_text('{"phase": "fit", "epoch": 2, "epochs": 9}')
    display = Display(shown)
    with FileLock(run.directory / LOCK):
        states = {run.name: state_of(run)}
        for now[0] in (110.0, 131.0, 140.0):
            display.look([run], states)
    assert shown.file.getvalue() == "0 of 1 runs are done; none, seed 0: epoch 3 of 9\n"
