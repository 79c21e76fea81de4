"""What ``plan`` says about time, ``status`` about failures and damage, and which commands a study suggests."""

from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from chaosgate.study import Run, load_study
from chaosgate.study.execute.display import Display, cost, overview, same_study, stated_cost
from chaosgate.study.execute.runner import reason
from chaosgate.study.execute.slurm import Submission, summary
from chaosgate.study.execute.state import FAILED, State, state_of, write_json
from tests.study.made import finish
from tests.study.toy_studies import Plan, Write


def said(study: Write, runs: list[Run], jobs: int = 1) -> str:
    return cost(
        load_study(study(seeds=[0, 1])), runs, {run.name: state_of(run) for run in runs}, jobs
    )


def test_cost_is_taken_from_finished_runs(plan: Plan, write_study: Write) -> None:
    runs = plan(seeds=[0, 1])
    assert "not known here" in said(write_study, runs)
    finish(runs[0], {("clean", 0): {"top1": 0.5, "nll": 1.0, "ece": 0.1}})  # 63 s
    assert "189 s" not in said(write_study, runs) and "about 3 min for 3 runs, 1 at a time" in said(
        write_study, runs
    )
    assert "about 94 s for 3 runs, 2 at a time" in said(write_study, runs, jobs=2)
    runs[1].directory.mkdir()
    half = {
        "phase": "fit",
        "epoch": 5,
        "epochs": 9,
        "batch": 0,
        "batches": 1,
    }  # 0.9 * 5 / 9 of the run
    write_json(runs[1].directory / "progress.json", half)
    assert "about 79 s for 3 runs, 2 at a time" in said(write_study, runs, jobs=2)
    for run in runs:
        finish(run, {("clean", 0): {"top1": 0.5, "nll": 1.0, "ece": 0.1}})
    assert said(write_study, runs) == "Nothing left to run."


def test_header_of_the_study_speaks_before_anything_has_run(write_study: Write) -> None:
    path = write_study()
    path.write_text("# A claim.   Cost: 60 h on 8 A100 [estimate]\n" + path.read_text())
    assert stated_cost(load_study(path)) == "60 h on 8 A100 [estimate]"


def test_suggested_commands_repeat_the_flags_that_say_which_study_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHAOSGATE_ALLOW", "my_noise")
    again = partial(same_study, flags=["my study.yaml", "--root", "here"])
    flags = "'my study.yaml' --root here --allow my_noise"
    assert again("run").endswith(f"chaosgate study run {flags}")
    lines = summary(Submission({"a": "7_0"}, kept=0, busy=0, logs=Path("logs")), again)
    assert lines[1].endswith(f"chaosgate study status {flags}") and lines[-1].endswith(
        f"study report {flags}"
    )


def test_status_gives_the_reason_of_a_failure_and_names_damaged_files(
    plan: Plan, write_study: Write
) -> None:
    failed, damaged = plan()
    lines = ["Epoch 3", "chaosgate: the loss is nan at step 7.", "See --help for all keys."]
    failed.directory.mkdir(parents=True)
    write_json(
        failed.directory / FAILED,
        {"attempts": 2, "status": 1, "reason": reason(lines, 1), "lines": lines},
    )
    finish(damaged, {("clean", 0): {"top1": 0.5, "nll": 1.0, "ece": 0.1}})
    (damaged.directory / "fitted.json").write_text("{")
    states = {run.name: state_of(run) for run in (failed, damaged)}
    console = Console(width=400)
    shown = overview(
        load_study(write_study()), [failed, damaged], states, {run: [] for run in states}, 1, False
    )
    with console.capture() as printed:
        console.print(shown)
    assert (
        f"{failed.name}: the loss is nan at step 7." in printed.get()
        and "See --help" not in printed.get()
    )
    assert f"{damaged.directory / 'fitted.json'} is damaged" in printed.get()


def test_progress_is_a_line_every_half_minute_where_there_is_no_terminal(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("chaosgate.study.execute.display.time.monotonic", lambda: now[0])
    shown, (run, *_) = Console(file=StringIO(), width=200), plan()
    display = Display(shown)
    working = {run.name: State("running", {"phase": "fit", "epoch": 2, "epochs": 9})}
    with display.watching([run], {run.name: State("missing")}):
        display.started(run, 1)
        for now[0] in (110.0, 131.0, 140.0):
            display.update(working)
    lines = [line for line in shown.file.getvalue().splitlines() if "runs finished" in line]
    assert len(lines) == 1 and "0 of 1 runs finished" in lines[0] and "epoch 3 of 9" in lines[0]
