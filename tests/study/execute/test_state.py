"""What run directories in a bad state say: damaged files, no locks, nothing to read."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from chaosgate.run.directory import RunDirectory
from chaosgate.run.rows import merge_rows
from chaosgate.study import Run
from chaosgate.study.execute import runner
from chaosgate.study.execute.display import Display, how_far
from chaosgate.study.execute.runner import Runner
from chaosgate.study.execute.state import (
    FITTED,
    TESTED,
    damaged_files,
    is_trained,
    record_of,
    require_locks,
    rows_of,
    set_aside_damaged,
    state_of,
    write_fitted,
    write_json,
)
from tests.study.execute.stub_runner import attempts, ended, start_stub
from tests.study.made import finish, keep
from tests.study.toy_studies import Plan, Write, toy_runs

CELLS = {("clean", 0): {"top1": 0.5, "nll": 1.0, "ece": 0.1}}
FILES = "fitted.json tested/*.json results.jsonl curves.jsonl config.yaml noise.json outputs/*.npz".split()
FILES.append("checkpoints/selection.json")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "noise": lambda whole: b"\x00\xff{[:",
    "flip": lambda whole: flip(whole, len(whole) // 2),
}


def flip(whole: bytes, at: int) -> bytes:
    """Flip one bit; a digit stays a digit, and its file well-formed."""
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


@pytest.fixture
def run(plan: Plan) -> Run:
    """A finished run with all the files that a study reads back."""
    run = plan()[0]
    finish(run, CELLS)
    RunDirectory(run.directory).noise.write_text('[{"stage": "L4", "energy": 0.5}]')
    RunDirectory(run.directory).checkpoints.mkdir()
    (RunDirectory(run.directory).checkpoints / "selection.json").write_text(
        '{"last": "epoch-0003.ckpt"}'
    )
    write_fitted(run.directory, {"seconds": 1.0})
    keep(run, list(CELLS), *(np.ones((1, 4)), np.ones((1, 4), bool), np.ones((1, 4))))
    assert state_of(run).condition == "done" and not state_of(run).trouble
    return run


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_named_set_aside_and_the_run_is_unfinished(
    pattern: str, damage: str, run: Run
) -> None:
    (path,) = run.directory.glob(pattern)
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    state = state_of(run)
    assert state.condition == "interrupted"
    assert [str(path) in sentence and "damaged" in sentence for sentence in state.trouble] == [True]
    assert path.read_bytes() != whole and damaged_files(run.directory) == [
        path
    ]  # looking changes nothing
    (said,) = set_aside_damaged(run.directory)
    assert str(path) in said and path.with_name(f"{path.name}.damaged1").exists()
    assert not damaged_files(run.directory) and state_of(run).condition != "done"


@pytest.mark.parametrize("name", ["curves.jsonl", "config.yaml"])
def test_file_that_lost_its_end_at_a_line_is_damaged_and_so_is_one_that_is_gone(
    name: str, run: Run
) -> None:
    """Such a file is well-formed: only the note of the finished training knows that it was longer."""
    path = run.directory / name
    path.write_text(
        path.read_text() + path.read_text().replace("epoch", "other").replace("model", "data")
    )
    write_fitted(run.directory, {"seconds": 1.0})
    assert state_of(run).condition == "done"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))
    assert damaged_files(run.directory) == [path] and state_of(run).condition == "interrupted"
    path.unlink()
    assert damaged_files(run.directory) == [path]
    assert [str(path) in said for said in set_aside_damaged(run.directory)] == [True]
    assert not is_trained(run) and not damaged_files(
        run.directory
    )  # the next worker takes the training up again


def test_measured_noise_that_changed_or_is_gone_is_measured_again_before_a_test_copies_it(
    run: Run,
) -> None:
    path = RunDirectory(run.directory).noise
    path.write_text(path.read_text().replace("0.5", "0.7"))  # well-formed
    assert damaged_files(run.directory) == [path] and state_of(run).condition == "interrupted"
    path.unlink()
    assert damaged_files(run.directory) == [path]
    assert [str(path) in said for said in set_aside_damaged(run.directory)] == [True]
    assert not is_trained(run) and not damaged_files(
        run.directory
    )  # the next worker takes the training up again


WELL_FORMED = [
    "{}",
    '{"a": 1}',
    '{"corruption": "clean"}',
    '{"source": 1, "cells": 5}',
    '{"source": "a", "cells": [3]}',
]


@pytest.mark.parametrize("content", [*WELL_FORMED, "[" * 100_000])
@pytest.mark.parametrize("pattern", ["tested/*.json", "results.jsonl"])
def test_well_formed_file_that_says_something_else_is_damaged(
    pattern: str, content: str, run: Run
) -> None:
    (path,) = run.directory.glob(pattern)
    path.write_text(content)
    assert state_of(run).condition == "interrupted" and damaged_files(run.directory) == [path]
    set_aside_damaged(run.directory)
    assert not damaged_files(run.directory) and state_of(run).condition != "done"


@pytest.mark.parametrize(
    "content", ['{"phase": "fit"}', '{"phase": "fit", "epoch": "x", "batch": []}', "[" * 100_000]
)
def test_progress_of_any_content_is_shown(content: str, run: Run) -> None:
    (run.directory / FITTED).unlink()
    (run.directory / "progress.json").write_text(content)
    assert how_far(state_of(run).progress)[1] in ("epoch 1 of ?", "starting")


NUMBERS = {
    "results.jsonl": b'"nll": 1',
    "tested/*.json": b'"seconds": 3',
    "fitted.json": b'"seconds": 1',
}


@pytest.mark.parametrize("pattern", NUMBERS)
def test_one_digit_of_a_well_formed_file_is_noticed(pattern: str, run: Run) -> None:
    (path,) = run.directory.glob(pattern)
    whole, number = path.read_bytes(), NUMBERS[pattern]
    path.write_bytes(flip(whole, whole.index(number) + len(number) - 1))
    json.loads(path.read_bytes())
    assert damaged_files(run.directory) == [path] and state_of(run).condition == "interrupted"


def test_row_whose_digest_has_lost_its_name_is_made_again(run: Run) -> None:
    path = RunDirectory(run.directory).results
    path.write_text(path.read_text().replace('"digest"', '"eigest"'))
    assert state_of(run).condition != "done"


def test_row_that_another_test_has_replaced_is_no_damage(run: Run) -> None:
    """By hand, or for another study: the same cell of the same network, with other labels, on another machine."""
    (row,) = RunDirectory(run.directory).rows()
    merge_rows(
        RunDirectory(run.directory).results,
        [{**row, "study": "other", "nll": 1.25}, {**row, "severity": 1}],
    )
    assert state_of(run).condition == "done" and not state_of(run).trouble
    assert [
        found["nll"]
        for found in rows_of(run.directory, [record_of(run.directory, *run.test_outputs)])
    ] == [1.25]


def test_run_whose_networks_were_deleted_is_still_done(run: Run) -> None:
    shutil.rmtree(RunDirectory(run.directory).checkpoints)
    assert state_of(run).condition == "done"


@pytest.mark.parametrize("names", [True, False])
def test_run_of_an_earlier_version_is_read_as_it_was(names: bool, run: Run) -> None:
    """Without digests, and without the names of kept outputs in the very first records."""
    (record,) = (run.directory / TESTED).glob("*.json")
    (outputs,) = run.directory.glob("outputs/*.npz")
    for path in (record, run.directory / FITTED, RunDirectory(run.directory).results):
        old = {
            key: value
            for key, value in json.loads(path.read_text()).items()
            if key not in ("digest", "outputs")
        }
        path.write_text(
            json.dumps({**old, "outputs": [outputs.name]} if names and path == record else old)
        )
    assert state_of(run).condition == "done" and not state_of(run).trouble
    whole = outputs.read_bytes()
    outputs.write_bytes(whole[: len(whole) // 2])
    assert damaged_files(run.directory) == [outputs] and state_of(run).condition == "interrupted"
    set_aside_damaged(run.directory)
    assert not record.exists()


def test_run_that_lost_the_outputs_of_a_test_is_tested_again(run: Run) -> None:
    (outputs,) = run.directory.glob("outputs/*.npz")
    outputs.unlink()
    assert damaged_files(run.directory) == [outputs] and state_of(run).condition != "done"
    assert ["was lost" in said for said in set_aside_damaged(run.directory)] == [True]
    assert is_trained(run) and not record_of(run.directory, *run.test_outputs)


def test_only_the_test_that_kept_damaged_outputs_is_made_again(run: Run) -> None:
    other = run.directory / TESTED / "other.json"
    write_json(other, {**record_of(run.directory, *run.test_outputs), "outputs": {}})
    (outputs,) = run.directory.glob("outputs/*.npz")
    outputs.write_bytes(b"")
    set_aside_damaged(run.directory)
    assert list(other.parent.iterdir()) == [other]


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


def test_damaged_run_is_worked_on_again_by_the_same_command(
    write_study: Write, tmp_path: Path
) -> None:
    study = write_study(seeds=[0, 1])
    ended(start_stub(study, tmp_path / "runs"))
    first, second, third, fourth = toy_runs(study, tmp_path / "runs")
    (record,) = (first.directory / TESTED).glob("*.json")
    record.write_text("{")
    results = second.directory / "results.jsonl"
    whole = results.read_text()
    results.write_text(whole.replace('"nll": 1.0', '"nll": 1.1'))
    assert ended(start_stub(study, tmp_path / "runs"))["failed"] == {}
    assert [attempts(run) for run in (first, second, third, fourth)] == [2, 2, 1, 1]
    assert (
        state_of(first).condition == "done"
        and record.with_name(f"{record.name}.damaged1").read_text() == "{"
    )
    assert state_of(second).condition == "done" and results.read_text() == whole


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
