"""The state of a run from the files in its directory, and the table of a study's runs.

A run is *done* if the rows of all its tests exist, *running* while a process holds its lock, and
*failed* if the last attempt left ``failed.json``. Files are written atomically. A file that still
cannot be read is named, and the next runner renames it and repeats the work that made it.
"""

import json
import os
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from rich.console import Group
from rich.table import Table
from rich.text import Text

from chaosgate.run.files import DIGEST, RunDirectory, read_lines, with_digest, write_json
from chaosgate.run.outputs import sample_files
from chaosgate.study.plan.runs import Run

Condition = Literal["done", "running", "queued", "failed", "interrupted", "missing"]
LOG, FITTED, FAILED, TESTED = "log.txt", "fitted.json", "failed.json", "tested"
LOCK = ".study.lock"


@dataclass(frozen=True)
class State:
    """Condition of a run, with its last notes.

    Args:
        condition: ``queued``: waits in the queue of a cluster. ``interrupted``: started and
            stopped, will be resumed. ``missing``: not started.
        progress: Phase, epoch, batch; empty before the first batch.
        record: Of a done run: seconds of training. Of a failed one: reason, attempts. Of a queued
            one: job.
        trouble: Sentences about files that cannot be read.
    """

    condition: Condition
    progress: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()


def state_of(run: Run) -> State:
    """The state of a run; changes nothing."""
    directory, files = run.directory, RunDirectory(run.directory)
    try:
        records = [record_of(directory, test) for test in run.test_outputs]
        fitted, damaged = read_json(directory / FITTED), unreadable(directory)
        if fitted and all(records) and not damaged:
            return State("done", record=fitted)
        progress = read_json(files.progress)
        if is_locked(directory):
            return State("running", progress)
        trouble = tuple(
            f"{p} cannot be read; 'study run' renames it and repeats the work" for p in damaged
        )
        if failed := read_json(directory / FAILED):
            return State("failed", progress, failed, trouble)
        started = any([fitted, *records, progress, damaged, *files.checkpoints.glob("*.ckpt")])
    except OSError as error:
        return State("missing", trouble=(f"{directory} cannot be read: {error.strerror or error}",))
    return State("interrupted" if started else "missing", progress, trouble=trouble)


def is_locked(directory: Path) -> bool:
    """Whether a process works on the run."""
    if not (directory / LOCK).exists():
        return False
    try:
        with FileLock(directory / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a read-only directory: no worker can use it
        return False


def record_of(directory: Path, test: str) -> dict[str, Any]:
    """The record of a finished test; empty if it is not finished, or lost its outputs."""
    record = read_json(directory / TESTED / f"{test}.json")
    outputs = [RunDirectory(directory).outputs / name for name in record.get("outputs", [])]
    return record if all(path.is_file() for path in outputs) else {}


def write_record(
    directory: Path, test: str, rows: Sequence[Mapping[str, Any]], outputs: str
) -> None:
    """Keep the rows of a finished test with the configuration and curves of its training."""
    files = RunDirectory(directory)
    lines = read_lines(files.curves)  # if an epoch was started twice, the last one counts
    record = {
        "rows": list(rows),
        "config": files.settings(),
        "curves": list({line["epoch"]: line for line in lines}.values()),
        "outputs": [path.name for path in sample_files(directory, outputs)],
    }
    (directory / TESTED).mkdir(exist_ok=True)
    write_json(directory / TESTED / f"{test}.json", with_digest(record))


def read_json(path: Path) -> dict[str, Any]:
    """Content of a small file; empty if there is none, or if it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    whole = content.get(DIGEST) in (None, with_digest(content)[DIGEST])
    return content if whole else {}


# -- files that cannot be read ---------------------------------------------------------------------


def unreadable(directory: Path) -> list[Path]:
    """Files that a report needs and that are damaged."""
    notes = [directory / FITTED, *sorted((directory / TESTED).glob("*.json"))]
    found = [path for path in notes if path.exists() and not read_json(path)]
    arrays = [*sorted(RunDirectory(directory).outputs.glob("*.npz")), *directory.glob("*.npz")]
    return found + [path for path in arrays if not zipfile.is_zipfile(path)]


def set_aside(directory: Path) -> list[Path]:
    """Rename files that cannot be read, and let the run be repeated; return the files.

    Only for the holder of the lock. A training resumes from its last checkpoint, so that mostly the
    tests are repeated.
    """
    damaged = unreadable(directory)
    for path in damaged:
        os.replace(path, path.with_name(f"{path.name}.damaged"))
    for note in [directory / FITTED, *(directory / TESTED).glob("*.json")] if damaged else []:
        note.unlink(missing_ok=True)
    return damaged


# -- the table of `study plan` and `study status` --------------------------------------------------


def overview(name: str, runs: Sequence[Run], states: Mapping[str, State]) -> Group:
    """Every run with its state and directory, then a summary."""
    grid = Table(title=f"study {name}: {len(runs)} runs")
    for head in ("run", "state"):
        grid.add_column(head, no_wrap=True)
    grid.add_column(f"directory in {runs[0].root}", overflow="fold")
    lines = []
    for run in runs:
        state = states[run.name]
        shown = str(state.condition)
        if state.condition == "queued":
            shown += f", job {state.record['job']}"
        elif state.condition in ("running", "interrupted"):
            shown += f", {how_far(state.progress)}"
        elif state.condition == "failed":
            lines.append(f"{run.title}: {state.record.get('reason')}")
        grid.add_row(run.title, shown, run.training)
    lines += dict.fromkeys(f"{one}." for state in states.values() for one in state.trouble)
    counts = Counter(state.condition for state in states.values())
    summary = ", ".join(f"{many} {condition}" for condition, many in counts.items())
    return Group(grid, *map(Text, [summary, *lines]))  # as text: brackets would be read as markup


def how_far(progress: Mapping[str, Any]) -> str:
    """The phase of a run.

    >>> how_far({"phase": "fit", "epoch": 2, "epochs": 10})
    'epoch 3 of 10'
    """
    if progress.get("phase") == "fit":
        return f"epoch {(progress.get('epoch') or 0) + 1} of {progress.get('epochs') or '?'}"
    return str(progress.get("phase", "starting"))
