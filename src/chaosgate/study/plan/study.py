"""A study as data: which configurations are compared, over which seeds, by which metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

METRICS = ("top1", "nll", "ece", "gap", "brier", "confidence", "top5")
STRENGTH, CHECKPOINT = "strength", "checkpoint"
CHECKPOINTS = ("best", "top1", "last")


@dataclass(frozen=True)
class ConfigPart:
    """A part of a configuration: a file, or dotted keys with values, as on the command line.

    Args:
        content: Nested keys of a file, or dotted keys.
        source: The file; None for dotted keys.
    """

    content: Mapping[str, Any]
    source: Path | None = None


ConfigParts = tuple[ConfigPart, ...]


@dataclass(frozen=True)
class Axis:
    """Something that varies besides method and seed.

    Args:
        levels: Name of every level with what it sets.
        methods: Methods that it applies to; the others are run once, not once per level.
    """

    levels: Mapping[str, ConfigParts]
    methods: frozenset[str]


@dataclass(frozen=True)
class Sweep:
    """Strengths of one method; the report selects among them by validation NLL.

    Args:
        key: The dotted key that is the strength.
        values: What it takes.
        paper: The value of the paper (or of common use), reported beside the selected one; None selects nothing: all
            strengths are shown, as in the paper's sweeps.
    """

    key: str
    values: tuple[float, ...]
    paper: float | None


@dataclass(frozen=True)
class StudyTest:
    """What trained networks are tested on.

    Args:
        name: Of the test.
        parts: What differs from the training configuration, e.g. other data; nothing for its own test set.
    """

    name: str = "test"
    parts: ConfigParts = ()


@dataclass(frozen=True)
class Size:
    """Another size of a study: the same comparisons with other means, for instance to see that everything works.

    Args:
        name: Of the size; part of the name of the study, of its runs and of every row.
        overrides: Set last, for all runs.
        tests: What differs in some of the tests, by name.
        made_up: Train and test on images that are written for the purpose (:mod:`chaosgate.data.sets.made_up`).
    """

    name: str
    overrides: ConfigParts = ()
    tests: Mapping[str, ConfigParts] = field(default_factory=dict)
    made_up: bool = False

    @property
    def warning(self) -> str:
        """What every report of this size says first."""
        images = ", on made-up images" if self.made_up else ""
        return f"Size {self.name}{images}: it shows that the path works; its numbers say nothing about any method."


@dataclass(frozen=True)
class Study:
    """What a study file says. What is more special wins: base, overrides, method, grid, size.

    Args:
        name: Names the directory of the report.
        path: The file.
        project: Names the directory of the runs. Studies of one project share their training runs: where two ask for
            the same training, it happens once, and each adds the tests that are missing.
        base: What all runs share.
        methods: What is compared: rows of the table.
        reference: The method that differences are taken to.
        seeds: Every method is run once per seed; at one seed all methods share initial weights and batches.
        grid: Further axes by name.
        strength: Methods whose strength is swept.
        metrics: Columns of the table.
        tests: What the networks are tested on; a row of the table has the cells of all of them.
        checkpoints: Which network of a run is tested: ``best`` (smallest validation NLL), ``top1`` (largest validation
            Top-1) or ``last`` (final epoch). Several become an axis: a row for each.
        paper: Tables of the paper that this study answers; the report sets their numbers beside ours.
        jobs: Workers at a time on one machine, if the command line does not say.
        threads: Threads of each; None shares the cores among the jobs. Sums depend on it in their last digits.
        size: The size that was asked for; None for the study as it stands.
    """

    name: str
    path: Path
    project: str
    base: ConfigParts
    methods: Mapping[str, ConfigParts]
    reference: str
    seeds: tuple[int, ...]
    grid: Mapping[str, Axis]
    strength: Mapping[str, Sweep]
    metrics: tuple[str, ...]
    tests: tuple[StudyTest, ...] = (StudyTest(),)
    checkpoints: tuple[str, ...] = CHECKPOINTS[:1]
    paper: tuple[str, ...] = ()
    jobs: int = 1
    threads: int | None = None
    size: Size | None = None

    @property
    def checkpoint(self) -> str:
        """The tested checkpoints, in words."""
        return " and ".join(self.checkpoints)

    def axes_of(self, method: str) -> dict[str, Mapping[str, ConfigParts]]:
        """The axes that a method is varied over, with their levels; strength is the last."""
        axes = {name: axis.levels for name, axis in self.grid.items() if method in axis.methods}
        if len(self.checkpoints) > 1:  # nothing to set: the training is the same
            axes[CHECKPOINT] = dict.fromkeys(self.checkpoints, ())
        if method in self.strength:
            sweep = self.strength[method]
            axes[STRENGTH] = {f"{value:g}": (ConfigPart({sweep.key: value}),) for value in sweep.values}
        return axes
