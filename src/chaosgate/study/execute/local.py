"""Work through the runs of a study on this machine, with ``jobs`` processes.

Every process takes the next run that is neither done nor locked, so several of them, and several
runners in one folder, share the work in the same way. They are forked from a server that has
imported the modules for training (the ``forkserver`` of the standard library). A run that fails or
crashes ends its process, and a new one continues. The runner only watches, prints, and stops them.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
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
    left = sum(state.condition != "done" for state in states.values())
    if left < len(runs):
        display.print(f"{len(runs) - left} of {len(runs)} runs are done.")
    crashes = ATTEMPTS * left  # also of processes that do not come as far as a run
    devices = visible_devices() if jobs > 1 else []  # one run alone may use them all
    settings = (threads, multiprocessing.get_start_method(), f"{os.getpid()} {time.time()}")
    workers: dict[int, Any] = {}

    def start(place: int) -> None:
        device = devices[place % len(devices)] if devices else None
        workers[place] = context.Process(target=_work, args=(runs, execute, device, *settings))
        workers[place].start()

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with display:
            for place in range(min(jobs, left)):
                start(place)
            while workers:
                next(iter(workers.values())).join(1.0)
                for place, process in list(workers.items()):
                    if process.exitcode is not None:
                        del workers[place]
                        crashes -= process.exitcode != 0
                        if process.exitcode and crashes >= 0:
                            start(place)
                states = display.look(runs, states)
    except KeyboardInterrupt:
        return Outcome({}, interrupted=True)
    finally:
        stop_workers()
        signal.signal(signal.SIGTERM, before)
    return Outcome(
        {one.name: _last_lines(one) for one in runs if states[one.name].condition != "done"}
    )


def stop_workers() -> None:
    """End the runs; their saved files stay."""
    deadline, workers = time.monotonic() + _PATIENCE, multiprocessing.active_children()
    for process in workers:
        process.terminate()
    for process in workers:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _work(
    runs: Sequence[Run],
    execute: Execute,
    device: str | None,
    threads: int,
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
    # Data workers start as in `chaosgate fit`: with a second server, each loader of each run
    # would wait for the import of torch.
    multiprocessing.set_start_method(method, force=True)
    if "torch" in sys.modules:  # else it reads OMP_NUM_THREADS when it is imported
        sys.modules["torch"].set_num_threads(threads)
    parent, unusable = multiprocessing.parent_process(), set[str]()

    def is_left(one: Run) -> bool:
        """Whether it is not done, and has not failed too often under this runner."""
        state = state_of(one)
        tried = state.record.get("attempts", {}).get(runner, 0)
        return state.condition != "done" and tried < ATTEMPTS and one.name not in unusable

    while (parent is None or parent.is_alive()) and (left := [*filter(is_left, runs)]):
        free = [one for one in left if state_of(one).condition != "running"]
        if not free:
            time.sleep(1.0)
            continue
        try:
            free[0].directory.mkdir(parents=True, exist_ok=True)
            with open(free[0].directory / LOG, "a", encoding="utf-8") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        except OSError:
            unusable.add(free[0].name)
            continue
        try:
            run(free[0], execute, runner)
        except Timeout:  # another process was faster
            continue
        except Exception as error:  # whatever it is: the log has it, and a new process goes on
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
