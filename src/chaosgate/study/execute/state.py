"""What a run directory says about its run: done, running, failed, cut or missing."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from chaosgate.run.directory import RunDirectory
from chaosgate.run.provenance import config_hash
from chaosgate.study.plan.runs import Run

Condition = Literal["done", "running", "queued", "failed", "cut", "missing"]
LOG, FITTED, FAILED = "log.txt", "fitted.json", "failed.json"
TESTED = "tested"  # folder of records, one per test that is done
LOCK = ".study.lock"


@dataclass(frozen=True)
class State:
    """Condition of a run, with what the worker last wrote about it.

    Args:
        condition: ``done``: every cell has its row. ``running``: a worker holds the lock. ``queued``: waits in the
            queue of a cluster (see ``launch.queue``). ``failed``: the last attempt ended in an error. ``cut``: begun,
            stopped, will be resumed. ``missing``: not begun.
        progress: Phase, epoch, batch; empty before the first batch.
        record: Of a done run: seconds, threads, checkpoint, cells. Of a failed one: attempts, status, last lines.
    """

    condition: Condition
    progress: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)


def state_of(run: Run) -> State:
    """Look, without changing anything."""
    directory = run.directory
    records = [record_of(directory, test) for test in run.test_outputs]
    if all(records):
        return State("done", record=_together(read_json(directory / FITTED), records))
    progress = read_json(RunDirectory(directory).progress)
    if is_locked(directory):
        return State("running", progress)
    if failed := read_json(directory / FAILED):
        return State("failed", progress, failed)
    begun = progress or any(records) or any(RunDirectory(directory).checkpoints.glob("*.ckpt"))
    return State("cut" if begun else "missing", progress)


def is_trained(run: Run) -> bool:
    """Whether the training is over, whoever asked for it; the run may lack tests."""
    return (run.directory / FITTED).exists()


def record_of(directory: Path, test: str) -> dict[str, Any]:
    """What the worker wrote about a test when it was done; empty if it is not done or one of its rows is lost."""
    record = read_json(directory / TESTED / f"{test}.json")
    if not record:
        return {}
    have = {(source_of(row), row["corruption"], row["severity"]) for row in result_rows(directory)}
    return record if all((record["source"], *cell) in have for cell in record["cells"]) else {}


def rows_of(directory: Path, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that the records speak of; where two tests share a cell (clean, mostly), that of the first."""
    rows = {(source_of(row), row["corruption"], row["severity"]): row for row in result_rows(directory)}
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        for corruption, severity in record["cells"]:
            found.setdefault((corruption, severity), rows[record["source"], corruption, severity])
    return list(found.values())


def source_of(row: dict[str, Any]) -> str:
    """What the rows of one test have in common: network, noise at test time, images."""
    return config_hash([row.get(key) for key in ("checkpoint", "checkpoint_name", "noise", "data", "transform")])


def _together(fitted: dict[str, Any], records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The training and all tests as one record."""
    together: dict[str, Any] = {**records[0], "cells": [cell for record in records for cell in record["cells"]]}
    for key in ("seconds", "cpu_seconds"):
        together[key] = {"fit": fitted.get(key, 0.0), "test": sum(record.get(key, 0.0) for record in records)}
    return together


def result_rows(directory: Path) -> list[dict[str, Any]]:
    """Rows of a run; none if it was never tested."""
    path = RunDirectory(directory).results
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def lock_of(directory: Path) -> FileLock:
    """Held by the worker for as long as it works on the run, training and test."""
    directory.mkdir(parents=True, exist_ok=True)
    return FileLock(directory / LOCK)


def is_locked(directory: Path) -> bool:
    """Whether a living process works on the run."""
    if not (directory / LOCK).exists():
        return False
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def read_json(path: Path) -> dict[str, Any]:
    """Content of a small file; empty if there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a small file in one step: a reader sees the old content or the new, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({**content, "time": time.time(), "pid": os.getpid()}), encoding="utf-8")
    os.replace(temporary, path)
