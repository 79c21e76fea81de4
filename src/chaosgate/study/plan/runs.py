"""From a study to its runs: every combination, each with a directory that is a function of its configuration."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from chaosgate.run.identity import run_name, test_hash
from chaosgate.run.provenance import config_hash
from chaosgate.study.plan.loading import load_study
from chaosgate.study.plan.parsing import Parse
from chaosgate.study.plan.parts import ConfigParts, made_up_folders, resolve, variables
from chaosgate.study.plan.study import CHECKPOINT, CHECKPOINTS, Study, StudyTest


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
        config: The parsed configuration of the training.
        test_configs: Those of the tests.
        checkpoint: Which network is tested: ``best``, ``top1`` or ``last``.
        tests: What it is tested on.
        size: Name of the study's size; empty for the full one.
        folders: Where data are: the values of ``${NAME}`` in the configuration.
        logits: Whether its tests keep logits; a test that has not kept them is repeated.
    """

    study: str
    method: str
    levels: Mapping[str, str]
    seed: int
    parts: ConfigParts
    root: Path
    config: Mapping[str, Any]
    test_configs: tuple[Mapping[str, Any], ...]
    checkpoint: str = CHECKPOINTS[0]
    tests: tuple[StudyTest, ...] = (StudyTest(),)
    size: str = ""
    folders: Mapping[str, str] = field(default_factory=dict)
    logits: bool = False

    @property
    def name(self) -> str:
        """Unique in the study: that of the directory, with the checkpoint where several are tested."""
        return f"{self.training}-{self.checkpoint}" if CHECKPOINT in self.levels else self.training

    @cached_property
    def training(self) -> str:
        """Readable, and unique through a hash of what shapes the trained network; the study has no part in it."""
        return run_name(self.config)

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
        subjects = [test_hash(self.config, test) for test in self.test_configs]
        kinds = [[*(["logits"] if self.logits else []), *(["ood"] if test.ood else [])] for test in self.tests]
        names = ["-".join([*kind, subject, self.checkpoint]) for kind, subject in zip(kinds, subjects, strict=True)]
        hashes = [config_hash([subject, self.checkpoint, *kind]) for kind, subject in zip(kinds, subjects, strict=True)]
        return dict(zip(hashes, names, strict=True))

    def outputs_of(self, ood: bool) -> list[str]:
        """Names of the outputs of the tests, or of the test of images that belong to none of the classes."""
        return [name for test, name in zip(self.tests, self.test_outputs.values(), strict=True) if test.ood == ood]

    @property
    def labels(self) -> dict[str, str]:
        """Copied into every result row."""
        size = {"size": self.size} if self.size else {}
        return {"study": self.study, "method": self.method, **self.levels, **size}

    def arguments(self, test: StudyTest | None = None) -> list[str]:
        """The command line of ``chaosgate fit``, or of ``test`` for a test, after the subcommand."""
        return [
            *command_line((*self.parts, *(test.parts if test is not None else ())), self.folders),
            f"--seed_everything={self.seed}",
            f"--run_dir={self.directory}",
            f"--labels={json.dumps(self.labels)}",
        ]


def command_line(parts: ConfigParts, folders: Mapping[str, str]) -> list[str]:
    """Parts as words of a command line.

    Files are handed over by content: editing them while a study runs cannot change a run behind its name.
    """
    words: list[str] = []
    for part in parts:
        content = resolve(part.content, folders)
        if part.source is not None:
            words += ["-c", json.dumps(content)]
        else:
            words += [
                f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in content.items()
            ]
    return words


def folders_of(study: Study, root: str | Path, allowed: Iterable[str] = ()) -> dict[str, str]:
    """What ``${NAME}`` stands for: environment variables, or folders of made-up images."""
    made_up = study.size is not None and study.size.made_up
    return variables(allowed) | (made_up_folders(root) if made_up else {})


def plan_runs(study: Study, root: str | Path, parse: Parse, allowed: Iterable[str] = ()) -> list[Run]:
    """All runs, seed by seed, so that an interrupted study has whole comparisons.

    Args:
        study: The study.
        root: Where studies live.
        parse: What the command line makes of a configuration: :func:`chaosgate.commands.fit.parsed`, or the same with
            a memory (:class:`~chaosgate.study.plan.parsing.CachedParse`).
        allowed: Environment variables that the study may read besides ``CHAOSGATE_*``.
    """
    size = study.size
    folders = folders_of(study, root, allowed)
    last = size.overrides if size is not None else ()

    def parsed(name: str, words: list[str]) -> Mapping[str, Any]:
        try:
            return parse(words)
        except ValueError as error:
            raise ValueError(f"{study.path}: method {name}: {error}") from None

    runs: list[Run] = []
    for method, own in study.methods.items():
        axes = study.axes_of(method)
        for names in product(*axes.values()):
            levels = dict(zip(axes, names, strict=True))
            special = [part for axis, level in levels.items() for part in axes[axis][level]]
            parts = (*study.base, *study.overrides, *own, *special, *last)
            variant = "-".join([method, *names])
            config = parsed(variant, ["fit", *command_line(parts, folders)])
            tests = [
                parsed(f"{variant}, test {test.name}", ["test", *command_line((*parts, *test.parts), folders)])
                if test.parts
                else config
                for test in study.all_tests
            ]
            runs += [
                Run(
                    study.name,
                    method,
                    levels,
                    seed,
                    parts,
                    Path(root) / study.project,
                    {**config, "seed_everything": seed},
                    tuple({**test, "seed_everything": seed} for test in tests),
                    levels.get(CHECKPOINT, study.checkpoints[0]),
                    study.all_tests,
                    size.name if size is not None else "",
                    folders,
                    study.with_logits,
                )
                for seed in study.seeds
            ]
    runs.sort(key=lambda run: study.seeds.index(run.seed))
    twins: dict[str, str] = {}
    for run in runs:
        if run.name in twins:
            raise ValueError(
                f"{study.path}: '{twins[run.name]}' and '{run.variant}' are one configuration; it would count twice."
            )
        twins[run.name] = run.variant
    return runs


def shared_with(study: Study, runs: Sequence[Run], parse: Parse, allowed: Iterable[str] = ()) -> dict[str, list[str]]:
    """Files (without ending) of the studies in the same folder that share a run's training, by name of the run."""
    size = None if study.size is None else study.size.name
    users: dict[str, list[str]] = {}
    for path in sorted(study.path.parent.glob("*.yaml")):
        if path.resolve() == study.path.resolve():
            continue
        try:
            other = load_study(path, size)
            if other.project != study.project:
                continue
            trainings = {run.training for run in plan_runs(other, runs[0].root.parent, parse, allowed)}
        except (ValueError, OSError):  # no study, or one that has something wrong: it will say so itself
            continue
        for training in trainings:
            users.setdefault(training, []).append(path.stem)
    return {run.name: users.get(run.training, []) for run in runs}
