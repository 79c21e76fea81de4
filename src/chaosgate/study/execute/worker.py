"""Train and test one run, in a process of its own.

The order is a file that the runner leaves in the run directory; output goes to the log. The worker takes the lock
before anything heavy is imported, continues where an earlier one was interrupted, and trains only if nobody has:
studies that share a training leave orders with different tests in the same directory.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from filelock import Timeout

from chaosgate.data.atomic import file_hash
from chaosgate.run.directory import RunDirectory, config_hash
from chaosgate.study.execute.state import (
    FAILED,
    FITTED,
    LOG,
    TESTED,
    lock_of,
    read_json,
    record_of,
    set_aside_damaged,
    source_of,
    write_fitted,
    write_json,
)
from chaosgate.study.plan.runs import Run

NO_ACCESS, BUSY, BAD_STUDY = 74, 75, 78
"""Exit status: the run directory cannot be used; another worker has the run; the study cannot run as written."""
ORDER = "run.json"
FORMAT = 2  # of orders; directories with older ones were named after another definition of "the same run"
_PROBE = 1.0  # seconds to wait for the lock: others hold it for a moment to see whether it is free
_QUIET = "--trainer.enable_progress_bar=false"


class Ended(Protocol):
    """How a command ended: its exit status, and the rows that a test has written."""

    @property
    def status(self) -> int: ...
    @property
    def rows(self) -> Sequence[dict[str, Any]]: ...


Execute = Callable[[Sequence[str]], Ended]
"""Carries out a command line of ``chaosgate fit|test`` in this process."""


def write_order(
    run: Run, threads: int, check: Sequence[Run] = (), others: Sequence[Run] = ()
) -> Path:
    """Leave everything the worker needs in the run directory; return the file that it is to be started with.

    Args:
        run: The run.
        threads: Of the worker.
        check: Runs whose data are looked for before anything is trained.
        others: Runs of the same training; their tests are done at the same time.
    """
    run.directory.mkdir(parents=True, exist_ok=True)
    tests = [test for one in (run, *others) for test in _tests(one)]
    order = {
        "format": FORMAT,
        "arguments": run.arguments(),
        "tests": tests,
        "threads": threads,
        "check": {name: data for other in check for name, data in data_of(other).items()},
    }
    path = run.directory / f"{config_hash([test['hash'] for test in tests])}-{ORDER}"
    for file in (
        path,
        run.directory / ORDER,
    ):  # the second for a worker that is given the directory
        write_json(file, order)
    return path


def _tests(run: Run) -> list[dict[str, Any]]:
    shared = {"checkpoint": run.checkpoint, "logits": run.logits}
    return [
        {
            "hash": name,
            "outputs": outputs,
            **shared,
            "ood": test.ood,
            "arguments": run.arguments(test),
        }
        for test, (name, outputs) in zip(run.tests, run.test_outputs.items(), strict=True)
    ]


def data_of(run: Run) -> dict[str, Any]:
    """What is configured as data of the training and of its tests, by a name for messages."""
    tests = zip(run.tests, run.test_configs, strict=True)
    return {
        run.variant: run.config.get("data"),
        **{
            f"{run.variant}, test {test.name}": config.get("data")
            for test, config in tests
            if test.parts
        },
    }


def with_lock(path: Path, work: Callable[[Path, dict[str, Any]], int]) -> int:
    """Do some work on a run as the only one, for the tests of an order that are missing; return the exit status.

    ``path`` is the order, or a run directory for the last order in it.
    """
    directory = path if path.is_dir() else path.parent
    try:
        order = read_json(path / ORDER if path.is_dir() else path)
        lock = lock_of(directory).acquire(timeout=_PROBE)
    except Timeout:
        return BUSY
    except OSError:  # deleted, read-only, full: the runner says so
        return NO_ACCESS
    with lock:
        try:
            _write_to(directory / LOG)
        except OSError:
            return NO_ACCESS
        try:
            if order.get("format") != FORMAT:
                print(
                    f"chaosgate study: {path} is not an order of this version. Start the study again.",
                    flush=True,
                )
                return 1
            for sentence in set_aside_damaged(directory):
                print(sentence, flush=True)
            order["tests"] = [
                test for test in order["tests"] if not record_of(directory, test["hash"])
            ]
            if not order["tests"] and read_json(directory / FITTED):
                return 0  # by another worker, between the runner's look and this one's lock
            (directory / FAILED).unlink(missing_ok=True)
            return work(directory, order)
        except OSError as error:
            print(
                f"chaosgate: {error}. Repair this, then start the study again to continue the run.",
                flush=True,
            )
            return 1


def _write_to(log: Path) -> None:
    """Let everything that this process prints go to the end of a file."""
    with open(log, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def train_and_test(directory: Path, order: dict[str, Any], execute: Execute) -> int:
    """What an order asks for and the directory does not have yet."""
    import torch  # after the lock: a worker that comes too late ends at once

    RunDirectory(directory).progress.unlink(missing_ok=True)
    torch.set_num_threads(order["threads"])
    if order["check"] and (complaint := missing_data(order["check"])):
        print(complaint, flush=True)
        return BAD_STUDY
    networks = {test["checkpoint"] for test in order["tests"]}
    if not read_json(directory / FITTED) or any(
        wrong_with(directory, network) for network in networks
    ):
        clock = (
            _Clock()
        )  # a damaged network is trained again from the checkpoint before it, if it is the last one
        resume = ["--resume"] if RunDirectory(directory).last.is_file() else []
        if status := execute(["fit", *order["arguments"], _QUIET, *resume]).status:
            return status
        write_fitted(directory, clock.read())
    for test in order["tests"]:
        clock = _Clock()
        if wrong := wrong_with(directory, test["checkpoint"]):
            print(
                f"chaosgate: {wrong}. Restore it, or delete {directory} to train the run again.",
                flush=True,
            )
            return 1
        checkpoint = RunDirectory(directory).selected(test["checkpoint"])
        outputs = f"--outputs={test['outputs']}"
        kept = [outputs, *(f"--{key}=true" for key in ("logits", "ood") if test.get(key))]
        done = execute(["test", *test["arguments"], _QUIET, *kept, f"--ckpt_path={checkpoint}"])
        if done.status:
            return done.status
        kept_files = sorted(RunDirectory(directory).outputs.glob(f"{test['outputs']}-*-of-*.npz"))
        cost = {**clock.read(), "threads": order["threads"]}
        digests = {path.name: file_hash(path) for path in kept_files}
        write_record(directory, test["hash"], done.rows, {**cost, "outputs": digests})
    return 0


def wrong_with(directory: Path, role: str) -> str | None:
    """What is wrong with the network that has a role; None if it is as the training wrote it, under its name."""
    from chaosgate.run.checkpoint import damage  # not at the top: it needs torch

    path = RunDirectory(directory).checkpoints / f"{role}.ckpt"
    if not path.is_file():
        return f"there is no checkpoint {path}"
    return damage(path)


def write_record(
    directory: Path, test: str, rows: Sequence[dict[str, Any]], more: dict[str, Any]
) -> None:
    """Note that a test is done, and which rows are its own; with its cost, and the digests of its kept files."""
    (directory / TESTED).mkdir(exist_ok=True)
    cells = [(row["corruption"], row["severity"]) for row in rows]
    record = {
        "checkpoint": rows[0]["checkpoint"],
        "source": source_of(rows[0]),
        "cells": cells,
        **more,
    }
    write_json(directory / TESTED / f"{test}.json", record)


class _Clock:
    """Time on the wall and on all cores, since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic(), time.process_time()

    def read(self) -> dict[str, float]:
        wall, cpu = self._start
        return {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}


def missing_data(data: Mapping[str, Any]) -> str | None:
    """What the first data module that does not find its folders has to say; None if all find them.

    Every data module is built once, which looks for its folders, e.g. for every cell; no image is read.
    """
    from jsonargparse import ArgumentParser
    from lightning.pytorch import LightningDataModule

    seen: set[str] = set()
    for name, entry in data.items():
        if (key := json.dumps(entry, sort_keys=True, default=str)) in seen:
            continue
        seen.add(key)
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(LightningDataModule, "data")
        try:
            parser.instantiate(parser.parse_object({"data": entry}))
        except (OSError, ValueError) as error:
            return f"method {name}: {' '.join(str(error).split())}"
    return None
