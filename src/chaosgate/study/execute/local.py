"""Work through the runs of a study on this machine, with ``jobs`` of them at a time.

Every run has its own process, forked from a server that has imported the modules for training (the
``forkserver`` of the standard library). The runner starts a process for the next run that is
neither done nor locked, so several runners in one folder share the work. A run that fails or whose
process is killed is tried once more.
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
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from filelock import Timeout
from rich.console import Console
from rich.live import Live

from chaosgate.study.execute.run import Execute, run
from chaosgate.study.execute.state import FAILED, LOG, State, how_far, read_json, state_of
from chaosgate.study.plan.runs import Run

ATTEMPTS = 2
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_PATIENCE = 20.0  # seconds that a run has to save its state after SIGTERM
_LINE_EVERY = 30.0  # seconds between two lines of progress where the output is not a terminal
_LOCKED = 75  # exit status if another process works on the run


class Outcome(NamedTuple):
    """How a study ended.

    Args:
        failed: Names of the runs that failed twice, with the last lines of their output.
        interrupted: Whether Ctrl-C or SIGTERM stopped it.
    """

    failed: dict[str, list[str]]
    interrupted: bool = False


def work_through(
    runs: Sequence[Run],
    execute: Execute,
    display: "Display",
    jobs: int = 1,
    threads: int = 1,
    context: Any = None,
) -> Outcome:
    """Return when every run is done or has failed twice, or after Ctrl-C or SIGTERM.

    Args:
        runs: The runs of the study, in order.
        execute: Carries out ``fit`` and ``test``; a function of a module, because it is pickled.
        display: Shows the progress.
        jobs: Runs at a time.
        threads: Threads of each.
        context: How processes are made: :func:`warm`, or ``spawn`` for a single run.
    """
    context = context or multiprocessing.get_context("spawn")
    states = {one.name: state_of(one) for one in runs}
    if done := sum(state.condition == "done" for state in states.values()):
        display.print(f"{done} of {len(runs)} runs are done.")
    devices = visible_devices() if jobs > 1 else []  # one run alone may use them all
    workers: dict[int, tuple[Run, Any]] = {}
    tried: Counter[str] = Counter()

    def start(one: Run, place: int) -> None:
        device = devices[place % len(devices)] if devices else None
        settings = (device, threads, multiprocessing.get_start_method())
        workers[place] = one, context.Process(target=_work, args=(one, execute, *settings))
        workers[place][1].start()

    def left() -> list[Run]:
        waiting = [one for one in runs if tried[one.name] < ATTEMPTS]
        return [one for one in waiting if states[one.name].condition != "done"]

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with display:
            while workers or left():
                for one in left():
                    busy: set[Path] = {other.directory for other, _ in workers.values()}
                    places = {*range(jobs)} - workers.keys()
                    idle = states[one.name].condition != "running" and one.directory not in busy
                    if idle and places:
                        start(one, min(places))
                wait([process.sentinel for _, process in workers.values()], 1.0)
                ended = [k for k, (_, process) in workers.items() if process.exitcode is not None]
                states = display.look(runs, states)
                for one, process in map(workers.pop, ended):
                    unfinished = states[one.name].condition != "done"
                    tried[one.name] += unfinished and process.exitcode != _LOCKED
    except KeyboardInterrupt:
        return Outcome({}, interrupted=True)
    finally:
        stop_workers()
        signal.signal(signal.SIGTERM, before)
    return Outcome({one.name: _last_lines(one) for one in runs if tried[one.name] == ATTEMPTS})


def stop_workers() -> None:
    """End the runs; their saved files stay."""
    deadline, workers = time.monotonic() + _PATIENCE, multiprocessing.active_children()
    for process in workers:
        process.terminate()
    for process in workers:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _work(one: Run, execute: Execute, device: str | None, threads: int, method: str) -> None:
    """The process of a run; its output goes to the log of the run."""
    os.setsid()  # Ctrl-C in a terminal does not reach it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM may signal every process of a job
    for key in [key for key in os.environ if key.startswith(("SLURM_", "SUBMITIT_"))]:
        del os.environ[key]  # or Lightning would requeue the job itself
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if device is not None:
        os.environ[_VISIBLE] = device
    # Data workers start as in `chaosgate fit`: with a second server, each loader of each run
    # would wait for the import of torch.
    multiprocessing.set_start_method(method, force=True)
    if "torch" in sys.modules:  # else it reads OMP_NUM_THREADS when it is imported
        sys.modules["torch"].set_num_threads(threads)
    try:
        one.directory.mkdir(parents=True, exist_ok=True)
        with open(one.directory / LOG, "a", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    except OSError:
        sys.exit(1)  # the runner says that the directory cannot be used
    try:
        run(one, execute)
    except Timeout:
        sys.exit(_LOCKED)
    except Exception as error:  # the log has it, and the other runs go on
        traceback.print_exc()
        print(f"chaosgate: {' '.join(str(error).split())}", flush=True)
        sys.exit(1)


def _last_lines(one: Run) -> list[str]:
    try:
        text = (one.directory / LOG).read_text(encoding="utf-8", errors="replace")
        return [read_json(one.directory / FAILED).get("reason", ""), *text.splitlines()[-12:]]
    except OSError as error:
        return [f"{one.directory} cannot be written to: {error}"]


def warm(*modules: str) -> Any:
    """A context whose processes start with these modules imported."""
    # Threads that wait sleep: spinning ones, the default, are 20 times slower on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    return context


def visible_devices() -> list[str]:
    """The GPUs of ``CUDA_VISIBLE_DEVICES``, or all that ``nvidia-smi`` lists; without torch."""
    names = os.environ.get(_VISIBLE, "")
    if _VISIBLE not in os.environ and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        names = ",".join(done.stdout.split())
    return [name.strip() for name in names.split(",") if name.strip() not in ("", "-1")]


class Display(Live):
    """A line when a run starts, ends or fails; the progress of the others, live in a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console=console, transient=True, auto_refresh=False)
        self._next_line = time.monotonic() + _LINE_EVERY

    def print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def look(self, runs: Sequence[Run], before: Mapping[str, State]) -> dict[str, State]:
        """Print the changes since the last look, and the progress; return the states."""
        old = {name: state for name, state in before.items() if state.condition == "done"}
        states = {one.name: old.get(one.name) or state_of(one) for one in runs}
        done = sum(state.condition == "done" for state in states.values())
        progress = [f"{done} of {len(runs)} runs are done"]
        for one in runs:
            state, text = states[one.name], ""
            if state.condition == "running":
                progress.append(f"{one.title}: {how_far(state.progress)}")
                text = f", log in {one.directory}"
            elif state.condition == "done":
                text = f", trained in {state.record['seconds']:.0f} s"
            elif state.condition == "failed":
                text = f": {state.record['reason']}"
            if state.condition != before[one.name].condition:
                self.print(f"{one.title}: {state.condition}{text}")
        if self.console.is_terminal:
            self.update("\n".join(progress), refresh=True)
        elif self._next_line <= time.monotonic():
            self._next_line = time.monotonic() + _LINE_EVERY
            self.print("; ".join(progress))
        return states
