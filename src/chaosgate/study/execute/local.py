"""Work through the runs of a study on this machine, with ``jobs`` processes.

Processes are forked from a server that has imported what training needs (the ``forkserver`` of the
standard library). A process takes the next run after one that succeeded. A run that fails or
crashes ends its process only, and the next run has a new one.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import Timeout
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from chaosgate.run.directory import RunDirectory, write_json
from chaosgate.study.execute.run import Execute, run
from chaosgate.study.execute.state import FAILED, LOG, how_far, read_json, state_of, title_of
from chaosgate.study.plan.runs import Run

ATTEMPTS = 2
_BUSY = 75  # exit status: another process has the run
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATIENCE = 20.0  # seconds that a run has to save its state after SIGTERM
_LINE_EVERY = 30.0  # seconds between two lines of progress where the output is not a terminal


@dataclass
class Outcome:
    """How a study ended.

    Args:
        failed: Names of the runs that failed twice, with the last lines of their logs.
        interrupted: Whether Ctrl-C or SIGTERM stopped it.
    """

    failed: dict[str, list[str]] = field(default_factory=dict)
    interrupted: bool = False


class LocalExecutor:
    """Runs on this machine; other processes may work on the same study in the same directory.

    Args:
        runs: The runs of the study, in order.
        execute: Carries out ``fit`` and ``test``; a function of a module, because it is pickled.
        display: Shows the progress.
        jobs: Runs at a time.
        threads: Threads of each.
        context: How processes are made: :func:`warm`, or ``spawn`` for a single run.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        execute: Execute,
        display: "Display",
        jobs: int = 1,
        threads: int = 1,
        context: Any = None,
    ) -> None:
        self.runs, self.execute, self.display = list(runs), execute, display
        self.jobs, self.threads = jobs, threads
        self.context = context or multiprocessing.get_context("spawn")
        self.devices = visible_devices() if jobs > 1 else []  # one run alone may use them all
        self.attempts: Counter[str] = Counter()
        self.outcome = Outcome()
        self.done = 0
        self._elsewhere: set[str] = set()
        self._workers: list[_Worker] = []

    def __call__(self) -> Outcome:
        """Return when every run is done or has failed twice, or after Ctrl-C or SIGTERM."""
        pending = [one for one in self.runs if state_of(one).condition != "done"]
        before = self.done = len(self.runs) - len(pending)
        if before:
            kept = f"{before} of {len(self.runs)} runs were finished before and are kept."
            self.display.console.print(kept, highlight=False)
        with _sigterm_interrupts(), self.display.watching():
            try:
                while pending or self._busy():
                    self._start_some(pending)
                    if pending or self._busy():
                        wait([worker.connection for worker in self._busy()], 1.0)
                    self._collect(pending)
                    working = [worker.run for worker in self._busy() if worker.run]
                    self.display.progress(self.done, len(self.runs), working)
            except KeyboardInterrupt:
                self.outcome.interrupted = True
            finally:
                self.stop()
        return self.outcome

    def _busy(self) -> "list[_Worker]":
        return [worker for worker in self._workers if worker.run is not None]

    def _start_some(self, pending: list[Run]) -> None:
        for one in list(pending):
            if len(self._busy()) >= self.jobs:
                return
            if any(worker.run.directory == one.directory for worker in self._busy() if worker.run):
                continue  # another checkpoint of the same training
            state = state_of(one)
            if state.condition == "running":
                if one.name not in self._elsewhere:
                    self._elsewhere.add(one.name)
                    self.display.say(one, "another process is working on it")
                continue
            pending.remove(one)
            if state.condition == "done":
                self.done += 1
                continue
            self.attempts[one.name] += 1
            try:
                one.directory.mkdir(parents=True, exist_ok=True)
                (one.directory / LOG).open("a").close()
            except OSError as error:
                self._fail(one, 1, [f"{one.directory} cannot be written to: {error}"], pending)
                continue
            idle = [one for one in self._workers if one.run is None and one.process.is_alive()]
            worker = idle[0] if idle else self._new_worker()
            worker.run = one
            worker.connection.send(one)
            again = "" if self.attempts[one.name] == 1 else " again"
            self.display.say(one, f"started{again}, log in {escape(str(one.directory))}")

    def _new_worker(self) -> "_Worker":
        used = [worker.device for worker in self._workers]
        device = min(self.devices, key=used.count) if self.devices else None
        ours, theirs = multiprocessing.Pipe()
        arguments = (theirs, self.execute, self.threads, device, multiprocessing.get_start_method())
        process = self.context.Process(target=_serve, args=arguments)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours, device))
        return self._workers[-1]

    def _collect(self, pending: list[Run]) -> None:
        for worker in self._busy():
            if worker.run is None or not worker.connection.poll():
                continue
            one, worker.run = worker.run, None
            try:
                status = worker.connection.recv()
            except (EOFError, ConnectionError):  # it failed, or was killed
                worker.process.join()
                status = worker.process.exitcode
                worker.connection.close()
                self._workers.remove(worker)
            state = state_of(one)
            if state.condition == "done":
                self.done += 1
                fit, test = (state.record["seconds"][phase] for phase in ("fit", "test"))
                text = f"[green]done[/]: trained in {fit:.0f} s, tested in {test:.0f} s"
                self.display.say(one, text)
            elif status == _BUSY:
                self.attempts[one.name] -= 1
                pending.append(one)
            else:
                self._fail(one, status, log_tail(one.directory), pending)

    def _fail(self, one: Run, status: int, lines: list[str], pending: list[Run]) -> None:
        """Note a failure, if that is possible; try once more. The other runs go on."""
        why, attempts = reason(lines, status), self.attempts[one.name]
        with suppress(OSError):  # the directory may be deleted, read-only or full
            write_json(one.directory / FAILED, {"reason": why, "status": status, "lines": lines})
        self.display.say(one, f"[red]failed[/]: {escape(why)}")
        if attempts < ATTEMPTS:
            pending.insert(0, one)
        else:
            self.outcome.failed[one.name] = lines

    def stop(self) -> None:
        """End the runs; what they have saved stays."""
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + _PATIENCE
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
        self._workers.clear()


@dataclass
class _Worker:
    """A process, the connection to it, its GPU, and the run that it works on now."""

    process: Any
    connection: Connection
    device: str | None
    run: Run | None = None


def _serve(
    connection: Connection, execute: Execute, threads: int, device: str | None, method: str
) -> None:
    """Work on the runs that arrive, until one fails; output goes to the log of the run."""
    os.setsid()  # Ctrl-C in a terminal does not reach it
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM may signal every process of a job
    for key in [key for key in os.environ if key.startswith(("SLURM_", "SUBMITIT_"))]:
        del os.environ[key]  # or Lightning would requeue the job itself
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if device is not None:
        os.environ[_VISIBLE] = device
    # Data workers start as they do in `chaosgate fit`: from a server of their own, each loader of
    # each run would wait for the import of torch.
    multiprocessing.set_start_method(method, force=True)
    if "torch" in sys.modules:  # else it reads OMP_NUM_THREADS when it is imported
        sys.modules["torch"].set_num_threads(threads)
    while True:
        try:
            one: Run = connection.recv()
        except EOFError:  # the runner was killed
            return
        with open(one.directory / LOG, "a", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            run(one, execute)
            status = 0
        except Timeout:
            status = _BUSY
        except Exception as error:  # whatever it is: the log has it, and the other runs go on
            traceback.print_exc()
            print(f"chaosgate: {' '.join(str(error).split())}", flush=True)
            sys.exit(1)
        with suppress(ConnectionError):  # the runner was killed
            connection.send(status)


def warm(*modules: str) -> Any:
    """A context whose processes have imported these modules."""
    # Threads that wait sleep: spinning ones, the default, are 20 times slower on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    return context


def log_tail(directory: Path, lines: int = 12) -> list[str]:
    try:
        text = (directory / LOG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines()[-lines:]]


def reason(lines: Sequence[str], status: int) -> str:
    """The line of a log that says why a run failed.

    >>> reason(["Epoch 3", "chaosgate: the loss is nan at step 7."], 1), reason([], -9)
    ('the loss is nan at step 7.', 'ended by SIGKILL')
    """
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    found = [line for line in lines if line.startswith("chaosgate: ")]
    return (found or list(lines) or [f"exit status {status}"])[-1].removeprefix("chaosgate: ")[:300]


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM stops like Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def visible_devices() -> list[str]:
    """The GPUs of ``CUDA_VISIBLE_DEVICES``, or all that ``nvidia-smi`` lists; without torch."""
    names = os.environ.get(_VISIBLE)
    if names is None and shutil.which("nvidia-smi") is not None:
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        names = ",".join(done.stdout.split())
    return [name.strip() for name in (names or "").split(",") if name.strip() not in ("", "-1")]


class Display:
    """Lines about runs that start and end, and how far they are: live in a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, transient=True, auto_refresh=False)
        self._next_line = time.monotonic() + _LINE_EVERY

    def say(self, one: Run, text: str) -> None:
        self.console.print(f"[bold]{title_of(one)}[/]: {text}", highlight=False, soft_wrap=True)

    def watching(self) -> AbstractContextManager[Any]:
        return self.live if self.console.is_terminal else nullcontext()

    def progress(self, done: int, total: int, working: Sequence[Run]) -> None:
        """Show how far the runs are."""
        files = {title_of(one): RunDirectory(one.directory).progress for one in working}
        shares = {title: how_far(read_json(path)) for title, path in files.items()}
        head = f"{done} of {total} runs finished"
        if self.console.is_terminal:
            grid = Table.grid(padding=(0, 2))
            for title, (share, note) in shares.items():
                grid.add_row(title, ProgressBar(1.0, share, width=28), note)
            self.live.update(Group(head, grid), refresh=True)
        elif self._next_line <= time.monotonic():
            self._next_line = time.monotonic() + _LINE_EVERY
            notes = [f"{title}: {note}" for title, (_, note) in shares.items()]
            line = "; ".join([head, *notes])
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)
