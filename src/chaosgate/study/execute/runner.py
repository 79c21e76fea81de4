"""Work through the runs of a study: start workers, watch them, go on after failures, stop cleanly."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from chaosgate.study.execute.display import Display
from chaosgate.study.execute.state import FAILED, LOG, State, state_of, write_json
from chaosgate.study.execute.worker import BAD_STUDY, BUSY, write_order
from chaosgate.study.plan.runs import Run

ATTEMPTS = 2
VISIBLE = "CUDA_VISIBLE_DEVICES"
WORKER = (sys.executable, "-m", "chaosgate.study.execute.worker")
_PATIENCE = 20.0  # seconds a worker has to end after SIGTERM


@dataclass
class Outcome:
    """How a study ended.

    Args:
        failed: Runs that failed twice, with the last lines of their logs.
        refused: What is wrong with the study itself; nothing was trained.
        interrupted: Whether somebody stopped it.
    """

    failed: dict[str, list[str]] = field(default_factory=dict)
    refused: str | None = None
    interrupted: bool = False


@dataclass
class _Live:
    run: Run
    process: subprocess.Popen[bytes]
    attempt: int
    device: str | None = None


class Runner:
    """Runs on this machine, ``jobs`` at a time; others may work on the same study in the same directory.

    Args:
        runs: The runs of the study, in order.
        display: Shows what goes on.
        jobs: Workers at a time.
        threads: Threads of each worker. Several workers also share the GPUs, one each as far as they go.
        worker: Command that carries out the order given as its last argument.
    """

    def __init__(
        self, runs: Sequence[Run], display: Display, jobs: int, threads: int, worker: Sequence[str] = WORKER
    ) -> None:
        self.runs = list(runs)
        self.display = display
        self.jobs = jobs
        self.threads = threads
        self.devices = visible_devices() if jobs > 1 else []  # one worker alone may have them all
        self.worker = worker
        self.outcome = Outcome()
        self._live: list[_Live] = []
        self._started = time.time()
        self._unchecked = True

    def __call__(self) -> Outcome:
        """Return when every run is done or has failed, or when somebody interrupts."""
        states = {run.name: state_of(run) for run in self.runs}
        pending = [run for run in self.runs if states[run.name].condition != "done"]
        with _sigterm_interrupts(), self.display.watching(self.runs, states):
            try:
                while pending or self._live:
                    self._fill(pending)
                    self._look(pending)
                    self.display.update({live.run.name: state_of(live.run) for live in self._live})
                    if pending or self._live:
                        time.sleep(0.2 if self._live else 1.0)
            except KeyboardInterrupt:
                self.outcome.interrupted = True
            finally:
                self._stop()
        return self.outcome

    def _fill(self, pending: list[Run]) -> None:
        """Start what is free; drop what others have finished, or have given up since this runner started."""
        for run in list(pending):
            if len(self._live) >= self.jobs:
                return
            if any(live.run.directory == run.directory for live in self._live):
                continue  # another checkpoint of the same training; its tests are in the same order
            state = state_of(run)
            if state.condition == "running":
                self.display.elsewhere(run, state)
                continue
            pending.remove(run)
            if state.condition == "done":
                self.display.ended(run, state)
            elif state.record.get("attempts", 0) >= ATTEMPTS and state.record["time"] >= self._started:
                self._give_up(run, state)
            else:
                self._start(run, attempt=1)

    def _start(self, run: Run, attempt: int) -> None:
        others = [other for other in self.runs if other.directory == run.directory and other is not run]
        order = write_order(run, self.threads, self.runs if self._unchecked else (), others)
        self._unchecked = False
        # Threads that wait sleep: spinning ones, the default, are 20 times slower where other processes want the cores.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "OMP_NUM_THREADS": str(self.threads)}
        device = least_used(self.devices, (live.device for live in self._live))
        if device is not None:
            environment[VISIBLE] = device
        # Its own session: Ctrl-C in the terminal reaches the runner only, which then ends the worker in order.
        process = subprocess.Popen(
            [*self.worker, str(order)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._live.append(_Live(run, process, attempt, device))
        self.display.started(run, attempt)

    def _look(self, pending: list[Run]) -> None:
        for live in list(self._live):
            status = live.process.poll()
            if status is None:
                continue
            self._live.remove(live)
            state = state_of(live.run)
            if status == BUSY:
                pending.append(live.run)
            elif status == BAD_STUDY:
                self.outcome.refused = "\n".join(log_tail(live.run.directory, 20))
                pending.clear()
                self._stop()
            elif state.condition == "done":
                self.display.ended(live.run, state)
            else:
                record = {"attempts": live.attempt, "status": status, "lines": log_tail(live.run.directory)}
                write_json(live.run.directory / FAILED, record)
                if live.attempt < ATTEMPTS:
                    self._start(live.run, live.attempt + 1)
                else:
                    self._give_up(live.run, State("failed", record=record))

    def _give_up(self, run: Run, state: State) -> None:
        self.outcome.failed[run.name] = state.record["lines"]
        self.display.ended(run, state)

    def _stop(self) -> None:
        """End the workers; what they had checkpointed stays."""
        for live in self._live:
            live.process.terminate()
        deadline = time.monotonic() + _PATIENCE
        for live in self._live:
            try:
                live.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                live.process.kill()
                live.process.wait()
        self._live.clear()


def log_tail(directory: Path, lines: int = 12) -> list[str]:
    """The last lines of a run's log."""
    path = directory / LOG
    if not path.exists():
        return []
    return [line.rstrip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]]


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM (a scheduler, a closing session) stop the runner like Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def visible_devices() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` allows, or all that ``nvidia-smi`` lists; found without loading torch."""
    allowed = os.environ.get(VISIBLE)
    if allowed is not None:
        return [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]


def least_used(devices: Sequence[str], in_use: Iterable[str | None]) -> str | None:
    """The device with the fewest workers, the first of several; None if there is none.

    >>> least_used(["0", "1"], ["0"]), least_used(["0", "1"], ["0", "1"]), least_used([], [])
    ('1', '0', None)
    """
    used = list(in_use)
    return min(devices, key=used.count) if devices else None
