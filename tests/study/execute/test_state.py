"""What run directories say: damaged files, locks, failures, cost."""

from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from rich.console import Console

from chaosgate.run.files import write_json
from chaosgate.study import Run
from chaosgate.study.execute.state import (
    FAILED,
    FITTED,
    LOCK,
    cost,
    overview,
    set_aside,
    state_of,
    unreadable,
)
from tests.study.made import CLEAN, finish, keep, numbers
from tests.study.toy_studies import Plan

FILES = "fitted.json tested/*.json outputs/*.npz".split()


@pytest.fixture
def run(plan: Plan) -> Run:
    """A finished run with all the files that a study reads back."""
    run = plan()[0]
    finish(run, {CLEAN: numbers(0.5)})
    keep(run, [CLEAN], *(np.ones((1, 4)), np.ones((1, 4), bool), np.ones((1, 4))))
    assert state_of(run).condition == "done" and not state_of(run).trouble
    return run


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("content", ["empty", "garbage", "half"])
def test_unreadable_file_is_named_and_the_run_is_repeated(
    pattern: str, content: str, run: Run
) -> None:
    (path,) = run.directory.glob(pattern)
    whole = path.read_bytes()
    made = {"empty": b"", "garbage": b"\x00\xff{[:", "half": whole[: len(whole) // 3]}
    path.write_bytes(made[content])
    state = state_of(run)
    assert unreadable(run.directory) == [path]  # looking changes nothing
    assert state.condition == "interrupted" and str(path) in state.trouble[0]
    assert set_aside(run.directory) == [path]
    assert path.with_name(f"{path.name}.damaged").exists()
    assert not unreadable(run.directory) and state_of(run).condition != "done"
    assert not list((run.directory / "tested").glob("*.json"))


@pytest.mark.parametrize("pattern", FILES)
def test_run_that_lost_a_file_or_whose_row_changed_is_not_done(pattern: str, run: Run) -> None:
    (path,) = run.directory.glob("tested/*.json")
    text = path.read_text()
    path.write_text(text.replace('"nll": 1.0', '"nll": 1.1'))
    assert unreadable(run.directory) == [path] and state_of(run).condition == "interrupted"
    path.write_text(text)
    (path,) = run.directory.glob(pattern)
    path.unlink()
    assert state_of(run).condition == "interrupted"


def test_run_is_running_while_its_lock_is_held_and_looking_leaves_no_lock(run: Run) -> None:
    (run.directory / FITTED).unlink()
    assert state_of(run).condition == "interrupted" and not (run.directory / LOCK).exists()
    with FileLock(run.directory / LOCK):
        assert state_of(run).condition == "running"
    assert state_of(run).condition == "interrupted"


def test_status_gives_reasons_and_cost(plan: Plan) -> None:
    runs = plan(seeds=[0, 1])

    def looked() -> dict[str, object]:
        return {run.name: state_of(run) for run in runs}

    assert "not known here" in cost(2, runs, looked())
    finish(runs[0], {CLEAN: numbers(0.5)})  # 63 s
    assert "about 0:01:34 for 3 runs, 2 at a time" in cost(2, runs, looked())
    for run in runs[1:3]:
        run.directory.mkdir()
    write_json(runs[1].directory / "progress.json", {"phase": "fit", "epoch": 5, "epochs": 9})
    write_json(runs[2].directory / FAILED, {"reason": "the loss is nan at step 7."})
    console = Console(width=200)
    with console.capture() as printed:
        console.print(overview("s", 2, runs, looked()))
    text = printed.get()
    assert f"{runs[2].title}: the loss is nan at step 7." in text
    assert "1 done, 1 failed, 1 interrupted, 1 missing" in text
    assert "interrupted, epoch 6 of 9" in text


def test_directory_that_cannot_be_read_is_named(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *rest: object, **more: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    run = plan()[0]
    monkeypatch.setattr(Path, "read_text", refuse)
    state = state_of(run)
    assert state.condition == "missing" and "cannot be read: Permission denied" in state.trouble[0]
