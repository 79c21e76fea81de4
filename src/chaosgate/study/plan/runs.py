"""From a study file to its runs: every combination, each with a directory that is a function of its configuration.

Whatever is wrong with the file is said in one sentence, before anything runs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chaosgate.run.config_files import did_you_mean, find_config, read_yaml
from chaosgate.run.directory import config_hash
from chaosgate.run.identity import run_name, test_hash
from chaosgate.study.plan.parts import (
    ConfigParts,
    Parse,
    find_file,
    resolve,
    synthetic_folders,
    variables,
)
from chaosgate.study.plan.study import (
    CHECKPOINT,
    CHECKPOINTS,
    Axis,
    Planned,
    Size,
    Study,
    StudyTest,
    Sweep,
    keys_of,
)

Model = TypeVar("Model", bound=BaseModel)

_TAKEN = (
    "run_dir",
    "resume",
    "ckpt_path",
    "checkpoints",
    "labels",
    "outputs",
    "logits",
    "ood",
    "output",
)
"""Keys of a command line that a study sets itself, or has no use for: in a study file they would change nothing."""


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
        tested_otherwise: Whether another method of the study has this training and other tests (Monte Carlo dropout).
        named: Name of the training and :attr:`test_outputs` of a kept study, which has no parsed configurations.
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
    tested_otherwise: bool = False
    named: tuple[str, dict[str, str]] | None = None

    @property
    def name(self) -> str:
        """Unique in the study: that of the directory, with the checkpoint or the method where it serves several."""
        serves = [
            *([self.checkpoint] if CHECKPOINT in self.levels else []),
            *([self.method] * self.tested_otherwise),
        ]
        return "-".join([self.training, *serves])

    @cached_property
    def training(self) -> str:
        """Readable, and unique through a hash of what shapes the trained network; the study is not part of it."""
        return run_name(self.config) if self.named is None else self.named[0]

    @property
    def variant(self) -> str:
        """Method and levels: what seeds are averaged over."""
        return "-".join([self.method, *self.levels.values()])

    @property
    def directory(self) -> Path:
        return self.root / self.training

    @cached_property
    def test_outputs(self) -> dict[str, str]:
        """Hash of every test with the name of its outputs; another checkpoint or other cells are another test."""
        if self.named is not None:
            return self.named[1]
        subjects = [test_hash(self.config, test) for test in self.test_configs]
        kinds = [
            [*(["logits"] if self.logits else []), *(["ood"] if test.ood else [])]
            for test in self.tests
        ]
        names = [
            "-".join([*kind, subject, self.checkpoint])
            for kind, subject in zip(kinds, subjects, strict=True)
        ]
        hashes = [
            config_hash([subject, self.checkpoint, *kind])
            for kind, subject in zip(kinds, subjects, strict=True)
        ]
        return dict(zip(hashes, names, strict=True))

    def outputs_of(self, ood: bool) -> list[str]:
        """Names of the outputs of the tests, or of the test of images that belong to none of the classes."""
        return [
            name
            for test, name in zip(self.tests, self.test_outputs.values(), strict=True)
            if test.ood == ood
        ]

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

    Files are handed over by content: editing them while a study runs cannot change what a run's name means.
    """
    words: list[str] = []
    for part in parts:
        content = resolve(part.content, folders)
        if part.source is not None:
            words += ["-c", json.dumps(content)]
        else:
            words += [
                f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
                for key, value in content.items()
            ]
    return words


def folders_of(study: Study, root: str | Path, allowed: Iterable[str] = ()) -> dict[str, str]:
    """What ``${NAME}`` stands for: environment variables, or folders of synthetic images."""
    synthetic = study.size is not None and study.size.synthetic
    return variables(allowed) | (synthetic_folders(root) if synthetic else {})


def plan_runs(
    study: Study, root: str | Path, parse: Parse, allowed: Iterable[str] = ()
) -> list[Run]:
    """All runs, seed by seed, so that an interrupted study has whole comparisons.

    Args:
        study: The study.
        root: Where studies are stored.
        parse: What the command line makes of a configuration: :func:`chaosgate.cli.fit.parsed`, or the same with
            a memory (:class:`~chaosgate.study.plan.parts.CachedParse`).
        allowed: Environment variables that the study may read besides ``CHAOSGATE_*``.
    """
    size = study.size
    folders = folders_of(study, root, allowed)
    last = size.overrides if size is not None else ()

    def parsed(name: str, words: list[str]) -> Mapping[str, Any]:
        try:
            config = parse(words)
        except ValueError as error:
            raise ValueError(f"{study.path}: method {name}: {error}") from None
        if taken := [key for key in _TAKEN if config.get(key)]:
            raise ValueError(
                f"{study.path}: method {name}: {taken[0]} is set by the study itself; leave it out."
            )
        return config

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
                parsed(
                    f"{variant}, test {test.name}",
                    ["test", *command_line((*parts, *test.parts), folders)],
                )
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
    twins: dict[tuple[str, ...], str] = {}
    for run in runs:
        subject = (run.training, *run.test_outputs)
        if subject in twins:
            raise ValueError(
                f"{study.path}: '{twins[subject]}' and '{run.variant}' are one configuration; it would count twice."
            )
        twins[subject] = run.variant
    times = Counter(run.name for run in runs)
    return [replace(run, tested_otherwise=times[run.name] > 1) for run in runs]


def shared_with(
    study: Study, runs: Sequence[Run], parse: Parse, allowed: Iterable[str] = ()
) -> dict[str, list[str]]:
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
            trainings = {
                run.training for run in plan_runs(other, runs[0].root.parent, parse, allowed)
            }
        except (
            ValueError,
            OSError,
        ):  # no study, or one that has something wrong: it will say so itself
            continue
        for training in trainings:
            users.setdefault(training, []).append(path.stem)
    return {run.name: users.get(run.training, []) for run in runs}


# -- the study file ---------------------------------------------------------------------------------------------------


def load_study(path: str | Path, size: str | None = None) -> Study:
    """Read and check a study file; whatever is wrong is said in one sentence, before anything runs.

    Args:
        path: The file, or the name of a shipped study.
        size: One of the study's ``sizes``; None for the study as it stands.
    """
    path = _find_study(Path(path))
    content = {"name": path.stem, **_given(read_yaml(path))}
    content = {"project": content["name"], **content}
    if size is None:
        study = _validated(Study, content, path)
        study._path = path
        return study
    the_size = _read_size(path, content.get("sizes"), size)
    changed = {
        key: value
        for key in ("seeds", "jobs", "threads")
        if (value := getattr(the_size, key)) is not None
    }
    study = _validated(Study, {**content, **changed}, path)
    # A file of sizes serves several studies; it may mention tests that this one does not have.
    more = the_size.tests
    tests = tuple(
        t.model_copy(update={"parts": (*t.parts, *more.get(t.name, ()))}) for t in study.tests
    )
    names = {key: f"{getattr(study, key)}.{size}" for key in ("name", "project")}
    study = study.model_copy(update={**names, "tests": tests})
    study._path, study._size = path, the_size
    return study


def _find_study(path: Path) -> Path:
    try:
        return find_config(path, group="study")
    except FileNotFoundError as error:
        near = (
            sorted(file.name for file in path.parent.glob("*.yaml"))
            if path.parent != Path()
            else []
        )
        there = f" {path.parent} has {', '.join(near)}." if near else ""
        raise FileNotFoundError(f"{error}{there}") from None


def _read_size(path: Path, sizes: Any, name: str) -> Size:
    """A size, written in the study or in a file of its own."""
    if not sizes:
        raise ValueError(f"{path} has one size only; it has no 'sizes:' and thus no '{name}'.")
    if not isinstance(sizes, dict) or name not in sizes:
        raise ValueError(f"{path}: sizes: no size '{name}'. {did_you_mean(name, sizes)}")
    content = (
        read_yaml(find_file(path, sizes[name])) if isinstance(sizes[name], str) else sizes[name]
    )
    size = _validated(Size, _given(content), path, f"sizes.{name}")
    size._own_name = name
    return size


def _given(content: Any) -> Any:
    """Keys without a value, or with nothing in it, are keys not given."""
    if not isinstance(content, dict):
        return content
    return {
        key: v
        for key, v in content.items()
        if key not in keys_of(Study) or (v is not None and v != {})
    }


def _validated(model: type[Model], content: Any, path: Path, prefix: str = "") -> Model:
    """Validate; pydantic's first complaint becomes a sentence with the file, the key, what was found, what to do."""
    try:
        return model.model_validate(content, context=path)
    except ValidationError as error:
        # An unknown key is the reason why another one is missing, not the other way round.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        if first["type"] == "missing" and first["loc"] == ("reference",):
            names = ", ".join(map(str, content["methods"]))
            raise ValueError(
                f"{path}: 'reference' is missing; name the method to compare to: {names}."
            ) from None
        raise ValueError(f"{path}: {_sentence(model, first, prefix)}") from None


def _sentence(model: type[BaseModel], error: Any, prefix: str) -> str:
    location = [str(part) for part in error["loc"] if not str(part).startswith("[")]
    nested: dict[str, type[BaseModel]] = {"grid": Axis, "strength": Sweep, "planned": Planned}
    at = 1 if location[:1] == ["planned"] else 2  # grid and strength have names in between
    inner = nested.get(location[0]) if len(location) > at else None
    field = (
        (inner or model).model_fields.get(location[at] if inner else location[0])
        if location
        else None
    )
    hint = field.description if field is not None and field.description else str(error["msg"])
    if inner is Axis and location[2] == "levels":  # mostly given without this word
        del location[2]
    key = ".".join(filter(None, [prefix, *location]))
    if error["type"] == "extra_forbidden":
        parent = key.removesuffix(location[-1]).rstrip(".")
        return f"{parent}: no key '{location[-1]}'. {did_you_mean(location[-1], keys_of(inner or model))}".lstrip(
            ": "
        )
    if error["type"] == "value_error":
        return f"{key}: {error['ctx']['error']}".lstrip(": ")
    if error["type"] == "missing":
        return f"'{key}' is missing; give {hint}."
    return f"{key} is {error['input']!r}; give {hint}."
