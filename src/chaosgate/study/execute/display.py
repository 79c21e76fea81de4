"""Progress of a study in the terminal: a bar for the whole, a bar for every run at work."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from chaosgate.study.execute.state import State
from chaosgate.study.plan.runs import Run

_TRAINING_SHARE = 0.9  # of a run's time; the rest is the test


class Display:
    """Shows a study at work; lines instead of bars where the output is no terminal.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._whole: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._ended = 0
        self._total = 0
        self._elsewhere: set[str] = set()

    @contextmanager
    def watching(self, runs: Sequence[Run], states: Mapping[str, State]) -> Iterator[None]:
        """Show bars while the study is worked on."""
        self._total = len(runs)
        self._ended = sum(states[run.name].condition == "done" for run in runs)
        if self._ended:
            self.console.print(f"{self._ended} of {self._total} runs were finished before and are kept.")
        with self._bars:
            self._whole = self._bars.add_task("study", total=self._total, completed=self._ended, note="")
            yield

    def started(self, run: Run, attempt: int) -> None:
        """A worker was started."""
        again = "" if attempt == 1 else " (failed once, trying again)"
        self.console.print(f"[bold]{_title(run)}[/]: started{again}, log in {run.directory}", highlight=False)
        if run.name in self._tasks:
            self._bars.remove_task(self._tasks.pop(run.name))
        self._tasks[run.name] = self._bars.add_task(f"  {_title(run)}", total=1.0, note="starting")

    def elsewhere(self, run: Run, state: State) -> None:
        """Another process works on this run; say so once."""
        if run.name not in self._elsewhere:
            self._elsewhere.add(run.name)
            self.console.print(f"[bold]{_title(run)}[/]: another process is at work on it", highlight=False)

    def update(self, states: Mapping[str, State]) -> None:
        """Draw how far the workers are."""
        done = 0.0
        for name, state in states.items():
            share, note = how_far(state.progress)
            done += share
            if name in self._tasks:
                self._bars.update(self._tasks[name], completed=share, note=note)
        if self._whole is not None:
            self._bars.update(
                self._whole, completed=self._ended + done, note=f"{self._ended} of {self._total} runs finished"
            )

    def ended(self, run: Run, state: State) -> None:
        """A run is over, well or not."""
        self._ended += state.condition == "done"
        if run.name in self._tasks:
            self._bars.remove_task(self._tasks.pop(run.name))
        if state.condition == "done":
            seconds = state.record["seconds"]
            text = f"[green]done[/]: trained in {seconds['fit']:.0f} s, tested in {seconds['test']:.0f} s"
        else:
            text = f"[red]failed[/] {state.record['attempts']} times; the study goes on without it"
        self.console.print(f"[bold]{_title(run)}[/]: {text}", highlight=False)


def how_far(progress: Mapping[str, Any]) -> tuple[float, str]:
    """Share of the run that is over, and a few words.

    >>> how_far({"phase": "fit", "epoch": 2, "epochs": 10, "batch": 5, "batches": 10})
    (0.225, 'epoch 3 of 10')
    """
    phase = progress.get("phase")
    within = progress.get("batch", 0) / (progress.get("batches") or 1)
    if phase == "fit":
        epochs = progress.get("epochs")
        share = (progress["epoch"] + within) / epochs if epochs else 0.0
        return _TRAINING_SHARE * min(1.0, share), f"epoch {progress['epoch'] + 1} of {epochs or '?'}"
    if phase == "test":
        return _TRAINING_SHARE + (1 - _TRAINING_SHARE) * min(1.0, within), "test"
    return (1.0, "tested") if phase == "tested" else (0.0, "starting")


def _title(run: Run) -> str:
    return f"{run.variant}, seed {run.seed}"
