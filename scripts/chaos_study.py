#!/usr/bin/env python3
"""Break the runs of a study in every way that happens to long ones, go on, and compare what is left.

    make chaos-study      all faults, about half an hour on two cores
    python scripts/chaos_study.py --only damage --most 5

Every fault happens in a real run that trains and tests a tiny network. In workers: SIGKILL or a full disk inside a
write (orders, checkpoints, rows, records, progress and configuration all pass the same two system calls), damaged and
lost files of every kind, a deleted or read-only directory, clocks that are wrong, locks that fail, a worker that is
stopped and continued, three workers at once, the first of two processes killed alone. In ``chaosgate study run``:
runners killed, alone or with their workers, stopped and continued, with a wrong clock, three at once.

A fault counts only if it left its mark, which is made where it happens. It is survived if whoever comes next leaves
the rows (numbers, noise, hash of the checkpoint, origin) and the files of an undisturbed run; the exit status is 1 if
not.
"""

import argparse
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from matplotlib.figure import Figure
from rich.console import Console

from chaosgate.cli.fit import parsed
from chaosgate.cli.worker import worker
from chaosgate.inject import callback
from chaosgate.metrics.figure import log_figure
from chaosgate.run import recording
from chaosgate.run.checkpoint import damage
from chaosgate.run.directory import RunDirectory, file_hash
from chaosgate.study import Run, load_study, plan_runs
from chaosgate.study.execute.runner import log_tail, reason
from chaosgate.study.execute.state import read_json, state_of
from chaosgate.study.execute.worker import BUSY, ORDER, write_order

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
COMPARED = "config.yaml curves.jsonl noise.json checkpoints/*.ckpt checkpoints/selection.json outputs/*.npz".split()
TRAINING = "checkpoints/last.ckpt curves.jsonl checkpoints/selection.json".split()
TRAINED = [
    *TRAINING[:3],
    "checkpoints/last.ckpt",
    "config.yaml",
    "noise.json",
    "fitted.json",
]  # links are read then
TESTED = "results.jsonl tested/*.json outputs/*.npz fitted.json noise.json curves.jsonl progress.json".split()
TESTED.append("checkpoints/selection.json")  # read where a copy has lost its links
LATER = "results.jsonl tested/*.json fitted.json noise.json".split()
NUMBERED = [name for name in TESTED if "json" in name and "progress" not in name]
NUMBER = re.compile(rb'(nll|seconds|energy)": [0-9]+[.][0-9]')
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "noise": lambda whole: b"\x00\xff{[:",
    "flip": lambda whole: flip(whole, len(whole) // 2),
    "flip at the end of": lambda whole: flip(whole, len(whole) - 2),
    "flip a digit of": lambda whole: flip(
        whole, found.end() - 1 if (found := NUMBER.search(whole)) else None
    ),
}
COMMAND = "import sys, time; from chaosgate.__main__ import main; now = time.time; time.time = lambda: now() + {}; "
COMMAND += "sys.exit(main(sys.argv[1:]))"
Act = Callable[[], object]


def flip(whole: bytes, at: int | None) -> bytes:
    """Flip a bit; a digit stays a digit, so that the file is as well-formed as before."""
    return whole if at is None else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def start(run: Run, sabotage: Act = lambda: None) -> int:
    """A worker in a process of its own, forked from this one, which has imported everything and computed nothing."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.setsid()
        sabotage()
        status = worker(write_order(run, 1))
    finally:
        os._exit(status)


def end(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def draw_nothing() -> None:
    """Let workers write empty pictures: to draw them takes half the time of so small a run, and nobody reads them."""
    empty = Figure((0.5, 0.5))
    draw = lambda loggers, tag, _, step: log_figure(loggers, tag, lambda: empty, step)  # noqa: E731
    recording.log_figure = callback.log_figure = draw


def watch_writes(directory: Path, see: Callable[[str], object]) -> None:
    """Name every system call that brings bytes to the disk or gives a file its name, just before it is made."""
    count: Counter[str] = Counter()

    def watched(call: str, real: Callable[..., None], *arguments: Any) -> None:
        path = arguments[1] if call == "replace" else os.readlink(f"/proc/self/fd/{arguments[0]}")
        write = f"{call} " + re.sub(
            r"[.]([^/]+?)([.][0-9]+){2}[.]tmp$", r"\1", os.path.relpath(path, directory)
        )
        count[write] += 1
        see(f"{write} {count[write]}")
        real(*arguments)

    os.fsync, os.replace = (
        partial(watched, call, getattr(os, call)) for call in ("fsync", "replace")
    )


def freeze(pid: int) -> None:
    """Stop a living process; whatever happens to it next happens to a process that was at work."""
    os.kill(pid, signal.SIGSTOP)
    while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        if state in "ZX":
            raise ProcessLookupError(pid)
        time.sleep(0.01)


class Chaos:
    """The study left in peace, and what faults make of it. All happen in one place, so that all must end alike."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.happened = folder, folder / "study", folder / "happened"
        STUDY["overrides"]["data.init_args.cache_dir"] = str(folder / "cache")
        self.run = self.plan("chaos")
        self.undisturbed(self.run, "first")  # it makes the corrupted images
        with open(folder / "writes", "w+") as log:
            note = partial(print, file=log, flush=True)
            self.peace = self.undisturbed(
                self.run, "peace", partial(watch_writes, self.run.directory, note)
            )
            log.seek(0)
            # How often progress is written depends on the time; pictures are of no use to anybody who comes next.
            self.writes = [
                write
                for write in log.read().splitlines()
                if not re.search("progress|figures", write)
            ]

    def plan(self, name: str, **more: Any) -> Run:
        path = self.folder / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump({**STUDY, "overrides": {**STUDY["overrides"], **more}}, sort_keys=False)
        )
        return plan_runs(load_study(path), self.root, parsed)[0]

    def undisturbed(self, run: Run, name: str, sabotage: Act = lambda: None) -> dict[str, Any]:
        """What a run leaves if nothing happens to it; its directory is kept under another name."""
        assert end(start(run, sabotage)) == 0, log_tail(run.directory)
        left = self.left(run)
        self.root.rename(self.folder / name)
        return left

    @staticmethod
    def left(run: Run) -> dict[str, Any]:
        """All that must be the same whatever happened; the other files tell times and processes."""
        rows = RunDirectory(run.directory).rows()
        left: dict[str, Any] = {"number of rows": len(rows)}
        for path in sorted(path for pattern in COMPARED for path in run.directory.glob(pattern)):
            left[path.name] = path.read_bytes()
            # A pickle notes which of two equal strings are one object, and in a resumed process others are: of a
            # checkpoint all that it holds is compared, and the hash in a row need only be that of the run's file.
            if path.suffix == ".ckpt" and damage(path.resolve()) is None:
                content = torch.load(path, weights_only=False)
                left[path.name] = json.dumps(content, default=lambda value: value.tolist())
        for row in rows:
            row.pop("digest", None)
            row["checkpoint"] = row["checkpoint"] == file_hash(run.directory / row["weights_file"])
            left |= {
                f"{key} of {row['corruption']} {row['severity']}": value
                for key, value in row.items()
            }
        return left

    def verdict(self, run: Run, peace: dict[str, Any]) -> str:
        """Empty if the next worker leaves what the undisturbed run has left. It has two attempts, as in a study."""
        if (status := end(start(run))) and (status := end(start(run))):
            return f"the next worker ended with {status}: {reason(log_tail(run.directory), status)}"
        if (condition := state_of(run).condition) != "done":
            return f"the run is {condition}"
        left = self.left(run)
        return ", ".join(
            sorted(f"other {key}" for key in peace | left if peace.get(key) != left.get(key))
        )

    def faults(self) -> Iterator[tuple[str, Callable[[], str]]]:
        full, kill = self.refuse(errno.ENOSPC), lambda: os.kill(os.getpid(), signal.SIGKILL)
        for write in self.writes:
            folder = not Path(write.split()[1]).suffix
            if (
                folder or "replace" in write
            ):  # a file whose bytes are not on the disk is as much as one without a name
                yield f"kill before {write}", partial(self.broken, self.at(write, kill))
            if not folder:
                yield (
                    f"disk full from {write}",
                    partial(self.broken, self.at(write, full, lasting=True)),
                )
        moments = (
            ("in training", TRAINING, LATER),
            ("before the test", TRAINED, LATER[:2]),
            ("at the end", TESTED, []),
        )
        for moment, patterns, missing in moments:
            for pattern, how in product(patterns, (*DAMAGES, "gone")):
                if "digit" in how and pattern not in NUMBERED:
                    continue
                if (pattern, how, missing) != (
                    TESTED[-1],
                    "gone",
                    [],
                ):  # networks of a finished run may be deleted
                    yield (
                        f"damage {moment}: {how} {pattern}",
                        partial(self.damaged, pattern, how, missing),
                    )
        for write in ("config.yaml", "checkpoints/last.ckpt", "noise.json", "results.jsonl"):
            delete = partial(shutil.rmtree, self.run.directory)
            yield (
                f"deleted before {write}",
                partial(self.broken, self.at(f"replace {write} 1", delete)),
            )
            yield (
                f"read-only before {write}",
                partial(self.broken, self.at(f"replace {write} 1", self.read_only)),
            )
        for hours in (24, -24):
            yield (
                f"clock {hours:+d} h",
                partial(self.broken, partial(self.turn_clock, 3600 * hours)),
            )
            yield (
                f"runner's clock {hours:+d} h",
                partial(self.runners, 1, lambda _, worker: self.kill(worker), hours),
            )
        for code in (errno.ENOLCK, errno.EOPNOTSUPP):
            fail = partial(setattr, fcntl, "flock", self.refuse(code))
            yield f"locks fail with {errno.errorcode[code]}", partial(self.broken, fail)
        yield "stopped and continued", self.stopped
        yield "three workers at once", self.three
        yield "first of two processes killed", self.first_of_two
        yield "runner killed", partial(self.runners, 1, lambda runner, _: self.kill(runner))
        yield "runner and worker killed", partial(self.runners, 1, self.kill)
        yield "runner stopped and continued", partial(self.runners, 1, self.stop)
        yield "three runners at once", partial(self.runners, 3, lambda *_: None)

    def at(self, write: str, act: Act, lasting: bool = False) -> Act:
        """Do something just before a write, or instead of it and of all that follow."""

        def see(name: str) -> None:
            if name == write or (lasting and self.happened.exists()):
                self.happened.touch()
                act()

        return partial(watch_writes, self.run.directory, see)

    def refuse(self, number: int) -> Callable[..., Any]:
        def fail(*arguments: Any, **more: Any) -> Any:
            self.happened.touch()
            raise OSError(number, os.strerror(number))

        return fail

    def turn_clock(self, seconds: float) -> None:
        now = time.time
        time.time = lambda: (self.happened.touch(), now() + seconds)[1]

    def set_writable(self, mode: str = "u+w", flag: str = "-i") -> None:
        """The superuser ignores permissions, so that for him the files are made immutable."""
        change = ["chmod", "-R", mode] if os.geteuid() else ["chattr", "-R", flag]
        subprocess.run([*change, str(self.run.directory)], check=False, capture_output=True)

    def read_only(self) -> None:
        self.set_writable("a-w", "+i")
        with suppress(PermissionError):
            (self.run.directory / "still_writable").touch()
            self.happened.unlink()

    def broken(self, sabotage: Act) -> str:
        end(start(self.run, sabotage))
        self.set_writable()
        return self.verdict(self.run, self.peace)

    def damaged(self, pattern: str, how: str, missing: list[str]) -> str:
        shutil.copytree(self.folder / "peace", self.root, symlinks=True)
        for path in (path for later in missing for path in self.run.directory.glob(later)):
            path.unlink()
        (path,) = self.run.directory.glob(pattern)
        whole = path.read_bytes()
        path.unlink() if how == "gone" else path.write_bytes(DAMAGES[how](whole))
        if not path.exists() or path.read_bytes() != whole:
            self.happened.touch()
        if pattern != "progress.json" and state_of(self.run).condition == "done":
            return "nobody notices it"
        return self.verdict(self.run, self.peace)

    def stopped(self) -> str:
        stop = self.at(
            "replace checkpoints/last.ckpt 1", lambda: os.kill(os.getpid(), signal.SIGSTOP)
        )
        os.waitpid(pid := start(self.run, stop), os.WUNTRACED)
        other = end(start(self.run))
        os.kill(pid, signal.SIGCONT)
        statuses = end(pid), other
        return (
            self.verdict(self.run, self.peace)
            if statuses == (0, BUSY)
            else f"ended with {statuses}"
        )

    def three(self) -> str:
        statuses = sorted(end(pid) for pid in [start(self.run) for _ in range(3)])
        if statuses == [0, BUSY, BUSY]:
            self.happened.touch()
        return (
            self.verdict(self.run, self.peace)
            if set(statuses) <= {0, BUSY}
            else f"ended with {statuses}"
        )

    def first_of_two(self) -> str:
        """Two processes sum in another order than one: they are compared with two that were left in peace."""
        two = self.plan("two", **{"trainer.devices": 2, "trainer.strategy": "ddp"})
        peace = self.undisturbed(two, "two_in_peace")
        pid = start(two)
        self.await_progress(two)
        freeze(pid)
        self.happened.touch()
        os.kill(pid, signal.SIGKILL)
        end(pid)
        return self.verdict(two, peace)

    @staticmethod
    def await_progress(run: Run) -> int:
        """The process that trains, once it does."""
        while not (pid := read_json(RunDirectory(run.directory).progress).get("pid")):
            time.sleep(0.01)
        return int(pid)

    def runners(self, count: int, disturb: Callable[[int, int], object], hours: int = 0) -> str:
        """Runners of the whole study, and one more after them that must find or make the rows."""
        words = ["study", "run", "chaos.yaml", "--threads=1", f"--root={self.root}"]
        command, said = (
            [sys.executable, "-c", COMMAND.format(3600 * hours), *words],
            self.folder / "said",
        )
        with open(said, "w") as file:
            begin = partial(subprocess.Popen, command, cwd=self.folder, stdout=file, stderr=file)
            found = [begin() for _ in range(count)]
            disturb(found[0].pid, self.await_progress(self.run))
            if (
                abs(read_json(self.run.directory / ORDER)["time"] - time.time() - 3600 * hours)
                > 3600
            ):
                self.happened.unlink(missing_ok=True)  # the clock was not wrong
            for runner in found:
                runner.wait()
            if said.read_text().count("another process is working on it") == 2:
                self.happened.touch()
            status = begin().wait()
        if status or "Traceback" in said.read_text():
            return f"the next runner ended with {status}: {said.read_text()}"
        return self.verdict(self.run, self.peace)

    def strike(self, *pids: int) -> None:
        """Stop processes in the middle of the run, all of them at work."""
        for pid in pids:
            freeze(pid)
        if state_of(self.run).condition == "running":
            self.happened.touch()

    def kill(self, *pids: int) -> None:
        self.strike(*pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def stop(self, runner: int, worker: int) -> None:
        self.strike(runner)
        while state_of(self.run).condition != "done":
            time.sleep(0.1)
        os.kill(runner, signal.SIGCONT)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--most", type=int, help="as many of them at most, spread evenly")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    draw_nothing()
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder))
        faults = [fault for fault in chaos.faults() if options.only in fault[0]]
        faults = faults[:: -(-len(faults) // options.most) if options.most else 1]
        found: Counter[bool | None] = Counter()
        for number, (title, fault) in enumerate(faults):
            chaos.happened.unlink(missing_ok=True)
            complaint = None
            with suppress(ProcessLookupError):  # whoever was to be struck had ended
                complaint = fault()
            survived = not complaint if chaos.happened.exists() else None
            found[survived] += 1
            verdict = {None: f"did not happen ({complaint})", True: "survived", False: complaint}[
                survived
            ]
            console.print(f"{number + 1:3} of {len(faults)}  {title}: {verdict}", markup=False)
            shutil.rmtree(chaos.root, ignore_errors=True)
        console.print(
            f"{found[True]} of {found[True] + found[False]} faults survived; {found[None]} did not happen."
        )
    return 1 if found[False] else 0


if __name__ == "__main__":
    sys.exit(main())
