#!/usr/bin/env python3
"""Break training runs in every way that happens to long ones, resume them, and compare with a run left in peace.

    make chaos            all faults, about fifteen minutes on two cores
    python scripts/chaos.py --kills 2 --seed 7

Every fault is real: processes get SIGKILL at random moments, checkpoint files lose bytes, the disk is full. A fault is
survived if ``chaosgate fit --resume`` ends with weights, optimiser, random streams and logged values that are
bit-identical to those of the undisturbed run. The exit status is 1 if one is not.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaosgate.run.checkpoint.continuation import differences
from chaosgate.run.checkpoint.files import checkpoints_by_age, read_record

REPOSITORY = Path(__file__).parents[1]
PATIENCE = 240.0  # seconds that a run may take; far above what it needs
TRAINING = (
    *(f"--config={REPOSITORY}/configs/{name}.yaml" for name in ("base", "data/fashion_mnist", "noise/gch")),
    "--model.backbone_args={channels: [8, 8, 16, 16], drop_rate: 0.2}",
    "--data.init_args.batch_size=50",
    "--trainer.max_epochs=5",
    "--trainer.limit_train_batches=24",
    "--trainer.limit_val_batches=4",
    "--trainer.log_every_n_steps=3",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
    "--saving.every_n_steps=5",
)
PROCESSES = {1: (), 2: ("--trainer.devices=2", "--trainer.strategy=ddp")}


class Training:
    """A ``chaosgate fit`` in processes of its own.

    Args:
        run: Its run directory.
        processes: 1 or 2.
        resume: Continue what is there.
        extra: Further arguments.
    """

    def __init__(self, run: Path, processes: int, resume: bool = False, extra: tuple[str, ...] = ()) -> None:
        self.run = run
        self.log = run.parent / f"{run.name}.log"
        words = [sys.executable, "-m", "chaosgate", "fit", *TRAINING, *PROCESSES[processes], *extra, f"--run_dir={run}"]
        if resume:
            words.append("--resume")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def wait_for_training(self) -> None:
        """Return when the first batch is being worked on."""
        deadline = time.monotonic() + PATIENCE
        while b"noise at L4" not in self.log.read_bytes() and self.process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.run} does not begin; see {self.log}")
            time.sleep(0.02)

    def children(self) -> list[int]:
        """Direct children of the first process: other ranks, and data workers."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(word) for word in found.stdout.split()]

    def end(self) -> int:
        """Wait for the first process, clear away what is left of the others, return the exit status."""
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.run} does not end; see {self.log}") from None
        self._clear()
        return status

    def kill(self) -> None:
        """SIGKILL to the whole group, as a machine that goes down."""
        self._clear()
        self.process.wait()

    def _clear(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@dataclass
class Outcome:
    """What became of one fault."""

    fault: str
    processes: int
    at: str
    resumed_from: str
    differs: list[str]
    seconds: float

    @property
    def survived(self) -> bool:
        """Whether nothing was lost."""
        return not self.differs


Breaks = Callable[[Training, random.Random], None]


def at_a_random_moment(training: Training, dice: random.Random, length: float) -> None:
    """Wait until some moment between the first and the last step."""
    training.wait_for_training()
    deadline = time.monotonic() + dice.uniform(0.0, length)
    while time.monotonic() < deadline and training.process.poll() is None:
        time.sleep(0.005)


class Chaos:
    """All faults against runs in one folder.

    Args:
        folder: Where runs go.
        seed: Of the moments.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.peaceful: dict[int, Path] = {}
        self.length: dict[int, float] = {}

    def rest(self, processes: int) -> None:
        """The run that nobody disturbs."""
        run = self.folder / f"peaceful-{processes}"
        training = Training(run, processes)
        training.wait_for_training()
        start = time.monotonic()
        if training.end() != 0:
            raise RuntimeError(f"the undisturbed run failed; see {training.log}")
        self.peaceful[processes], self.length[processes] = run, time.monotonic() - start

    def suffer(self, number: int, fault: str, processes: int) -> Outcome:
        """One fault: start, break, resume, compare."""
        began = time.monotonic()
        dice = random.Random(f"{self.seed}/{number}/{fault}")
        with self._place(f"{number:02d}", fault) as run:
            extra = ("--data.init_args.num_workers=1",) if fault == "data worker killed" else ()
            training = Training(run, processes, extra=extra)
            at_a_random_moment(training, dice, self.length[processes])
            expected = FAULTS[fault](training, dice)
            status = training.end()
            newest = next(iter(checkpoints_by_age(run / "checkpoints")), None)
            at = (
                "before the first checkpoint" if newest is None else f"after step {(read_record(newest) or {})['step']}"
            )
            complaint = _unexpected(status, expected, training.log)
            damaged = AFTERWARDS[fault](run) if fault in AFTERWARDS else None
            again = Training(run, processes, resume=True, extra=extra)
            ended = again.end()
            text = again.log.read_text(errors="replace")
            if damaged is not None and "is damaged" not in text:
                complaint.append("the damage was not mentioned")
            complaint += [f"resume ended with {ended}"] if ended else differences(run, self.peaceful[processes])
            source = [line.rsplit("/", 1)[-1].strip() for line in text.splitlines() if "Restored all states" in line]
        return Outcome(
            fault, processes, at, source[-1] if source else "the beginning", complaint, time.monotonic() - began
        )

    @contextmanager
    def _place(self, name: str, fault: str) -> Iterator[Path]:
        if fault != "disk full":
            yield self.folder / name
            return
        small = self.folder / f"small-{name}"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=True)
        try:
            yield small / "run"
        finally:
            shutil.copytree(small, self.folder / name, symlinks=True, dirs_exist_ok=True)
            subprocess.run(["umount", "-l", str(small)], check=True)


def killed(training: Training, dice: random.Random) -> int | None:
    """SIGKILL to everything at once."""
    training.kill()
    return None


def killed_with_two_checkpoints(training: Training, dice: random.Random) -> int | None:
    """SIGKILL, once there is a checkpoint before the newest one to go back to."""
    _wait_for_checkpoints(training, 2)
    training.kill()
    return None


def one_killed(training: Training, dice: random.Random) -> int | None:
    """SIGKILL to one of the processes; the others must notice."""
    victim = dice.choice([training.process.pid, *training.children()[:1]])
    _send(victim, signal.SIGKILL)
    if victim == training.process.pid:
        training.process.wait()
        time.sleep(1.0)
    return None


def told(signum: int) -> Callable[[Training, random.Random], int | None]:
    """A signal to the first process, as from a scheduler."""

    def send(training: Training, dice: random.Random) -> int | None:
        _send(training.process.pid, signum)
        return 128 + signum

    return send


def worker_killed(training: Training, dice: random.Random) -> int | None:
    """SIGKILL to a process that prepares batches."""
    for child in training.children():
        _send(child, signal.SIGKILL)
    return 1


def disk_full(training: Training, dice: random.Random) -> int | None:
    """Something else fills the folder, once there is a checkpoint to lose."""
    _wait_for_checkpoints(training, 1)
    ballast = training.run.parent / "ballast"
    try:
        with open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 14))
    except OSError:
        pass
    return 1


def remove_ballast(run: Path) -> None:
    """Room again."""
    (run.parent / "ballast").unlink()


def flip_a_byte(run: Path) -> Path | None:
    """Damage the newest checkpoint."""
    newest = next(iter(checkpoints_by_age(run / "checkpoints")), None)
    if newest is not None:
        content = bytearray(newest.read_bytes())
        content[len(content) // 2] ^= 0xFF
        newest.write_bytes(content)
    return newest


def cut_in_half(run: Path) -> Path | None:
    """Truncate the newest checkpoint."""
    newest = next(iter(checkpoints_by_age(run / "checkpoints")), None)
    if newest is not None:
        os.truncate(newest, newest.stat().st_size // 2)
    return newest


FAULTS: dict[str, Callable[[Training, random.Random], int | None]] = {
    "kill -9": killed,
    "kill -9 of one": one_killed,
    "SIGTERM": told(signal.SIGTERM),
    "SIGUSR1": told(signal.SIGUSR1),
    "data worker killed": worker_killed,
    "disk full": disk_full,
    "newest checkpoint damaged": killed_with_two_checkpoints,
    "newest checkpoint truncated": killed_with_two_checkpoints,
}
"""What happens, by name; each returns the exit status that a tidy end has, or None where there is no tidy end."""

AFTERWARDS: dict[str, Callable[[Path], Path | None]] = {
    "newest checkpoint damaged": flip_a_byte,
    "newest checkpoint truncated": cut_in_half,
    "disk full": remove_ballast,  # type: ignore[dict-item]
}


def _wait_for_checkpoints(training: Training, count: int) -> None:
    while len(checkpoints_by_age(training.run / "checkpoints")) < count and training.process.poll() is None:
        time.sleep(0.01)


def _send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass


def _unexpected(status: int, expected: int | None, log: Path) -> list[str]:
    """Complaints about how the broken run ended; one that was over before the fault is fine."""
    text = log.read_text(errors="replace")
    if expected is None or status == 0:
        return []
    if status != expected:
        return [f"ended with {status} instead of {expected}"]
    return [] if "chaosgate: " in text and "Traceback" not in text else ["no tidy message"]


def schedule(kills: int) -> list[tuple[str, int]]:
    """All faults with the number of processes; half of the kills in one process, half in two."""
    single = [("kill -9", 1)] * (kills - kills // 2)
    double = [("kill -9" if i % 2 else "kill -9 of one", 2) for i in range(kills // 2)]
    others = [name for name in FAULTS if name not in ("kill -9", "kill -9 of one")]
    return [*single, *((name, 1) for name in others), *double, ("SIGTERM", 2), ("newest checkpoint damaged", 2)]


def table_of(outcomes: list[Outcome]) -> Table:
    """One line per fault."""
    table = Table(title="faults tried and survived", caption="identical: weights, optimiser, random streams, log")
    for column in ("fault", "processes", "newest checkpoint", "resumed from", "seconds", "result"):
        table.add_column(column, justify="right" if column in ("processes", "seconds") else "left")
    for o in outcomes:
        result = "[green]identical" if o.survived else f"[red]LOST: {', '.join(o.differs[:3])}"
        table.add_row(o.fault, str(o.processes), o.at, o.resumed_from, f"{o.seconds:.0f}", result)
    return table


def main() -> int:
    """Run all faults; print the table; 0 if all were survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs, half of them in one process, half in two")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments (the machine decides the rest)")
    parser.add_argument("--folder", type=Path, help="where the runs go, kept afterwards; default: a temporary folder")
    parser.add_argument("--processes", type=int, choices=(1, 2), help="only the faults of runs on so many processes")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    console, chaos = Console(width=max(Console().width, 120)), Chaos(folder.resolve(), options.seed)
    faults = [fault for fault in schedule(options.kills) if options.processes in (None, fault[1])]
    console.print(f"{len(faults)} faults, runs in {folder}")
    outcomes: list[Outcome] = []

    def one(item: tuple[int, tuple[str, int]]) -> None:
        number, (fault, processes) = item
        outcome = chaos.suffer(number, fault, processes)
        outcomes.append(outcome)
        mark = "[green]survived" if outcome.survived else f"[red]lost: {outcome.differs}"
        console.print(f"{len(outcomes):3d}/{len(faults)} {fault}, {processes} process(es): {mark}")

    for processes, jobs in ((1, 2), (2, 1)):  # two cores: two single runs at a time, or one on two processes
        if options.processes not in (None, processes):
            continue
        chaos.rest(processes)
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, [item for item in enumerate(faults) if item[1][1] == processes]))
    console.print(table_of(outcomes))
    survived = sum(outcome.survived for outcome in outcomes)
    console.print(f"{survived} of {len(outcomes)} faults survived")
    if survived == len(outcomes) and options.folder is None:
        shutil.rmtree(folder)
    return int(survived < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
