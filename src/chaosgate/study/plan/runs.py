"""From a study file to its runs: every combination, each with a directory that its content names.

The name of a directory follows from the composed configuration with all defaults
(:mod:`chaosgate.run.identity`), so a default that changes in the code makes another run.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import chaosgate
from chaosgate.run.config_files import allowed_modules
from chaosgate.run.directory import config_hash, read_json, write_json
from chaosgate.run.identity import run_name, test_hash, versions
from chaosgate.study.plan.study import (
    CHECKPOINT,
    CHECKPOINTS,
    COMMAND,
    FOLDERS,
    ConfigParts,
    Study,
    StudyTest,
    load_study,
    resolve,
    variables,
)

__all__ = ["Run", "folders_of", "load_study", "plan_runs", "recall", "remember"]
Compose = Callable[[Sequence[str]], Mapping[str, Any]]
"""From files and keys of a command line to the configuration as plain data; ValueError if wrong."""
SYNTHETIC = "synthetic"
_TAKEN = "run_dir resume ckpt_path checkpoints labels outputs logits ood output".split()
"""Keys of a command line that a study sets itself, or that would change nothing."""
_ENTRY = (
    "study method levels seed training test_outputs checkpoint size tested_otherwise logits"
).split()
"""What is remembered of a run."""


@dataclass(frozen=True)
class Run:
    """One training of a study and its tests. Several runs may share a training.

    Args:
        study: Name of the study.
        method: Row of the table.
        levels: Level of every axis of the grid.
        seed: Seed of everything in the run.
        root: Directory of all trainings of the project.
        training: Name of the directory: readable, and unique through a hash of what shapes the
            trained network; the study is not part of it.
        test_outputs: Hash of every test with the name of its outputs; another checkpoint or other
            cells are another test.
        tests: What the network is tested on.
        checkpoint: Which network is tested: ``best``, ``top1`` or ``last``.
        size: Name of the study's size; empty for the full one.
        tested_otherwise: Whether another method of the study has this training and other tests
            (Monte Carlo dropout).
        config: The composed configuration of the training, or the ``command`` that trains. Like
            the next it is empty for a run that is only looked at.
        test_configs: Those of the tests.
        logits: Whether its tests keep logits; a test that has not kept them is repeated.
        folders: The values of ``${NAME}`` in the configuration.
    """

    study: str
    method: str
    levels: Mapping[str, str]
    seed: int
    root: Path
    training: str
    test_outputs: Mapping[str, str]
    tests: tuple[StudyTest, ...] = (StudyTest(),)
    checkpoint: str = CHECKPOINTS[0]
    size: str = ""
    tested_otherwise: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    test_configs: tuple[Mapping[str, Any], ...] = ()
    logits: bool = False
    folders: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique in the study: the directory, with checkpoint or method where it serves several."""
        serves = [self.checkpoint] if CHECKPOINT in self.levels else []
        serves += [self.method] if self.tested_otherwise else []
        return "-".join([self.training, *serves])

    @property
    def variant(self) -> str:
        """Method and levels: what seeds are averaged over."""
        return "-".join([self.method, *self.levels.values()])

    @property
    def directory(self) -> Path:
        return self.root / self.training

    def outputs_of(self, ood: bool) -> list[str]:
        """Names of the outputs of the tests, or of the test of images of other classes."""
        named = zip(self.tests, self.test_outputs.values(), strict=True)
        return [name for test, name in named if test.ood == ood]

    @property
    def labels(self) -> dict[str, str]:
        """Copied into every result row."""
        size = {"size": self.size} if self.size else {}
        return {"study": self.study, "method": self.method, **self.levels, **size}


def folders_of(study: Study, root: str | Path, allowed: Iterable[str] = ()) -> dict[str, str]:
    """The values of ``${NAME}``: environment variables, or folders of synthetic images."""
    found = variables(allowed)
    if study.size is not None and study.size.synthetic:
        short = {name: name.removeprefix("CHAOSGATE_").lower() for name in FOLDERS}
        found |= {name: str(Path(root) / SYNTHETIC / short[name]) for name in FOLDERS}
    return found


def command_line(parts: ConfigParts, folders: Mapping[str, str]) -> list[str]:
    """Parts as words of a command line; files by content, which an edit cannot change any more."""
    words: list[str] = []
    for part in parts:
        content = resolve(part.content, folders)
        if part.source is not None:
            words += ["-c", json.dumps(content)]
            continue
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in content.items()}
        words += [f"--{key}={text}" for key, text in texts.items()]
    return words


def plan_runs(
    study: Study, root: str | Path, compose: Compose, allowed: Iterable[str] = ()
) -> list[Run]:
    """All runs, seed by seed, so that an interrupted study has whole comparisons.

    Args:
        study: The study.
        root: Where studies are stored.
        compose: :func:`chaosgate.cli.training.compose`.
        allowed: Environment variables that the study may read besides ``CHAOSGATE_*``.
    """
    folders = folders_of(study, root, allowed)
    last = study.size.overrides if study.size is not None else ()

    def composed(name: str, parts: ConfigParts) -> Mapping[str, Any]:
        try:
            config = compose(command_line(parts, folders))
        except ValueError as error:
            raise ValueError(f"{study.path}: method {name}: {error}") from None
        if taken := [key for key in _TAKEN if config.get(key)]:
            raise ValueError(
                f"{study.path}: method {name}: {taken[0]} is set by the study itself; leave it out."
            )
        return config

    def made(method: str, levels: Mapping[str, str], seed: int, **more: Any) -> Run:
        name = study.size.name if study.size is not None else ""
        place, logits = Path(root) / study.project, study.with_logits
        more |= {"size": name, "logits": logits, "folders": folders}
        return Run(study.name, method, levels, seed, place, **more)

    runs: list[Run] = []
    for method, own in study.methods.items():
        axes = study.axes_of(method)
        for names in product(*axes.values()):
            levels = dict(zip(axes, names, strict=True))
            if own and COMMAND in own[0].content:
                template = str(resolve(own[0].content[COMMAND], folders))
                for seed in study.seeds:
                    command = _filled(template, {"seed": seed, "method": method, **levels}, study)
                    runs.append(made(method, levels, seed, **_program(command, method, seed)))
                continue
            special = [part for axis, level in levels.items() for part in axes[axis][level]]
            parts = (*study.base, *study.overrides, *own, *special, *last)
            variant = "-".join([method, *names])
            config = composed(variant, parts)
            tests = [
                composed(f"{variant}, test {test.name}", (*parts, *test.parts))
                if test.parts
                else config
                for test in study.all_tests
            ]
            for seed in study.seeds:
                seeded = [{**one, "seed_everything": seed} for one in (config, *tests)]
                checkpoint = levels.get(CHECKPOINT, study.checkpoints[0])
                more = _training(study, checkpoint, seeded[0], tuple(seeded[1:]))
                runs.append(made(method, levels, seed, **more))
    runs.sort(key=lambda run: study.seeds.index(run.seed))
    twins: dict[tuple[str, ...], str] = {}
    for run in runs:
        subject = (run.training, *run.test_outputs)
        if subject in twins:
            raise ValueError(
                f"{study.path}: '{twins[subject]}' and '{run.variant}' are one configuration; it "
                "would count twice."
            )
        twins[subject] = run.variant
    times = Counter(run.name for run in runs)
    return [replace(run, tested_otherwise=times[run.name] > 1) for run in runs]


def _training(
    study: Study,
    checkpoint: str,
    config: Mapping[str, Any],
    test_configs: tuple[Mapping[str, Any], ...],
) -> dict[str, Any]:
    """What a training and its tests are called, and what they are."""
    outputs = {}
    for test, test_config in zip(study.all_tests, test_configs, strict=True):
        kind = ["logits"] * study.with_logits + ["ood"] * test.ood
        subject = test_hash(config, test_config)
        name = "-".join([*kind, subject, checkpoint])
        outputs[config_hash([subject, checkpoint, *kind])] = name
    names = {"training": run_name(config), "test_outputs": outputs, "checkpoint": checkpoint}
    return {**names, "tests": study.all_tests, "config": config, "test_configs": test_configs}


def _program(command: str, method: str, seed: int) -> dict[str, Any]:
    """The same for a run of another program, which trains and tests in one go."""
    training = f"{method}-seed{seed}-{config_hash([command, seed])}"
    outputs = {config_hash([command, seed, COMMAND]): COMMAND}
    config = {COMMAND: command, "seed_everything": seed}
    more = {"test_outputs": outputs, "checkpoint": "last", "config": config}
    return {"training": training, **more}


def _filled(template: str, values: Mapping[str, Any], study: Study) -> str:
    """The command with its values; ``{run_dir}`` is filled in when it starts."""
    try:
        return template.format(run_dir="{run_dir}", **values)
    except (LookupError, ValueError) as error:
        known = ", ".join(f"{{{key}}}" for key in ("run_dir", *values))
        raise ValueError(
            f"{study.path}: method {values['method']}: command has {error}; there are {known}. "
            "Write other braces twice."
        ) from None


# -- the last plan, for commands that only look ----------------------------------------------------


def remember(study: Study, runs: Sequence[Run], root: Path, allowed: Iterable[str] = ()) -> None:
    """Keep which runs a study has: to compose their configurations takes the import of torch."""
    entries = [{key: getattr(run, key) for key in _ENTRY} for run in runs]
    content = {"key": _key(study, root, allowed), "runs": entries}
    with suppress(OSError):  # a folder that can only be read
        (root / study.name).mkdir(parents=True, exist_ok=True)
        write_json(root / study.name / "plan.json", content)


def recall(study: Study, root: Path, allowed: Iterable[str] = ()) -> list[Run] | None:
    """The runs of the last plan; None if the study, its files or the code changed since."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        content = read_json(root / study.name / "plan.json")
        if content["key"] == _key(study, root, allowed):
            more: Any = {"root": root / study.project}
            more |= {"folders": folders_of(study, root, allowed)}
            tests = study.all_tests
            found = [{**e, "tests": tests[: len(e["test_outputs"])]} for e in content["runs"]]
            return [Run(**entry, **more) for entry in found]
    return None


def _key(study: Study, root: Path, allowed: Iterable[str]) -> str:
    """What the names of runs follow from: the study, its files, folders, versions, this code."""
    code, package = hashlib.sha256(), Path(chaosgate.__file__).parent
    for path in sorted(package.rglob("*.py")):
        code.update(path.read_bytes())
    content = [one and one.model_dump(mode="json") for one in (study, study.size)]
    more = [folders_of(study, root, allowed), allowed_modules(), versions(), code.hexdigest()]
    return config_hash([content, more], digits=64)
