"""What a run directory says about its run: done, running, failed, interrupted or missing. Looking changes nothing.

Every file that is read back here is written in one step and reaches the disk before it has its name. Should one be
damaged all the same, it is named (:attr:`State.trouble`), the run counts as unfinished, and the next worker sets it
aside and makes it again (:func:`set_aside_damaged`). A row and a note have a digest in themselves
(:func:`~chaosgate.run.directory.with_digest`), so that a test may replace rows of another; of all other files the
notes have the digests: ``fitted.json`` of what the training has left, a record of the outputs that its test has kept.
"""

import errno
import fcntl
import json
import os
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock

from chaosgate.data.atomic import file_hash, replace_file
from chaosgate.run.directory import (
    DIGEST,
    SELECTION,
    RunDirectory,
    config_hash,
    is_row,
    is_unchanged,
    read_lines,
    with_digest,
)
from chaosgate.study.plan.runs import Run

Condition = Literal["done", "running", "queued", "failed", "interrupted", "missing"]
LOG, FITTED, FAILED = "log.txt", "fitted.json", "failed.json"
TESTED = "tested"  # folder of records, one per test that is done
LOCK = ".study.lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class State:
    """Condition of a run, with what the worker last wrote about it.

    Args:
        condition: ``done``: every cell has its row. ``running``: a worker holds the lock. ``queued``: waits in the
            queue of a cluster (:mod:`chaosgate.study.execute.slurm`). ``failed``: the last attempt ended in an error.
            ``interrupted``: started and stopped, will be resumed. ``missing``: not started.
        progress: Phase, epoch, batch; empty before the first batch.
        record: Of a done run: seconds, threads, checkpoint, cells. Of a failed one: attempts, status, last lines.
        trouble: Sentences about damaged files, or about what could not be found out.
    """

    condition: Condition
    progress: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()


class NoLocks(OSError):
    """The file system cannot lock files."""


def state_of(run: Run) -> State:
    """Look, without changing anything."""
    directory = run.directory
    trouble: list[str] = []
    try:
        records = [record_of(directory, test) for test in run.test_outputs]
        fitted = read_json(directory / FITTED)
        if fitted and all(records) and not damaged_files(directory):
            return State("done", record=_together(fitted, records))
        progress = read_json(RunDirectory(directory).progress)
        try:
            if is_locked(directory):
                return State(
                    "running", progress
                )  # its files are being written; the worker has looked at them
        except NoLocks as error:
            trouble.append(str(error))
        damaged = damaged_files(directory)
        repair = (
            "'study run' renames it and recreates it"
            if run.named is None
            else "restore it, or pack it again"
        )
        trouble += [f"{path} is damaged; {repair}" for path in damaged]
        if failed := read_json(directory / FAILED):
            return State("failed", progress, failed, tuple(trouble))
        begun = (
            progress
            or any(records)
            or damaged
            or any(RunDirectory(directory).checkpoints.glob("*.ckpt"))
        )
    except OSError as error:
        return State("missing", trouble=(f"{directory} cannot be read: {error.strerror or error}",))
    return State("interrupted" if begun else "missing", progress, trouble=tuple(trouble))


def is_trained(run: Run) -> bool:
    """Whether the training is over, whoever asked for it; the run may lack tests."""
    return bool(read_json(run.directory / FITTED))


def record_of(directory: Path, test: str) -> dict[str, Any]:
    """What the worker wrote about a test when it was done; empty if it is not done, or has lost a row."""
    record = read_json(directory / TESTED / f"{test}.json")
    if not _is_record(record):
        return {}
    have = _rows_by_cell(directory)
    rows = [have.get((record["source"], *cell)) for cell in record["cells"]]
    return record if all(row and (DIGEST in row or DIGEST not in record) for row in rows) else {}


def rows_of(directory: Path, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that the records name; where two tests share a cell (mostly the clean one), that of the first."""
    rows = _rows_by_cell(directory)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        for corruption, severity in record["cells"]:
            found.setdefault((corruption, severity), rows[record["source"], corruption, severity])
    return list(found.values())


def _rows_by_cell(directory: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {
        (source_of(row), row["corruption"], row["severity"]): row
        for row in RunDirectory(directory).rows()
    }


def source_of(row: dict[str, Any]) -> str:
    """What the rows of one test have in common: network, noise at test time, images."""
    return config_hash(
        [row.get(key) for key in ("checkpoint", "checkpoint_name", "noise", "data", "transform")]
    )


def _together(fitted: dict[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The training and all tests as one record."""
    together: dict[str, Any] = {
        **records[0],
        "cells": [cell for record in records for cell in record["cells"]],
    }
    for key in ("seconds", "cpu_seconds"):
        together[key] = {
            "fit": fitted.get(key, 0.0),
            "test": sum(record.get(key, 0.0) for record in records),
        }
    return together


# -- damaged files -----------------------------------------------------------------------------------------------------


def damaged_files(directory: Path) -> list[Path]:
    """Files of a run that a study reads back and that cannot be what was written."""
    run, fitted = RunDirectory(directory), directory / FITTED
    digests = read_json(fitted)  # by name of the file
    records = {path: read_json(path) for path in sorted((directory / TESTED).glob("*.json"))}
    rows, wrong = read_lines(run.results)
    found = [fitted] if fitted.exists() and not digests else []
    found += [path for path, record in records.items() if not _is_record(record)]
    found += [run.results] if wrong or not all(map(is_row, rows)) else []
    outputs = {*run.outputs.glob("*.npz")}
    for kept in [
        record.get("outputs", []) for path, record in records.items() if path not in found
    ]:
        outputs |= {run.outputs / Path(name).name for name in kept}
        digests |= kept if isinstance(kept, dict) else {}
    for path in (*_left_by_training(run), *sorted(outputs)):
        if path.name in digests:
            is_whole = _digest(path) == digests[path.name]
        else:  # an earlier version has noted no digest, or nothing is noted yet
            is_whole = (
                _is_mapping(path)
                if path == run.config
                else path not in outputs or zipfile.is_zipfile(path)
            )
        found += [] if is_whole else [path]
    return found


def set_aside_damaged(directory: Path) -> list[str]:
    """Give damaged files another name; say what was done. For the worker that holds the lock of the run.

    The rows of ``results.jsonl`` that can be read stay. What the training has left comes back from the checkpoint when
    it is taken up again, and so does the note that it is over.
    """
    said = []
    run = RunDirectory(directory)
    for path in damaged_files(directory):
        number = next(
            n for n in range(1, 10_000) if not path.with_name(f"{path.name}.damaged{n}").exists()
        )
        aside = path.with_name(f"{path.name}.damaged{number}")
        rows = run.rows() if path == run.results else []
        if path in _left_by_training(run):  # first: a lost file has no other trace
            (directory / FITTED).unlink(missing_ok=True)
        if (
            path.parent == run.outputs
        ):  # the test is made again; early records do not say which files it has kept
            for record in (directory / TESTED).glob("*.json"):
                if path.name in read_json(record).get("outputs", [path.name]):
                    record.unlink()
        if not path.exists():
            said.append(f"chaosgate study: {path} was lost; it is recreated.")
            continue
        os.replace(path, aside)
        if rows:
            replace_file(path, "".join(json.dumps(row) + "\n" for row in rows))
        said.append(
            f"chaosgate study: {path} was damaged; it is renamed to {aside.name} and recreated."
        )
    return said


def write_fitted(directory: Path, cost: dict[str, Any]) -> None:
    """Note that the training is over, and what it has left: half a curve may be a well-formed file."""
    files = _left_by_training(RunDirectory(directory))
    write_json(directory / FITTED, {**cost, **{path.name: _digest(path) for path in files}})


def _left_by_training(run: RunDirectory) -> tuple[Path, ...]:
    """Files that are read afterwards: the last one where a copy has lost its links, if the networks are kept at all."""
    return run.config, run.curves, run.noise, *run.checkpoints.glob(SELECTION)


def _digest(path: Path) -> str | None:
    return file_hash(path) if path.exists() else None


def _is_record(record: dict[str, Any]) -> bool:
    """Whether a note about a test says which rows are its own."""
    cells, files = record.get("cells"), record.get("outputs", [])
    if not ("source" in record and isinstance(cells, list) and isinstance(files, list | dict)):
        return False
    return all(isinstance(cell, list) for cell in cells) and all(
        isinstance(name, str) for name in files
    )


def _is_mapping(path: Path) -> bool:
    try:
        return not path.exists() or isinstance(
            yaml.load(path.read_text(encoding="utf-8"), _Loader), dict
        )
    except (yaml.YAMLError, ValueError):
        return False


# -- locks and small files ---------------------------------------------------------------------------------------------


def lock_of(directory: Path) -> FileLock:
    """Held by the worker for as long as it works on the run, training and test."""
    directory.mkdir(parents=True, exist_ok=True)
    return FileLock(directory / LOCK)


def is_locked(directory: Path) -> bool:
    """Whether a living process works on the run; asked with a shared lock, for which a file need not be writable."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise NoLocks(
                f"the file system of {directory.parent} does not support file locks ({error.strerror}), so it "
                "cannot be known whether another process is working on a run"
            ) from error
        raise
    finally:
        os.close(descriptor)
    return False


def require_locks(folder: Path) -> None:
    """Refuse a folder in which two processes could not be kept from working on one run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    path.touch()
    try:
        is_locked(folder)
    except NoLocks as error:
        raise OSError(
            f"the file system of {folder} does not support file locks ({error.__cause__}): two processes could write "
            "to one run. Give a --root on a file system that does."
        ) from error
    finally:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Content of a small file; empty if there is none, or if it is damaged or changed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and is_unchanged(content) else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a small file in one step, with the time and the process that wrote it."""
    replace_file(
        path, json.dumps(with_digest({**content, "time": time.time(), "pid": os.getpid()}))
    )
