"""What a run directory says about its run: done, running, failed, cut or missing."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from chaosgate.run_directory import RunDirectory
from chaosgate.study.runs import Run

Condition = Literal["done", "running", "queued", "failed", "cut", "missing"]
LOG, CURVES = "log.txt", "curves.jsonl"
PROGRESS, FITTED, DONE, FAILED = "progress.json", "fitted.json", "done.json", "failed.json"
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
    done = read_json(directory / DONE)
    if is_done(directory, run.test_hash):
        return State("done", record=done)
    progress = read_json(directory / PROGRESS)
    if is_locked(directory):
        return State("running", progress)
    if failed := read_json(directory / FAILED):
        return State("failed", progress, failed)
    begun = progress or done or RunDirectory(directory).resumable() is not None
    return State("cut" if begun else "missing", progress)


def is_done(directory: Path, test_hash: str) -> bool:
    """Whether the run was tested as asked and every row is there."""
    done = read_json(directory / DONE)
    return done.get("test_hash") == test_hash and not missing_cells(directory, done)


def missing_cells(directory: Path, done: dict[str, Any]) -> list[Sequence[Any]]:
    """Cells that the record promises and the results file does not have."""
    have = {(row["checkpoint"], row["corruption"], row["severity"]) for row in result_rows(directory)}
    return [cell for cell in done["cells"] if (done["checkpoint"], *cell) not in have]


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
