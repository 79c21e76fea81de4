"""Work through the runs of a study: start workers, watch them, go on after failures, stop cleanly.

Workers are forked from one warm process that has imported everything once (the standard library's fork server), so that
a run does not pay for the import; each is a process and a session of its own, and a crash of one leaves the others
alone.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

from chaosgate.study.execute.display import Display
from chaosgate.study.execute.state import FAILED, LOG, State, require_locks, state_of, write_json
from chaosgate.study.execute.worker import BAD_STUDY, BUSY, NO_ACCESS, write_order
from chaosgate.study.plan.runs import Run

ATTEMPTS = 2
VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATIENCE = 20.0  # seconds a worker has to end after SIGTERM
_LOOK = 1.0  # seconds between two looks at the runs while no worker of this runner ends


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
    process: ForkServerProcess
    attempt: int
    device: str | None = None


class Runner:
    """Runs on this machine, ``jobs`` at a time; others may work on the same study in the same directory.

    Args:
        runs: The runs of the study, in order.
        display: Shows what goes on.
        jobs: Workers at a time.
        threads: Threads of each worker. Several workers also share the GPUs, one each as far as they go.
        worker: Module with the function ``run_order(order, environment)`` that a worker calls.
    """

    def __init__(
        self, runs: Sequence[Run], display: Display, jobs: int, threads: int, worker: str
    ) -> None:
        self.runs = list(runs)
        self.display = display
        self.jobs = jobs
        self.threads = threads
        self.devices = visible_devices() if jobs > 1 else []  # one worker alone may have them all
        self.worker = worker
        self.outcome = Outcome()
        self.states = {run.name: state_of(run) for run in self.runs}
        self.pending = [run for run in self.runs if self.states[run.name].condition != "done"]
        self._live: list[_Live] = []
        self._notes: dict[
            str, dict[str, Any]
        ] = {}  # of failures, as they were found when this runner started
        self._unchecked = True

    def __call__(self) -> Outcome:
        """Return when every run is done or has failed, or when somebody interrupts."""
        states, pending = self.states, self.pending
        if pending:
            require_locks(self.runs[0].root)
        self._notes = {
            name: state.record for name, state in states.items() if state.condition == "failed"
        }
        with _sigterm_interrupts(), self.display.watching(self.runs, states):
            try:
                while pending or self._live:
                    self._fill(pending)
                    self._look(pending)
                    self.display.update({live.run.name: state_of(live.run) for live in self._live})
                    if pending or self._live:
                        wait([live.process.sentinel for live in self._live], _LOOK)
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
            elif state.record.get("attempts", 0) >= ATTEMPTS and state.record != self._notes.get(
                run.name
            ):
                self._give_up(
                    run, state
                )  # the note is new: by content, whatever anybody's clock says
            else:
                self._start(run, attempt=1)

    def _start(self, run: Run, attempt: int) -> None:
        others = [
            other for other in self.runs if other.directory == run.directory and other is not run
        ]
        try:
            order = write_order(run, self.threads, self.runs if self._unchecked else (), others)
        except OSError as error:
            self._fail(
                run,
                attempt,
                NO_ACCESS,
                [f"chaosgate study: the order for the worker could not be written: {error}"],
            )
            return
        self._unchecked = False
        device = least_used(self.devices, (live.device for live in self._live))
        environment = {"OMP_NUM_THREADS": str(self.threads)} | (
            {VISIBLE: device} if device is not None else {}
        )
        process = start_warm(self.worker, "run_order", str(order), environment)
        self._live.append(_Live(run, process, attempt, device))
        self.display.started(run, attempt)

    def _look(self, pending: list[Run]) -> None:
        for live in list(self._live):
            status = live.process.exitcode
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
                return  # the others were stopped with it
            elif state.condition == "done":
                self.display.ended(live.run, state)
            else:
                lines = log_tail(live.run.directory)
                if status == NO_ACCESS:
                    lines = [
                        f"chaosgate study: {live.run.directory} cannot be written to (deleted, read-only, full?)"
                    ]
                self._fail(live.run, live.attempt, status, lines)

    def _fail(self, run: Run, attempt: int, status: int, lines: list[str]) -> None:
        """Note a failure, if that is possible; try again, or go on without the run. Other runs have no part in it."""
        record = failure(attempt, status, lines)
        try:
            write_json(run.directory / FAILED, record)
        except OSError as error:
            self.display.say(
                run, f"its failure could not be recorded in its directory ({error.strerror})"
            )
        if attempt < ATTEMPTS:
            self._start(run, attempt + 1)
        else:
            self._give_up(run, State("failed", record=record))

    def _give_up(self, run: Run, state: State) -> None:
        self.outcome.failed[run.name] = state.record.get("lines", [])
        self.display.ended(run, state)

    def _stop(self) -> None:
        """End the workers; what they had checkpointed stays."""
        for live in self._live:
            live.process.terminate()
        deadline = time.monotonic() + _PATIENCE
        for live in self._live:
            live.process.join(max(0.0, deadline - time.monotonic()))
            if live.process.exitcode is None:
                live.process.kill()
                live.process.join()
        self._live.clear()


def start_warm(module: str, function: str, *arguments: Any) -> ForkServerProcess:
    """Call a function in a process that has imported its module, and what it imports, before."""
    process = warm(module).Process(target=call, args=(module, function, *arguments))
    process.start()
    return process


def warm(module: str) -> ForkServerContext:
    """Where processes are forked from that has imported a module; it is started with the first of them."""
    # Threads that wait sleep: spinning ones, the default, are 20 times slower where other processes want the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


def call(module: str, function: str, *arguments: Any) -> Any:
    """A function by name, so that the process that asks for it need not import it."""
    return getattr(import_module(module), function)(*arguments)


def log_tail(directory: Path, lines: int = 12) -> list[str]:
    try:
        text = (directory / LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines()[-lines:]]


def failure(attempt: int, status: int, lines: Sequence[str]) -> dict[str, Any]:
    """What is noted about a run whose worker ended with an error."""
    return {"attempts": attempt, "status": status, "reason": reason(lines, status), "lines": lines}


def reason(lines: Sequence[str], status: int) -> str:
    """The line of a log that says why a worker failed; what its exit status means if there is none.

    >>> reason(["Epoch 3", "chaosgate: the loss is nan at step 7.", "See --help for all keys."], 1)
    'the loss is nan at step 7.'
    >>> reason(["Traceback (most recent call last):", "ValueError: no", "  hint"], 1), reason([], -9)
    ('ValueError: no', 'ended by SIGKILL')
    """
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    for start in ("chaosgate: ", "chaosgate study: "):
        if said := [line for line in lines if line.startswith(start)]:
            return said[-1].removeprefix(start)[:300]
    errors = [
        line
        for line in lines
        if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))
    ]
    return (errors or list(lines) or [f"exit status {status}"])[-1][:300]


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
    listed = subprocess.run(
        ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False
    ).stdout
    return [
        str(number) for number, line in enumerate(listed.splitlines()) if line.startswith("GPU ")
    ]


def least_used(devices: Sequence[str], in_use: Iterable[str | None]) -> str | None:
    """The device with the fewest workers, the first of several; None if there is none.

    >>> least_used(["0", "1"], ["0"]), least_used(["0", "1"], ["0", "1"]), least_used([], [])
    ('1', '0', None)
    """
    used = list(in_use)
    return min(devices, key=used.count) if devices else None
