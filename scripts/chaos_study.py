#!/usr/bin/env python3
"""Break the runs of a study in every way that happens to long ones, go on with the same order, and compare the rows.

    make chaos-study      all faults, about half an hour on two cores
    python scripts/chaos_study.py --only damage --most 5

Every fault happens in a real run that trains and tests a tiny network. In workers: SIGKILL or a full disk inside a
write (checkpoints, rows, records, progress and configuration all pass the same two system calls), damaged files of
every kind, a deleted or read-only directory, clocks that are wrong, locks that fail, a worker that is stopped and
continued, three workers at once, the first of two processes killed alone. In ``chaosgate study run``: runners killed,
alone or with their workers, stopped and continued, with a wrong clock, three at once. A fault is survived if whoever
comes next ends with the rows of an undisturbed run; the exit status is 1 if not.
"""

import argparse
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure
from rich.console import Console

from chaosgate.commands.fit import parsed
from chaosgate.commands.worker import main as worker
from chaosgate.inject import callback
from chaosgate.metrics.figure import log_figure
from chaosgate.run.directory import RunDirectory
from chaosgate.study import Run, load_study, plan_runs
from chaosgate.study.execute.state import read_json, state_of
from chaosgate.study.execute.worker import BUSY, write_order
from chaosgate.train import task

STUDY: dict[str, Any] = {
    "base": ["base", "data/fashion_mnist"],
    "overrides": {
        "trainer.max_epochs": 2,
        "trainer.limit_train_batches": 3,
        "trainer.limit_val_batches": 1,
        "trainer.enable_model_summary": False,
        "trainer.accelerator": "cpu",
        "model.backbone_args": {"channels": [8, 8, 8, 8]},
        "data.init_args.batch_size": 16,
        "data.init_args.corruptions": ["gaussian_noise"],
        "data.init_args.severities": [3],
    },
    "methods": {"gch": "noise/gch"},
    "reference": "gch",
    "checkpoint": "last",
}
FILES = "fitted.json tested/*.json results.jsonl curves.jsonl config.yaml noise.json outputs/*.npz".split()
FILES += "progress.json run.json checkpoints/selection.json checkpoints/epoch-*.ckpt checkpoints/last.ckpt".split()
ORIGIN = ("checkpoint", "commit", "noise_measured", "run", "study", "versions")  # of a row, besides its numbers
TWO = {"trainer.devices": 2, "trainer.strategy": "ddp"}
COMMAND = "import sys, time; from chaosgate.__main__ import main; {}; sys.exit(main(sys.argv[1:]))"
Sabotage = Callable[[], None]


def start(order: Path, sabotage: Sabotage | None = None) -> int:
    """A worker in a process of its own, forked from this one, which has imported everything and computed nothing."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.setsid()
        if sabotage is not None:
            sabotage()
        status = worker(["worker", str(order)])
    finally:
        os._exit(status)


def draw_nothing() -> None:
    """Let workers write empty pictures: to draw them takes half the time of so small a run, and nobody reads them."""

    def empty(loggers: Any, tag: str, draw: Any, step: int) -> None:
        log_figure(loggers, tag, lambda: Figure((0.5, 0.5)), step)

    task.log_figure = callback.log_figure = empty


def end(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_write(number: int, act: Callable[[], None]) -> Sabotage:
    """Do something instead of the n-th system call that brings bytes to the disk or gives a file its name."""

    def install() -> None:
        count = 0

        def wrap(call: Callable[..., None]) -> Callable[..., None]:
            def counted(*arguments: Any) -> None:
                nonlocal count
                count += 1
                if count == number:
                    act()
                call(*arguments)

            return counted

        os.fsync, os.replace = wrap(os.fsync), wrap(os.replace)

    return install


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number: int) -> Callable[..., Any]:
    def fail(*arguments: Any, **more: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def counting(file: Path) -> Sabotage:
    """Count the writes of a worker: a byte in a file for each."""

    def install() -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for name in ("fsync", "replace"):
            call = getattr(os, name)
            setattr(os, name, lambda *a, _call=call: (os.write(descriptor, b"x"), _call(*a))[1])

    return install


class Chaos:
    """The study left in peace, and what faults make of copies of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "chaos.yaml"
        STUDY["overrides"]["data.init_args.cache_dir"] = str(folder / "cache")
        self.path.write_text(yaml.safe_dump(STUDY, sort_keys=False))
        for name in ("cache", "peace"):  # the first one also makes the corrupted images
            self.peace = self.plan(name)
            order = write_order(self.peace, 1)
            assert end(start(order, counting(folder / f"{name}.writes"))) == 0, (
                self.peace.directory / "log.txt"
            ).read_text()
        self.rows = self.numbers(self.peace)
        self.writes = (folder / "peace.writes").stat().st_size

    def plan(self, name: str, **more: Any) -> Run:
        study = self.path
        if more:
            study = self.folder / f"{name}.yaml"
            study.write_text(yaml.safe_dump({**STUDY, "overrides": {**STUDY["overrides"], **more}}, sort_keys=False))
        return plan_runs(load_study(study), self.folder / name, parsed)[0]

    @staticmethod
    def numbers(run: Run) -> list[dict[str, Any]]:
        rows = [
            {key: value for key, value in row.items() if key not in ORIGIN}
            for row in RunDirectory(run.directory).rows()
        ]
        return sorted(rows, key=str)

    def copy(self, name: str) -> Run:
        """The finished run once more, in a place of its own."""
        run = self.plan(name)
        shutil.copytree(self.peace.directory, run.directory, symlinks=True)
        return run

    def verdict(self, run: Run, rows: list[dict[str, Any]] | None = None) -> str:
        """Empty if the next worker ends with the rows of the undisturbed run."""
        for _ in range(2):
            if (status := end(start(write_order(run, 1)))) == 0:
                break
        if status:
            return f"the next worker ended with {status}"
        if state_of(run).condition != "done":
            return f"the run is {state_of(run).condition}"
        if rows is None and self.curve(run) != self.curve(self.peace):
            return "another curve"
        return "" if self.numbers(run) == (self.rows if rows is None else rows) else "other rows"

    @staticmethod
    def curve(run: Run) -> str:
        path = RunDirectory(run.directory).curves
        return path.read_text() if path.exists() else ""

    def faults(self) -> Iterator[tuple[str, Callable[[str], str]]]:
        for pattern in FILES:
            for damage in ("empty", "half", "noise"):
                yield f"damage {damage} {pattern}", lambda name, p=pattern, d=damage: self.damaged(name, p, d)
        for number in range(1, self.writes + 1):
            yield (
                f"kill in write {number} of {self.writes}",
                lambda name, n=number: self.broken(name, at_write(n, kill)),
            )
            full = refuse(errno.ENOSPC)
            yield f"full disk in write {number}", lambda name, n=number, f=full: self.broken(name, at_write(n, f))
        for hours in (24, -24):
            yield f"clock {hours:+d} h", lambda name, h=hours: self.broken(name, lambda: self.turn_clock(3600 * h))
        for code in (errno.ENOLCK, errno.EOPNOTSUPP):
            lock = refuse(code)
            yield (
                f"locks fail with {errno.errorcode[code]}",
                lambda name, f=lock: self.broken(name, lambda: setattr(fcntl, "flock", f)),
            )
        yield "deleted in the middle", self.deleted
        yield "read-only in the middle", self.read_only
        yield "stopped and continued", self.stopped
        yield "three workers at once", self.three
        yield "first of two processes killed", self.first_of_two
        yield "runner killed", lambda name: self.runners(name, 1, lambda run, found: found[0].kill())
        yield "runner and worker killed", lambda name: self.runners(name, 1, self.kill_both)
        yield "runner stopped and continued", lambda name: self.runners(name, 1, self.stop_runner)
        yield "three runners at once", lambda name: self.runners(name, 3, lambda run, found: None)
        for hours in (24, -24):
            clock = f"now = time.time; time.time = lambda: now() + {3600 * hours}"
            yield f"runner's clock {hours:+d} h", lambda name, c=clock: self.runners(name, 1, self.kill_worker, c)

    @staticmethod
    def turn_clock(seconds: float) -> None:
        now = time.time
        time.time = lambda: now() + seconds

    def damaged(self, name: str, pattern: str, damage: str) -> str:
        run = self.copy(name)
        path = next(iter(sorted(run.directory.glob(pattern))))
        whole = path.read_bytes()
        path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "noise": b"\x00\xff{[:"}[damage])
        return self.verdict(run)

    def broken(self, name: str, sabotage: Sabotage) -> str:
        run = self.plan(name)
        end(start(write_order(run, 1), sabotage))
        return self.verdict(run)

    @staticmethod
    def await_progress(run: Run) -> int:
        """The process that trains, once it does."""
        while not (pid := read_json(RunDirectory(run.directory).progress).get("pid")):
            time.sleep(0.01)
        return int(pid)

    def deleted(self, name: str) -> str:
        run = self.plan(name)
        pid = start(write_order(run, 1))
        self.await_progress(run)
        shutil.rmtree(run.directory, ignore_errors=True)
        end(pid)
        return self.verdict(run)

    def read_only(self, name: str) -> str:
        """The superuser ignores permissions, so the directory is mounted read-only, or made immutable."""
        run = self.plan(name)
        pid = start(write_order(run, 1))
        self.await_progress(run)
        closed, opened = ["chattr", "-R", "+i", str(run.directory)], ["chattr", "-R", "-i", str(run.directory)]
        if os.geteuid():
            closed, opened = (["chmod", "-R", mode, str(run.directory)] for mode in ("a-w", "u+w"))
        done = subprocess.run(closed, check=False, capture_output=True, text=True)
        try:
            status = end(pid)
        finally:
            subprocess.run(opened, check=False, capture_output=True)
        if done.returncode:
            return f"could not be tried: {done.stderr.strip()}"
        return self.verdict(run) if status else "the worker did not notice"

    def stopped(self, name: str) -> str:
        run = self.plan(name)
        pid = start(write_order(run, 1))
        self.await_progress(run)
        os.kill(pid, signal.SIGSTOP)
        other = end(start(write_order(run, 1)))
        os.kill(pid, signal.SIGCONT)
        status = end(pid)
        return self.verdict(run) if (status, other) == (0, BUSY) else f"ended with {status}, the second with {other}"

    def first_of_two(self, name: str) -> str:
        """Two processes sum in another order than one: they are compared with two that were left in peace."""
        peace, run = self.plan(f"{name}_peace", **TWO), self.plan(name, **TWO)
        if status := end(start(write_order(peace, 1))):
            return f"two processes left in peace ended with {status}"
        pid = start(write_order(run, 1))
        self.await_progress(run)
        os.kill(pid, signal.SIGKILL)
        end(pid)
        return self.verdict(run, self.numbers(peace))

    def runners(
        self,
        name: str,
        count: int,
        disturb: Callable[[Run, list["subprocess.Popen[bytes]"]], None],
        prepare: str = "pass",
    ) -> str:
        """Runners of the whole study, and one more after them that must find or make the rows."""
        run = self.plan(name)
        command = [sys.executable, "-c", COMMAND.format(prepare), "study", "run", str(self.path), "--threads=1"]
        command += [f"--root={self.folder / name}"]

        def begin() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)

        found = [begin() for _ in range(count)]
        self.await_progress(run)
        disturb(run, found)
        for runner in found:
            runner.wait()
        if status := begin().wait():
            return f"the next runner ended with {status}"
        return self.verdict(run)

    def kill_both(self, run: Run, found: list["subprocess.Popen[bytes]"]) -> None:
        found[0].kill()
        os.kill(self.await_progress(run), signal.SIGKILL)

    def kill_worker(self, run: Run, found: list["subprocess.Popen[bytes]"]) -> None:
        os.kill(self.await_progress(run), signal.SIGKILL)

    @staticmethod
    def stop_runner(run: Run, found: list["subprocess.Popen[bytes]"]) -> None:
        found[0].send_signal(signal.SIGSTOP)
        while state_of(run).condition != "done":
            time.sleep(0.1)
        found[0].send_signal(signal.SIGCONT)

    def three(self, name: str) -> str:
        run = self.plan(name)
        order = write_order(run, 1)
        statuses = sorted(end(pid) for pid in [start(order) for _ in range(3)])
        return self.verdict(run) if set(statuses) <= {0, BUSY} and 0 in statuses else f"ended with {statuses}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--most", type=int, help="as many of them at most, spread evenly")
    options = parser.parse_args()
    console = Console(highlight=False)
    draw_nothing()
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder))
        faults = [fault for fault in chaos.faults() if options.only in fault[0]]
        if options.most is not None and options.most < len(faults):
            faults = [faults[i * len(faults) // options.most] for i in range(options.most)]
        lost = 0
        for number, (title, fault) in enumerate(faults):
            complaint = fault(f"fault{number}")
            lost += bool(complaint)
            console.print(f"{number + 1:3} of {len(faults)}  {title}: {complaint or 'survived'}")
            shutil.rmtree(Path(folder) / f"fault{number}", ignore_errors=True)
        console.print(f"{len(faults) - lost} of {len(faults)} faults survived.")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
