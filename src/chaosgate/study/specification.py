"""A study as data: which configurations are compared, over which seeds, by which metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS = ("top1", "nll", "ece", "gap", "brier", "confidence", "top5")
STRENGTH = "strength"
CHECKPOINTS = ("best", "last")


@dataclass(frozen=True)
class Ingredient:
    """A part of a configuration: a file, or dotted keys with values, as on the command line.

    Args:
        content: Nested keys of a file, or dotted keys.
        source: The file; None for dotted keys.
    """

    content: Mapping[str, Any]
    source: Path | None = None


Recipe = tuple[Ingredient, ...]


@dataclass(frozen=True)
class Axis:
    """Something that varies besides method and seed.

    Args:
        levels: Name of every level with what it sets.
        methods: Methods that it applies to; the others are run once, not once per level.
    """

    levels: Mapping[str, Recipe]
    methods: frozenset[str]


@dataclass(frozen=True)
class Sweep:
    """Strengths of one method; the report selects among them by validation NLL.

    Args:
        key: The dotted key that is the strength.
        values: What it takes.
        paper: The value of the paper (or of common use), reported beside the selected one.
    """

    key: str
    values: tuple[float, ...]
    paper: float


@dataclass(frozen=True)
class Study:
    """What a study file says. What is more special wins: base, overrides, method, grid.

    Args:
        name: Names the directory of the runs.
        path: The file.
        base: What all runs share.
        methods: What is compared: rows of the table.
        reference: The method that differences are taken to.
        seeds: Every method is run once per seed; at one seed all methods share initial weights and batches.
        grid: Further axes by name.
        strength: Methods whose strength is swept.
        metrics: Columns of the table.
        checkpoint: Which network of a run is tested: ``best`` (smallest validation NLL) or ``last`` (final epoch).
        paper: Tables of the paper that this study answers; the report sets their numbers beside ours.
        jobs: Workers at a time on one machine, if the command line does not say.
        threads: Threads of each; None shares the cores among the jobs. Sums depend on it in their last digits.
    """

    name: str
    path: Path
    base: Recipe
    methods: Mapping[str, Recipe]
    reference: str
    seeds: tuple[int, ...]
    grid: Mapping[str, Axis]
    strength: Mapping[str, Sweep]
    metrics: tuple[str, ...]
    checkpoint: str = CHECKPOINTS[0]
    paper: tuple[str, ...] = ()
    jobs: int = 1
    threads: int | None = None

    def axes_of(self, method: str) -> dict[str, Mapping[str, Recipe]]:
        """The axes that a method is varied over, with their levels; strength is the last."""
        axes = {name: axis.levels for name, axis in self.grid.items() if method in axis.methods}
        if method in self.strength:
            sweep = self.strength[method]
            axes[STRENGTH] = {f"{value:g}": (Ingredient({sweep.key: value}),) for value in sweep.values}
        return axes
