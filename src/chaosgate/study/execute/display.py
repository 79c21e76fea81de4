"""Progress of a study in the terminal: bars while it runs, a table of its runs, what the rest will cost."""

import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from rich.console import Console, Group
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from chaosgate.run.config_files import allow_flags
from chaosgate.run.directory import RunDirectory
from chaosgate.run.outputs import sample_files
from chaosgate.study.execute.state import Condition, State, is_trained, read_json
from chaosgate.study.execute.worker import FORMAT, ORDER
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study

ROOT = Path("runs/studies")  # folder of studies if none is given
_TRAINING_SHARE = 0.9  # of a run's time; the rest is the test
_LINE_EVERY = 30.0  # seconds between two lines of progress where the output is not a terminal


class Display:
    """Shows a study at work; lines instead of bars where the output is not a terminal.

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
        self._titles: dict[str, str] = {}
        self._next_line = 0.0

    @contextmanager
    def watching(self, runs: Sequence[Run], states: Mapping[str, State]) -> Iterator[None]:
        """Show bars while the study is worked on."""
        self._total = len(runs)
        self._ended = sum(states[run.name].condition == "done" for run in runs)
        if self._ended:
            self.console.print(
                f"{self._ended} of {self._total} runs were finished before and are kept."
            )
        with self._bars:
            self._whole = self._bars.add_task(
                "study", total=self._total, completed=self._ended, note=""
            )
            yield

    def started(self, run: Run, attempt: int) -> None:
        again = "" if attempt == 1 else " (failed once, trying again)"
        where = escape(str(run.directory))  # whole, for a shell
        self.console.print(
            f"[bold]{_title(run)}[/]: started{again}, log in {where}",
            highlight=False,
            soft_wrap=True,
        )
        if run.name in self._tasks:
            self._bars.remove_task(self._tasks.pop(run.name))
        self._tasks[run.name] = self._bars.add_task(f"  {_title(run)}", total=1.0, note="starting")
        self._titles[run.name] = _title(run)
        if not self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY

    def elsewhere(self, run: Run, state: State) -> None:
        """Another process works on this run; say so once."""
        if run.name not in self._elsewhere:
            self._elsewhere.add(run.name)
            self.console.print(
                f"[bold]{_title(run)}[/]: another process is working on it", highlight=False
            )

    def say(self, run: Run, what: str) -> None:
        self.console.print(f"[bold]{_title(run)}[/]: {escape(what)}", highlight=False)

    def update(self, states: Mapping[str, State]) -> None:
        """Draw how far the workers are."""
        done, notes = 0.0, [f"{self._ended} of {self._total} runs finished"]
        for name, state in states.items():
            share, note = how_far(state.progress)
            done += share
            if name in self._tasks:
                self._bars.update(self._tasks[name], completed=share, note=note)
                notes.append(f"{self._titles[name]}: {note}")
        if self._whole is not None:
            self._bars.update(self._whole, completed=self._ended + done, note=notes[0])
        if not self.console.is_terminal and 0 < self._next_line <= time.monotonic():
            self._next_line = time.monotonic() + _LINE_EVERY
            self.console.print("; ".join(notes), soft_wrap=True, markup=False, highlight=False)

    def ended(self, run: Run, state: State) -> None:
        """A run is over, well or not."""
        self._ended += state.condition == "done"
        if run.name in self._tasks:
            self._bars.remove_task(self._tasks.pop(run.name))
        if state.condition == "done":
            seconds = state.record["seconds"]
            text = f"[green]done[/]: trained in {seconds['fit']:.0f} s, tested in {seconds['test']:.0f} s"
        else:
            why = escape(str(state.record.get("reason", "")))
            text = f"[red]failed[/] {state.record.get('attempts', 1)} times; the study goes on without it. {why}"
        self.console.print(f"[bold]{_title(run)}[/]: {text}", highlight=False)


def how_far(progress: Mapping[str, Any]) -> tuple[float, str]:
    """Share of the run that is over, and a few words.

    >>> how_far({"phase": "fit", "epoch": 2, "epochs": 10, "batch": 5, "batches": 10})
    (0.225, 'epoch 3 of 10')
    """
    phase = progress.get("phase")
    numbers = {
        key: value for key, value in progress.items() if isinstance(value, int | float)
    }  # others: damaged
    within = numbers.get("batch", 0) / (numbers.get("batches") or 1)
    if phase == "fit":
        epoch, epochs = numbers.get("epoch", 0), numbers.get("epochs")
        share = (epoch + within) / epochs if epochs else 0.0
        return _TRAINING_SHARE * min(1.0, share), f"epoch {epoch + 1} of {epochs or '?'}"
    if phase == "test":
        return _TRAINING_SHARE + (1 - _TRAINING_SHARE) * min(1.0, within), "test"
    return (1.0, "tested") if phase == "tested" else (0.0, "starting")


def installed(name: str) -> str:
    """What to type for a program that was installed with this one: its path where PATH has another or none."""
    here = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not here.is_file() or found is not None and os.path.samefile(found, here):
        return name
    near = os.path.relpath(here)
    return str(here) if near.startswith("..") else near


def same_study(action: str, flags: Sequence[str]) -> str:
    """Another command about a study: ``flags`` are the words that say which study it is."""
    return shlex.join([installed("chaosgate"), "study", action, *flags, *allow_flags()])


def _title(run: Run) -> str:
    return f"{run.variant}, seed {run.seed}"


def overview(
    study: Study,
    runs: Sequence[Run],
    states: Mapping[str, State],
    users: Mapping[str, Sequence[str]],
    jobs: int,
    with_cost: bool,
) -> Group:
    """Every run with its state and directory; a summary; for ``plan`` also the cost of what is left.

    Args:
        study: The study.
        runs: Its runs.
        states: How far they are, by name.
        users: Other studies that use the same training, by name of the run.
        jobs: Workers at a time.
        with_cost: Whether to say what the rest costs.
    """
    grid = RichTable(
        title=f"study {study.name}: {len(runs)} runs", title_style="bold", pad_edge=False
    )
    grid.add_column("run", no_wrap=True)
    grid.add_column("state", no_wrap=True)
    grid.add_column(f"directory in {runs[0].root}", overflow="fold")
    if any(users.values()):
        grid.add_column("also in", overflow="fold")
    for run in runs:
        also = [", ".join(users[run.name])] if any(users.values()) else []
        grid.add_row(_title(run), _words(run, states[run.name]), run.training, *also)
    lines = [_summary(states.values())]
    if shared := [run for run in runs if users[run.name]]:
        trained = sum(is_trained(run) for run in shared)
        lines.append(
            f"{len(shared)} trainings are shared with other studies; {trained} of them are finished."
        )
    failed = {
        name: state.record.get("reason")
        for name, state in states.items()
        if state.condition == "failed"
    }
    lines += [f"{name}: {reason}" for name, reason in failed.items() if reason]
    lines += dict.fromkeys(
        sentence + "." for state in states.values() for sentence in state.trouble
    )
    if older := older_runs(runs[0].root):
        lines.append(
            f"{len(older)} runs in {runs[0].root} were named by an earlier version and are not used: "
            f"{', '.join(older[:5])}{', ...' if len(older) > 5 else ''}. They stay as they "
            "are; delete them when their rows are no longer needed."
        )
    if with_cost:
        lines += [cost(study, runs, states, jobs), kept_size(study, runs, states)]
    return Group(grid, *map(Text, lines))  # as text: brackets would be read as markup


def _words(run: Run, state: State) -> str:
    if state.condition in ("interrupted", "missing") and is_trained(run):
        return "trained, test left"
    if state.condition == "queued":
        return f"queued, job {state.record['job']}"
    begun = state.condition in ("running", "interrupted")
    return f"{state.condition}, {how_far(state.progress)[1]}" if begun else state.condition


def _summary(states: Iterable[State]) -> str:
    counts = Counter(state.condition for state in states)
    return ", ".join(f"{counts[condition]} {condition}" for condition in get_args(Condition))


def older_runs(root: Path) -> list[str]:
    """Directories that a study of an earlier version made, with other names for the same runs."""
    orders = sorted(root.glob(f"*/{ORDER}")) if root.is_dir() else []
    return [
        path.parent.name
        for path in orders
        if (order := read_json(path)) and order.get("format") != FORMAT
    ]


def cost(study: Study, runs: Sequence[Run], states: Mapping[str, State], jobs: int) -> str:
    """Time that the unfinished runs will take here, from those that have finished here.

    A method costs what its own finished runs cost, or what the others cost on average; where another study has done the
    training, the test alone.
    """
    left = [run for run in runs if states[run.name].condition != "done"]
    if not left:
        return "Nothing left to run."
    spent: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        if states[run.name].condition == "done":
            seconds = states[run.name].record["seconds"]
            spent.setdefault(run.method, []).append((seconds["fit"], seconds["test"]))
    if not spent:
        stated = stated_cost(study) if study.size is None else ""
        return "Cost: not known here before a run has finished." + (
            f" The study says: {stated}" if stated else ""
        )
    every = [pair for each in spent.values() for pair in each]
    total = 0.0
    for run in left:
        fit, test = (fmean(phase) for phase in zip(*spent.get(run.method, every), strict=True))
        share = how_far(states[run.name].progress)[0]
        total += test if is_trained(run) else (fit + test) * (1 - share)
    workers = min(jobs, len(left))
    return f"Cost: about {_duration(total / workers)} for {len(left)} runs, {workers} at a time [from runs finished here]."


def kept_size(study: Study, runs: Sequence[Run], states: Mapping[str, State]) -> str:
    """How large the kept outputs are: what finished runs hold, or the rule."""
    done = [run for run in runs if states[run.name].condition == "done"]
    held = [
        sum(
            path.stat().st_size
            for name in run.test_outputs.values()
            for path in sample_files(run.directory, name)
        )
        for run in done
        if RunDirectory(run.directory).outputs.is_dir()
    ]
    if held:
        each = fmean(held) / 2**20
        return f"Kept outputs: {each:.1f} MB a run, {each * len(runs):.0f} MB for all [from runs finished here]."
    logits = (
        ", and 2 bytes per class for the logits, of test and validation images"
        if study.with_logits
        else ""
    )
    return f"Kept outputs: 31 bytes per image and test cell{logits}; less after compression."


def stated_cost(study: Study) -> str:
    """What the header of the study file says after ``Cost:``; empty if it says nothing."""
    for line in study.path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and "Cost:" in line:
            return line.split("Cost:", 1)[1].strip()
    return ""


def _duration(seconds: float) -> str:
    """Three words at most.

    >>> _duration(50), _duration(600), _duration(9000), _duration(400000)
    ('50 s', '10 min', '2.5 h', '4.6 days')
    """
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f} {name}" if unit == 3600 else f"{value:.0f} {name}"
    return f"{seconds / 86400:.1f} days"
