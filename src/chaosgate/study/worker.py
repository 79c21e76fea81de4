"""``python -m chaosgate.study.worker DIRECTORY``: train and test one run in one process.

The runner starts it with ``run.json`` in the directory; output goes to the log. It takes the lock before anything
heavy is imported, goes on where an earlier worker was cut, and writes ``done.json`` last.
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

from filelock import Timeout

from chaosgate.study.runs import Run
from chaosgate.study.state import DONE, FAILED, FITTED, LOG, PROGRESS, is_done, lock_of, read_json, write_json

BUSY, BAD_STUDY = 75, 78  # exit status: another worker has the run; the study cannot run as written
ORDER = "run.json"
_PROBE = 1.0  # seconds to wait for the lock: others hold it for a moment to see whether it is free
_CALLBACKS = ("last_epoch.KeepLastEpoch", "progress.WriteProgress", "curves.WriteCurves", "outputs.KeepOutputs")


def write_order(run: Run, threads: int, check: Sequence[Run] = ()) -> None:
    """Leave everything the worker needs in the run directory."""
    run.directory.mkdir(parents=True, exist_ok=True)
    order = {
        "arguments": run.arguments(),
        "test_hash": run.test_hash,
        "checkpoint": str(run.directory / "checkpoints" / f"{run.checkpoint}.ckpt"),
        "threads": threads,
        "check": {other.variant: other.arguments() for other in check},
    }
    write_json(run.directory / ORDER, order)


def main(arguments: Sequence[str] | None = None, work: Callable[[Path, dict[str, Any]], int] | None = None) -> int:
    """Do the work on one run, training and test unless told otherwise; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m chaosgate.study.worker", description=__doc__)
    parser.add_argument("directory", type=Path, help="run directory with run.json, as the runner left it")
    directory: Path = parser.parse_args(arguments).directory
    order = read_json(directory / ORDER)
    try:
        with lock_of(directory).acquire(timeout=_PROBE):
            if is_done(directory, order["test_hash"]):
                return 0  # by another worker, between the runner's look and this one's lock
            (directory / FAILED).unlink(missing_ok=True)
            return (work or _train_and_test)(directory, order)
    except Timeout:
        return BUSY


def _train_and_test(directory: Path, order: dict[str, Any]) -> int:
    (directory / PROGRESS).unlink(missing_ok=True)
    with open(directory / LOG, "a", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    import torch

    from chaosgate.cli import main as chaosgate

    torch.set_num_threads(order["threads"])
    if order["check"] and (complaint := first_complaint(order["check"])):
        print(complaint, flush=True)
        return BAD_STUDY
    callbacks = [f"--trainer.callbacks+=chaosgate.study.{name}" for name in _CALLBACKS]
    words = [*order["arguments"], *callbacks, "--trainer.enable_progress_bar=false"]
    fitted = read_json(directory / FITTED)
    if not fitted:
        clock = _Clock()
        if status := chaosgate(["fit", *words, "--resume"]):
            return status
        fitted = clock.read()
        write_json(directory / FITTED, fitted)
    clock = _Clock()
    if status := chaosgate(["test", *words, f"--ckpt_path={order['checkpoint']}"]):
        return status
    write_json(directory / DONE, _record(directory, order, {"fit": fitted, "test": clock.read()}))
    return 0


class _Clock:
    """Time on the wall and on all cores, since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        wall, cpu = self._start
        return {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}


def first_complaint(configurations: dict[str, list[str]]) -> str | None:
    """What the command line has against the first configuration that it refuses; parsing only, nothing is built."""
    from chaosgate.cli import main as chaosgate

    for variant, words in configurations.items():
        errors = io.StringIO()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                status = chaosgate(["fit", *words, "--print_config"])
        except SystemExit as stop:  # how argparse leaves after printing
            status = stop.code if isinstance(stop.code, int) else 1
        if status:
            return f"method {variant}: {errors.getvalue().strip()}"
    return None


def _record(directory: Path, order: dict[str, Any], cost: dict[str, dict[str, float]]) -> dict[str, Any]:
    from chaosgate.provenance import file_hash

    return {
        "test_hash": order["test_hash"],
        "checkpoint": file_hash(order["checkpoint"]),
        "cells": read_json(directory / PROGRESS)["cells"],
        "seconds": {phase: spent["seconds"] for phase, spent in cost.items()},
        "cpu_seconds": {phase: spent["cpu_seconds"] for phase, spent in cost.items()},
        "threads": order["threads"],
    }


if __name__ == "__main__":
    sys.exit(main())
