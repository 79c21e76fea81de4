"""From a study to its runs: every combination, each with a directory that is a function of its configuration."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from chaosgate.run.provenance import config_hash
from chaosgate.study.plan.config_parts import ConfigParts
from chaosgate.study.plan.data_folders import made_up_folders, resolve
from chaosgate.study.plan.identity import compose, test_hash, training_hash
from chaosgate.study.plan.loading import load_study
from chaosgate.study.plan.study import CHECKPOINT, CHECKPOINTS, Study, StudyTest

_STRENGTHS = ("gamma", "log_std", "p", "sigma")


@dataclass(frozen=True)
class Run:
    """One training run of a study and its tests. Several runs, of one study or of many, may share a training.

    Args:
        study: Name of the study.
        method: Row of the table.
        levels: Level of every axis of the grid.
        seed: Seed of everything in the run.
        parts: The parts of the training configuration in order.
        root: Directory of all training runs of the project.
        checkpoint: Which network is tested: ``best``, ``top1`` or ``last``.
        tests: What it is tested on.
        size: Name of the study's size; empty for the full one.
        folders: Where data are, for ``${NAME}`` in the configuration; the environment has the others.
    """

    study: str
    method: str
    levels: Mapping[str, str]
    seed: int
    parts: ConfigParts
    root: Path
    checkpoint: str = CHECKPOINTS[0]
    tests: tuple[StudyTest, ...] = (StudyTest(),)
    size: str = ""
    folders: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """Unique in the study: that of the directory, with the checkpoint where several are tested."""
        return f"{self.training}-{self.checkpoint}" if CHECKPOINT in self.levels else self.training

    @cached_property
    def training(self) -> str:
        """Readable, and unique through a hash of what shapes the trained network; the study has no part in it."""
        whole = compose(self.parts)
        words = [str((whole.get("model") or {}).get("backbone", "")), *_noise_words(whole.get("noise") or {})]
        return "-".join([*filter(None, words), f"seed{self.seed}", training_hash(self.parts, self.seed)])

    @property
    def variant(self) -> str:
        """Method and levels: what seeds are averaged over."""
        return "-".join([self.method, *self.levels.values()])

    @property
    def directory(self) -> Path:
        """Where the training lives."""
        return self.root / self.training

    @cached_property
    def test_outputs(self) -> dict[str, str]:
        """Hash of every test with the name of its outputs; another checkpoint or other cells are another test."""
        subjects = [test_hash(self.parts, test.parts, self.seed) for test in self.tests]
        return {config_hash([subject, self.checkpoint]): f"{subject}-{self.checkpoint}" for subject in subjects}

    @property
    def labels(self) -> dict[str, str]:
        """Copied into every result row."""
        size = {"size": self.size} if self.size else {}
        return {"study": self.study, "method": self.method, **self.levels, **size}

    def arguments(self, test: StudyTest | None = None) -> list[str]:
        """The command line of ``chaosgate fit``, or of ``test`` for a test, after the subcommand.

        Files are handed over by content: editing them while a study runs cannot change a run behind its name.
        """
        words: list[str] = []
        for part in (*self.parts, *(test.parts if test is not None else ())):
            content = resolve(part.content, self.folders)
            if part.source is not None:
                words += ["-c", json.dumps(content)]
            else:
                words += [
                    f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
                    for key, value in content.items()
                ]
        return [
            *words,
            f"--seed_everything={self.seed}",
            f"--run_dir={self.directory}",
            f"--labels={json.dumps(self.labels)}",
        ]


def _noise_words(noise: Mapping[str, Any]) -> list[str]:
    """Class, strength and stages of a gate, for the name of a directory."""
    gate = noise.get("gate")
    if not gate:
        return ["none"]
    arguments = gate.get("init_args") or {}
    strengths = [f"{key}{arguments[key]:g}" for key in _STRENGTHS if isinstance(arguments.get(key), int | float)]
    return [str(gate.get("class_path")).rsplit(".", 1)[-1], *strengths, "+".join(noise.get("stages") or [])]


def plan_runs(study: Study, root: str | Path) -> list[Run]:
    """All runs, seed by seed, so that an interrupted study has whole comparisons."""
    size = study.size
    folders = made_up_folders(root) if size is not None and size.made_up else None
    runs: list[Run] = []
    for seed, (method, own) in product(study.seeds, study.methods.items()):
        axes = study.axes_of(method)
        for names in product(*axes.values()):
            levels = dict(zip(axes, names, strict=True))
            special = [part for axis, level in levels.items() for part in axes[axis][level]]
            runs.append(
                Run(
                    study.name,
                    method,
                    levels,
                    seed,
                    (*study.base, *study.overrides, *own, *special, *(size.overrides if size is not None else ())),
                    Path(root) / study.project,
                    levels.get(CHECKPOINT, study.checkpoints[0]),
                    study.tests,
                    size.name if size is not None else "",
                    folders,
                )
            )
    twins: dict[str, str] = {}
    for run in runs:
        if run.name in twins:
            raise ValueError(
                f"{study.path}: '{twins[run.name]}' and '{run.variant}' are one configuration; it would count twice."
            )
        twins[run.name] = run.variant
    return runs


def shared_with(study: Study, runs: Sequence[Run]) -> dict[str, list[str]]:
    """Files (without ending) of the studies in the same folder that share a run's training, by name of the run."""
    size = None if study.size is None else study.size.name
    users: dict[str, list[str]] = {}
    for path in sorted(study.path.parent.glob("*.yaml")):
        if path.resolve() == study.path.resolve():
            continue
        try:
            other = load_study(path, size)
            trainings = {run.training for run in plan_runs(other, runs[0].root.parent)}
        except (ValueError, OSError):  # no study, or one that has something wrong: it will say so itself
            continue
        for training in trainings if other.project == study.project else ():
            users.setdefault(training, []).append(path.stem)
    return {run.name: users.get(run.training, []) for run in runs}
