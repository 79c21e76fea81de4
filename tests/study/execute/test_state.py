"""The state of a run from its files: damage, locks, failures."""

from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from rich.console import Console

from chaosgate.run.files import write_json
from chaosgate.study import Run
from chaosgate.study.execute.state import FAILED, FITTED, LOCK, overview, set_aside, state_of
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
@pytest.mark.parametrize("content", [None, b"", b"\x00\xff{[:", b'{"digest": "of another row"}'])
def test_run_that_lost_a_file_is_repeated_and_a_damaged_one_is_named(
    pattern: str, content: bytes | None, run: Run
) -> None:
    (path,) = run.directory.glob(pattern)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    state, damaged = state_of(run), [path] * (content is not None)
    assert state.condition == "interrupted"
    assert [str(one) in "".join(state.trouble) for one in damaged] == [True] * len(damaged)
    assert set_aside(run.directory) == damaged
    assert not state_of(run).trouble and state_of(run).condition != "done"


def test_run_is_running_while_its_lock_is_held_and_looking_leaves_no_lock(run: Run) -> None:
    (run.directory / FITTED).unlink()
    assert state_of(run).condition == "interrupted" and not (run.directory / LOCK).exists()
    with FileLock(run.directory / LOCK):
        assert state_of(run).condition == "running"
    assert state_of(run).condition == "interrupted"


def test_status_gives_progress_and_reasons(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, console = plan(seeds=[0, 1]), Console(width=200)
    finish(runs[0], {CLEAN: numbers(0.5)})
    for run in runs[1:3]:
        run.directory.mkdir()
    write_json(runs[1].directory / "progress.json", {"phase": "fit", "epoch": 5, "epochs": 9})
    write_json(runs[2].directory / FAILED, {"reason": "the loss is nan at step 7."})
    with console.capture() as printed:
        console.print(overview("s", runs, {run.name: state_of(run) for run in runs}))
    text = printed.get()
    assert f"{runs[2].title}: the loss is nan at step 7." in text
    assert "1 done, 1 interrupted, 1 failed, 1 missing" in text
    assert "interrupted, epoch 6 of 9" in text

    def refuse(path: Path, *rest: object, **more: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    state = state_of(runs[0])
    assert state.condition == "missing" and "Permission denied" in state.trouble[0]
