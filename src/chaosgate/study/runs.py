"""From a study to its runs: every combination, each with a directory that is a function of its configuration."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from chaosgate.provenance import config_hash
from chaosgate.study.specification import CHECKPOINTS, Recipe, Study

# Keys that say where or how fast, never what; a run is the same run with other values.
_MACHINE = {f"data.init_args.{key}" for key in ("cache_dir", "eval_batch_size", "num_workers")} | {
    f"trainer.{key}"
    for key in ("enable_model_summary", "enable_progress_bar", "log_every_n_steps", "logger", "profiler")
}
# Keys that say what is tested. A finished training run serves every choice of them.
_EVALUATION = {"data.init_args.corruptions", "data.init_args.severities"}


@dataclass(frozen=True)
class Run:
    """One training run of a study and its test.

    Args:
        study: Name of the study.
        method: Row of the table.
        levels: Level of every axis of the grid.
        seed: Seed of everything in the run.
        recipe: The parts of the configuration in order.
        root: Directory of all runs of the study.
        checkpoint: Which network is tested, ``best`` or ``last``.
    """

    study: str
    method: str
    levels: Mapping[str, str]
    seed: int
    recipe: Recipe
    root: Path
    checkpoint: str = CHECKPOINTS[0]

    @property
    def name(self) -> str:
        """Readable, and unique through a hash of what shapes the trained network."""
        return "-".join([self.variant, f"seed{self.seed}", self._hash(_MACHINE | _EVALUATION)])

    @property
    def variant(self) -> str:
        """Method and levels: what seeds are averaged over."""
        return "-".join([self.method, *self.levels.values()])

    @property
    def directory(self) -> Path:
        """Where the run lives."""
        return self.root / self.name

    @property
    def test_hash(self) -> str:
        """Changes when another checkpoint or other cells are to be tested: the training is kept, the test repeated."""
        return config_hash([self._hash(_MACHINE), self.checkpoint])

    @property
    def labels(self) -> dict[str, str]:
        """Copied into every result row."""
        return {"study": self.study, "method": self.method, **self.levels}

    def arguments(self) -> list[str]:
        """The command line of ``chaosgate fit`` or ``test`` after the subcommand.

        Files are handed over by content: editing them while a study runs cannot change a run behind its name.
        """
        words: list[str] = []
        for part in self.recipe:
            if part.source is not None:
                words += ["-c", json.dumps(part.content)]
            else:
                words += [
                    f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
                    for key, value in part.content.items()
                ]
        return [
            *words,
            f"--seed_everything={self.seed}",
            f"--run_dir={self.directory}",
            f"--labels={json.dumps(self.labels)}",
        ]

    def _hash(self, ignore: set[str]) -> str:
        parts = [{key: value for key, value in _dotted(part.content) if key not in ignore} for part in self.recipe]
        return config_hash([[part for part in parts if part], self.seed])


def _dotted(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plan_runs(study: Study, root: str | Path) -> list[Run]:
    """All runs, seed by seed, so that an interrupted study has whole comparisons."""
    runs: list[Run] = []
    for seed, (method, recipe) in product(study.seeds, study.methods.items()):
        axes = study.axes_of(method)
        for names in product(*axes.values()):
            levels = dict(zip(axes, names, strict=True))
            special = [part for axis, level in levels.items() for part in axes[axis][level]]
            whole = (*study.base, *recipe, *special)
            runs.append(Run(study.name, method, levels, seed, whole, Path(root) / study.name, study.checkpoint))
    twins: dict[str, str] = {}
    for run in runs:
        key = f"{run.seed}-{run.name.rsplit('-', 1)[-1]}"
        if key in twins:
            raise ValueError(
                f"{study.path}: '{twins[key]}' and '{run.variant}' are one configuration; it would count twice."
            )
        twins[key] = run.variant
    return runs
