"""``python -m chaosgate.study.execute.worker ORDER``: train and test one run in one process.

The order is a file that the runner leaves in the run directory; output goes to the log. The worker takes the lock
before anything heavy is imported, goes on where an earlier one was cut, and trains only if nobody has: studies that
share a training leave orders with different tests in the same directory.
"""

import argparse
import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from filelock import Timeout

from chaosgate.run.directory import RunDirectory
from chaosgate.run.provenance import config_hash
from chaosgate.study.execute.data_check import DataCheck
from chaosgate.study.execute.state import (
    FAILED,
    FITTED,
    LOG,
    TESTED,
    lock_of,
    read_json,
    record_of,
    source_of,
    write_json,
)
from chaosgate.study.plan.runs import Run

BUSY, BAD_STUDY = 75, 78  # exit status: another worker has the run; the study cannot run as written
ORDER = "run.json"
_PROBE = 1.0  # seconds to wait for the lock: others hold it for a moment to see whether it is free
_QUIET = "--trainer.enable_progress_bar=false"


def write_order(run: Run, threads: int, check: Sequence[Run] = (), others: Sequence[Run] = ()) -> Path:
    """Leave everything the worker needs in the run directory; return the file that it is to be started with.

    Args:
        run: The run.
        threads: Of the worker.
        check: Runs whose configurations are to be parsed before anything is trained.
        others: Runs of the same training; their tests are done in passing.
    """
    run.directory.mkdir(parents=True, exist_ok=True)
    tests = [test for one in (run, *others) for test in _tests(one)]
    order = {
        "arguments": run.arguments(),
        "tests": tests,
        "threads": threads,
        "check": {name: words for other in check for name, words in configurations(other).items()},
    }
    path = run.directory / f"{config_hash([test['hash'] for test in tests])}-{ORDER}"
    for file in (path, run.directory / ORDER):  # the second for a worker that is given the directory
        write_json(file, order)
    return path


def _tests(run: Run) -> list[dict[str, Any]]:
    return [
        {"hash": name, "outputs": outputs, "checkpoint": run.checkpoint, "arguments": run.arguments(test)}
        for test, (name, outputs) in zip(run.tests, run.test_outputs.items(), strict=True)
    ]


def configurations(run: Run) -> dict[str, list[str]]:
    """Command lines of the training and of its tests on other data, by a name for messages."""
    tests = {f"{run.variant}, test {test.name}": ["test", *run.arguments(test)] for test in run.tests if test.parts}
    return {run.variant: ["fit", *run.arguments()], **tests}


def main(arguments: Sequence[str] | None = None, work: Callable[[Path, dict[str, Any]], int] | None = None) -> int:
    """Do the work on one run, training and test unless told otherwise; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m chaosgate.study.execute.worker", description=__doc__)
    parser.add_argument("order", type=Path, help="the runner's order, or the run directory for the last one")
    path: Path = parser.parse_args(arguments).order
    directory = path if path.is_dir() else path.parent
    order = read_json(path / ORDER if path.is_dir() else path)
    try:
        with lock_of(directory).acquire(timeout=_PROBE):
            order["tests"] = [test for test in order["tests"] if not record_of(directory, test["hash"])]
            if not order["tests"]:
                return 0  # by another worker, between the runner's look and this one's lock
            (directory / FAILED).unlink(missing_ok=True)
            return (work or _train_and_test)(directory, order)
    except Timeout:
        return BUSY


def _train_and_test(directory: Path, order: dict[str, Any]) -> int:
    RunDirectory(directory).progress.unlink(missing_ok=True)
    with open(directory / LOG, "a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import torch

    from chaosgate.commands.fit import execute

    torch.set_num_threads(order["threads"])
    if order["check"] and (complaint := first_complaint(order["check"], with_data=True)):
        print(complaint, flush=True)
        return BAD_STUDY
    if not (directory / FITTED).exists():
        clock = _Clock()
        if status := execute(["fit", *order["arguments"], _QUIET, "--resume"]).status:
            return status
        write_json(directory / FITTED, clock.read())
    for test in order["tests"]:
        clock = _Clock()
        checkpoint = RunDirectory(directory).selected(test["checkpoint"])
        outputs = f"--outputs={test['outputs']}"
        done = execute(["test", *test["arguments"], _QUIET, outputs, f"--ckpt_path={checkpoint}"])
        if done.status:
            return done.status
        write_record(directory, test["hash"], done.rows, {**clock.read(), "threads": order["threads"]})
    return 0


def write_record(directory: Path, test: str, rows: Sequence[dict[str, Any]], cost: dict[str, Any]) -> None:
    """Note that a test is done, and which rows are its own."""
    (directory / TESTED).mkdir(exist_ok=True)
    cells = [(row["corruption"], row["severity"]) for row in rows]
    record = {"checkpoint": rows[0]["checkpoint"], "source": source_of(rows[0]), "cells": cells, **cost}
    write_json(directory / TESTED / f"{test}.json", record)


class _Clock:
    """Time on the wall and on all cores, since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        wall, cpu = self._start
        return {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}


def first_complaint(configurations: dict[str, list[str]], with_data: bool = False) -> str | None:
    """What the command line has against the first configuration that it refuses; parsing only, nothing is built.

    Args:
        configurations: Command lines by a name for messages; without a subcommand, of ``fit``.
        with_data: Also ask the data modules whether their folders are there.
    """
    from chaosgate.commands.fit import main as chaosgate

    data = DataCheck() if with_data else None
    for name, words in configurations.items():
        errors, printed = io.StringIO(), io.StringIO()
        words = words if words[0] in ("fit", "test") else ["fit", *words]
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
                status = chaosgate([*words, "--print_config"])
        except SystemExit as stop:  # how argparse leaves after printing
            status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if status:
            return f"method {name}: {errors.getvalue().strip()}"
        if data is not None and (missing := data.complaint(yaml.safe_load(printed.getvalue()))):
            return f"method {name}: {missing}"
    return None


if __name__ == "__main__":
    sys.exit(main())
