"""From a study file to its runs: every combination, each with a directory that its content names.

The name of a directory follows from the composed configuration with all defaults
(:mod:`chaosgate.run.identity`), so a default that changes in the code makes another run.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from chaosgate.run.files import config_hash, read_json, write_json
from chaosgate.run.identity import run_name, test_hash, versions
from chaosgate.study.plan.study import CHECKPOINT, COMMAND, ConfigParts, Study, load_study, resolve

__all__ = ["Run", "folders_of", "load_study", "plan_runs", "recall", "remember"]
Compose = Callable[[Sequence[str]], Mapping[str, Any]]
"""From files and keys of a command line to the configuration as plain data; ValueError if wrong."""
SYNTHETIC, PLAN = "synthetic", "plan.json"


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
        checkpoint: Which network is tested: ``best``, ``top1`` or ``last``.
        size: Name of the study's size; empty for the full one.
        name: Unique in the study: the training, with the variant where it serves several.
        logits: Whether its tests keep logits; a test that has not kept them is repeated.
        config: The composed configuration of the training, or the ``command`` that trains. Like
            the next it is empty for a run that is only looked at.
        test_configs: Those of the tests.
    """

    study: str
    method: str
    levels: Mapping[str, str]
    seed: int
    root: Path
    training: str
    test_outputs: Mapping[str, str]
    checkpoint: str = "best"
    size: str = ""
    name: str = ""
    logits: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    test_configs: Sequence[Mapping[str, Any]] = ()

    @property
    def variant(self) -> str:
        """Method and levels; numbers are averaged over the seeds of a variant."""
        return "-".join([self.method, *self.levels.values()])

    @property
    def title(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @property
    def directory(self) -> Path:
        return self.root / self.training

    @property
    def labels(self) -> dict[str, str]:
        """Copied into every result row."""
        size = {"size": self.size} if self.size else {}
        return {"study": self.study, "method": self.method, **self.levels, **size}


def folders_of(study: Study, root: str | Path) -> dict[str, str]:
    """The values of ``${NAME}``: environment variables, or folders of synthetic images."""
    found = {name: value for name, value in os.environ.items() if name.startswith("CHAOSGATE_")}
    for name in ("imagenet", "imagenet_c", "pets") if study.synthetic else ():
        found[f"CHAOSGATE_{name.upper()}"] = str(Path(root) / SYNTHETIC / name)
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


def plan_runs(study: Study, root: str | Path, compose: Compose) -> list[Run]:
    """All runs, seed by seed, so that an interrupted study has whole comparisons.

    Args:
        study: The study.
        root: Where studies are stored.
        compose: :func:`chaosgate.cli.training.compose`.
    """
    folders, runs = folders_of(study, root), []
    for method, own in study.methods.items():
        axes = study.axes_of(method)
        for names in product(*axes.values()):
            levels = dict(zip(axes, names, strict=True))
            made = Run(
                *(study.name, method, levels, 0, Path(root) / study.project, "", {}),
                checkpoint=levels.get(CHECKPOINT, study.checkpoint[0]),
                size=study.size,
                logits=study.keep_logits or study.ensemble is not None,
            )
            special = [part for axis, level in levels.items() for part in axes[axis][level]]
            parts = (*study.base, *study.overrides, *own, *special, *study.last)
            try:
                if own and COMMAND in own[0].content:
                    command = str(resolve(own[0].content[COMMAND], folders))
                    runs += [_of_program(made, command, seed) for seed in study.seeds]
                    continue
                config = compose(command_line(parts, folders))
                tests = [
                    compose(command_line((*parts, *more), folders)) if more else config
                    for more in study.tests.values()
                ]
            except ValueError as error:
                raise ValueError(f"{study.path}: method {made.variant}: {error}") from None
            runs += [_seeded(made, config, tests, seed) for seed in study.seeds]
    runs.sort(key=lambda run: study.seeds.index(run.seed))
    twins: dict[tuple[str, ...], str] = {}
    for run in runs:
        subject = (run.training, *run.test_outputs)
        if subject in twins:
            raise ValueError(
                f"{study.path}: '{twins[subject]}' and '{run.title}' are one configuration; it "
                "would count twice."
            )
        twins[subject] = run.title
    times = Counter(run.training for run in runs)
    return [
        replace(run, name=run.training + f"-{run.variant}" * (times[run.training] > 1))
        for run in runs
    ]


def _seeded(
    run: Run, config: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], seed: int
) -> Run:
    """The run of a seed: names of its directory and of the outputs of its tests."""
    config, *tests = ({**one, "seed_everything": seed} for one in (config, *tests))
    kind, outputs = ["logits"] * run.logits, {}
    for test in tests:
        name = [*kind, subject := test_hash(config, test), run.checkpoint]
        outputs[config_hash([subject, run.checkpoint, *kind])] = "-".join(name)
    more: dict[str, Any] = {"test_outputs": outputs, "config": config, "test_configs": tests}
    return replace(run, seed=seed, training=run_name(config), **more)


def _of_program(run: Run, command: str, seed: int) -> Run:
    """A run of another program, which trains and tests in one go.

    ``{run_dir}`` is filled in when it starts.
    """
    values = {"run_dir": "{run_dir}", "seed": seed, "method": run.method, **run.levels}
    try:
        command = command.format(**values)
    except LookupError as error:
        known = ", ".join(f"{{{key}}}" for key in values)
        raise ValueError(
            f"command has {error}; there are {known}. Write other braces twice."
        ) from None
    return replace(
        run,
        seed=seed,
        training=f"{run.method}-seed{seed}-{config_hash([command, seed])}",
        test_outputs={config_hash([command, seed, COMMAND]): COMMAND},
        checkpoint="last",
        config={COMMAND: command, "seed_everything": seed},
    )


# -- the last plan, for commands that train nothing ------------------------------------------------


def remember(study: Study, runs: Sequence[Run], root: Path) -> None:
    """Keep the list of runs: to compose their configurations takes the import of torch."""
    entries = [asdict(replace(run, config={}, test_configs=())) | {"root": ""} for run in runs]
    with suppress(OSError):  # a read-only folder
        (root / study.name).mkdir(parents=True, exist_ok=True)
        write_json(root / study.name / PLAN, {"key": _key(study, root), "runs": entries})


def recall(study: Study, root: Path) -> list[Run] | None:
    """The runs of the last plan; None if the study, its files or the versions changed since."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        content = read_json(root / study.name / PLAN)
        if content["key"] == _key(study, root):
            return [Run(**{**entry, "root": root / study.project}) for entry in content["runs"]]
    return None


def _key(study: Study, root: Path) -> str:
    """Hash of the study, its files, folders and versions."""
    more = [folders_of(study, root), versions()]
    return config_hash([study.model_dump(mode="json"), more], digits=64)
