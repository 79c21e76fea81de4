"""Work through the runs of a study on this machine, with ``jobs`` processes.

Every process takes the next run that is neither done nor locked, so several of them, and several
runners in one folder, share the work in the same way. They are forked from a server that has
imported what training needs (the ``forkserver`` of the standard library). A run that fails or
crashes ends its process, and a new one goes on. The runner only looks, prints, and stops them.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from filelock import Timeout
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from chaosgate.study.execute.run import Execute, run
from chaosgate.study.execute.state import FAILED, LOG, State, how_far, read_json, state_of
from chaosgate.study.plan.runs import Run

ATTEMPTS = 2
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATIENCE = 20.0  # seconds that a run has to save its state after SIGTERM
_LINE_EVERY = 30.0  # seconds between two lines of progress where the output is not a terminal


@dataclass
class Outcome:
    """How a study ended.

    Args:
        failed: Titles of the runs that failed twice, with the last lines of what they printed.
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
        self.runner = f"{os.getpid()} {time.time()}"
        self._workers: dict[int, Any] = {}

    def __call__(self) -> Outcome:
        """Return when every run is done or has failed twice, or after Ctrl-C or SIGTERM."""
        states = {one.name: state_of(one) for one in self.runs}
        left = sum(state.condition != "done" for state in states.values())
        if left < len(self.runs):
            self.display.print(f"{len(self.runs) - left} of {len(self.runs)} runs are done.")
        crashes = ATTEMPTS * left  # also of processes that do not come as far as a run
        with _sigterm_interrupts(), self.display:
            try:
                for place in range(min(self.jobs, left)):
                    self._start(place)
                while self._workers:
                    next(iter(self._workers.values())).join(1.0)
                    for place, process in list(self._workers.items()):
                        if process.exitcode is not None:
                            del self._workers[place]
                            crashes -= process.exitcode != 0
                            if process.exitcode and crashes >= 0:
                                self._start(place)
                    states = self.display.look(self.runs, states)
            except KeyboardInterrupt:
                return Outcome(interrupted=True)
            finally:
                self.stop()
        left_over = [one for one in self.runs if states[one.name].condition != "done"]
        return Outcome({one.name: _last_lines(one) for one in left_over})

    def _start(self, place: int) -> None:
        device = self.devices[place % len(self.devices)] if self.devices else None
        settings = (self.threads, device, multiprocessing.get_start_method(), self.runner)
        process = self.context.Process(target=_work, args=(self.runs, self.execute, *settings))
        process.start()
        self._workers[place] = process

    def stop(self) -> None:
        """End the runs; what they have saved stays."""
        deadline = time.monotonic() + _PATIENCE
        for process in self._workers.values():
            process.terminate()
        for process in self._workers.values():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
        self._workers.clear()


def _work(
    runs: Sequence[Run],
    execute: Execute,
    threads: int,
    device: str | None,
    method: str,
    runner: str,
) -> None:
    """Take one run after the other, until one fails; output goes to the log of the run."""
    os.setsid()  # Ctrl-C in a terminal does not reach it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
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
    parent, unusable = multiprocessing.parent_process(), set[str]()
    while parent is None or parent.is_alive():
        states = {one.name: state_of(one) for one in runs if one.name not in unusable}
        left = [one for one in runs if one.name in states and not _over(states[one.name], runner)]
        free = [one for one in left if states[one.name].condition != "running"]
        if not left:
            return
        if not free:
            time.sleep(1.0)
        for one in free[:1]:
            try:
                one.directory.mkdir(parents=True, exist_ok=True)
                with open(one.directory / LOG, "a", encoding="utf-8") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
            except OSError:
                unusable.add(one.name)
                continue
            try:
                run(one, execute, runner)
            except Timeout:  # another process was faster
                continue
            except Exception as error:  # whatever it is: the log has it, and a new process goes on
                traceback.print_exc()
                print(f"chaosgate: {' '.join(str(error).split())}", flush=True)
                sys.exit(1)


def _over(state: State, runner: str) -> bool:
    """Whether a run is done, or has failed too often under this runner."""
    attempts = state.record["attempts"] if state.condition == "failed" else {}
    return state.condition == "done" or attempts.get(runner, 0) >= ATTEMPTS


def _last_lines(one: Run) -> list[str]:
    try:
        text = (one.directory / LOG).read_text(encoding="utf-8", errors="replace")
        return [read_json(one.directory / FAILED).get("reason", ""), *text.splitlines()[-12:]]
    except OSError as error:
        return [f"{one.directory} cannot be written to: {error}"]


def warm(*modules: str) -> Any:
    """A context whose processes have imported these modules."""
    # Threads that wait sleep: spinning ones, the default, are 20 times slower on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    return context


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
    names = os.environ.get(_VISIBLE, "")
    if _VISIBLE not in os.environ and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        names = ",".join(done.stdout.split())
    return [name.strip() for name in names.split(",") if name.strip() not in ("", "-1")]


class Display(Live):
    """A line when a run starts, ends or fails, and how far the others are: live in a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console=console, transient=True, auto_refresh=False)
        self._next_line = time.monotonic() + _LINE_EVERY

    def print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def look(self, runs: Sequence[Run], before: Mapping[str, State]) -> dict[str, State]:
        """Print what has changed since the last look, and how far the runs are."""
        over = {name: state for name, state in before.items() if state.condition == "done"}
        states = {one.name: over.get(one.name) or state_of(one) for one in runs}
        for one in runs:
            state, condition = states[one.name], states[one.name].condition
            if condition == before[one.name].condition:
                continue
            text = {"running": f"started, log in {escape(str(one.directory))}"}.get(condition, "")
            if condition == "done":
                fit, test = (state.record["seconds"][phase] for phase in ("fit", "test"))
                text = f"[green]done[/]: trained in {fit:.0f} s, tested in {test:.0f} s"
            elif condition == "failed":
                text = f"[red]failed[/]: {escape(state.record['reason'])}"
            self.print(f"[bold]{one.title}[/]: {text or condition}")
        done = sum(state.condition == "done" for state in states.values())
        head, grid = f"{done} of {len(runs)} runs are done", Table.grid(padding=(0, 2))
        working = [one for one in runs if states[one.name].condition == "running"]
        shares = {one.title: how_far(states[one.name].progress) for one in working}
        if self.console.is_terminal:
            for title, (share, note) in shares.items():
                grid.add_row(title, ProgressBar(1.0, share, width=28), note)
            self.update(Group(head, grid), refresh=True)
        elif self._next_line <= time.monotonic():
            self._next_line = time.monotonic() + _LINE_EVERY
            self.print(
                escape("; ".join([head, *(f"{t}: {note}" for t, (_, note) in shares.items())]))
            )
        return states
