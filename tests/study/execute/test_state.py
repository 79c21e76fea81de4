"""What run directories in a bad state say: damaged files, no locks, nothing to read."""

import errno
import fcntl
import json
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from chaosgate.run.directory import RunDirectory
from chaosgate.study import Run
from chaosgate.study.execute import runner
from chaosgate.study.execute.display import Display, how_far
from chaosgate.study.execute.runner import Runner
from chaosgate.study.execute.state import (
    FITTED,
    TESTED,
    damaged_files,
    is_trained,
    require_locks,
    set_aside_damaged,
    state_of,
    write_fitted,
)
from tests.study.execute.stub_runner import attempts, ended, start_stub
from tests.study.made import finish, keep
from tests.study.toy_studies import Plan, Write, toy_runs

CELLS = {("clean", 0): {"top1": 0.5, "nll": 1.0, "ece": 0.1}}
FILES = "fitted.json tested/*.json results.jsonl curves.jsonl config.yaml noise.json outputs/*.npz".split()


@pytest.fixture
def run(plan: Plan) -> Run:
    """A finished run with all the files that a study reads back."""
    run = plan()[0]
    finish(run, CELLS)
    RunDirectory(run.directory).noise.write_text('[{"stage": "L4", "energy": 0.5}]')
    write_fitted(run.directory, {"seconds": 1.0})
    keep(run, list(CELLS), *(np.ones((1, 4)), np.ones((1, 4), bool), np.ones((1, 4))))
    assert state_of(run).condition == "done" and not state_of(run).trouble
    return run


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("damage", ["empty", "half", "noise"])
def test_damaged_file_is_named_set_aside_and_the_run_is_unfinished(pattern: str, damage: str, run: Run) -> None:
    (path,) = run.directory.glob(pattern)
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "noise": b"\x00\xff{[:"}[damage])
    state = state_of(run)
    assert state.condition == "interrupted"
    assert [str(path) in sentence and "damaged" in sentence for sentence in state.trouble] == [True]
    assert path.read_bytes() != whole and damaged_files(run.directory) == [path]  # looking changes nothing
    (said,) = set_aside_damaged(run.directory)
    assert str(path) in said and path.with_name(f"{path.name}.damaged1").exists()
    assert not damaged_files(run.directory) and state_of(run).condition != "done"


@pytest.mark.parametrize("name", ["curves.jsonl", "config.yaml"])
def test_file_that_lost_its_end_at_a_line_is_damaged_and_so_is_one_that_is_gone(name: str, run: Run) -> None:
    """Such a file is well-formed: only the note of the finished training knows that it was longer."""
    path = run.directory / name
    path.write_text(path.read_text() + path.read_text().replace("epoch", "other").replace("model", "data"))
    write_fitted(run.directory, {"seconds": 1.0})
    assert state_of(run).condition == "done"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))
    assert damaged_files(run.directory) == [path] and state_of(run).condition == "interrupted"
    path.unlink()
    assert damaged_files(run.directory) == [path]
    assert [str(path) in said for said in set_aside_damaged(run.directory)] == [True]
    assert not is_trained(run) and not damaged_files(run.directory)  # the next worker takes the training up again


def test_measured_noise_that_changed_or_is_gone_is_measured_again_before_a_test_copies_it(run: Run) -> None:
    path = RunDirectory(run.directory).noise
    path.write_text(path.read_text().replace("0.5", "0.7"))  # well-formed
    assert damaged_files(run.directory) == [path] and state_of(run).condition == "interrupted"
    path.unlink()
    assert damaged_files(run.directory) == [path]
    assert [str(path) in said for said in set_aside_damaged(run.directory)] == [True]
    assert not is_trained(run) and not damaged_files(run.directory)  # the next worker takes the training up again


WELL_FORMED = [
    "{}",
    '{"a": 1}',
    '{"corruption": "clean"}',
    '{"source": 1, "cells": 5}',
    '{"source": "a", "cells": [3]}',
]


@pytest.mark.parametrize("content", [*WELL_FORMED, "[" * 100_000])
@pytest.mark.parametrize("pattern", ["tested/*.json", "results.jsonl"])
def test_well_formed_file_that_says_something_else_is_damaged(pattern: str, content: str, run: Run) -> None:
    (path,) = run.directory.glob(pattern)
    path.write_text(content)
    assert state_of(run).condition == "interrupted" and damaged_files(run.directory) == [path]
    set_aside_damaged(run.directory)
    assert not damaged_files(run.directory) and state_of(run).condition != "done"


@pytest.mark.parametrize("content", ['{"phase": "fit"}', '{"phase": "fit", "epoch": "x", "batch": []}', "[" * 100_000])
def test_progress_of_any_content_is_shown(content: str, run: Run) -> None:
    (run.directory / FITTED).unlink()
    (run.directory / "progress.json").write_text(content)
    assert how_far(state_of(run).progress)[1] in ("epoch 1 of ?", "starting")


def test_run_that_lost_the_outputs_of_a_test_is_tested_again(run: Run) -> None:
    (record,) = (run.directory / TESTED).glob("*.json")
    (outputs,) = run.directory.glob("outputs/*.npz")
    record.write_text(json.dumps({**json.loads(record.read_text()), "outputs": [outputs.name]}))
    assert state_of(run).condition == "done"
    outputs.unlink()
    assert is_trained(run) and state_of(run).condition != "done"


def test_rows_that_can_be_read_stay(run: Run) -> None:
    path = run.directory / "results.jsonl"
    before = RunDirectory(run.directory).rows()
    path.write_text(path.read_text() + '{"corruption": "pix')
    assert state_of(run).condition == "interrupted" and RunDirectory(run.directory).rows() == before
    set_aside_damaged(run.directory)
    assert RunDirectory(run.directory).rows() == before and state_of(run).condition == "done"


def test_second_damage_does_not_overwrite_what_was_set_aside(run: Run) -> None:
    for content in ("one", "two"):
        (run.directory / FITTED).write_text(content)
        set_aside_damaged(run.directory)
    assert [(run.directory / f"{FITTED}.damaged{n}").read_text() for n in (1, 2)] == ["one", "two"]


def test_damaged_run_is_worked_on_again_by_the_same_command(write_study: Write, tmp_path: Path) -> None:
    study = write_study()
    ended(start_stub(study, tmp_path / "runs"))
    first, second = toy_runs(study, tmp_path / "runs")
    (record,) = (first.directory / TESTED).glob("*.json")
    record.write_text("{")
    assert ended(start_stub(study, tmp_path / "runs"))["failed"] == {}
    assert (attempts(first), attempts(second)) == (2, 1)
    assert state_of(first).condition == "done" and record.with_name(f"{record.name}.damaged1").read_text() == "{"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_described_and_refused(
    number: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (run.directory / ".study.lock").touch()
    (run.directory / "results.jsonl").unlink()
    state = state_of(run)
    assert state.condition == "missing" and "does not support file locks" in state.trouble[0]
    with pytest.raises(OSError, match="Give a --root on a file system that does"):
        require_locks(run.root)
    monkeypatch.setattr(runner, "start_warm", lambda *_: pytest.fail("a worker is started"))
    with pytest.raises(OSError, match="Give a --root on a file system that does"):
        Runner([run], Display(Console(quiet=True)), 1, 1, "no.such.module")()


def test_lock_is_asked_for_without_writing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.directory / "results.jsonl").unlink()
    lock = run.directory / ".study.lock"
    lock.touch()
    opened = os.open

    def read_only(path: object, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    assert state_of(run).condition == "missing"
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert state_of(run).condition == "running"


def test_directory_that_cannot_be_read_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *rest: object, **more: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    state = state_of(run)
    assert state.condition == "missing" and "cannot be read: Permission denied" in state.trouble[0]
