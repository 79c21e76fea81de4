"""The schema of a study file: configurations to compare, seeds, metrics.

A study is put together from *parts*: YAML files and dotted keys, from left to right. ``${NAME}`` in
a part stands for a data folder, which differs from machine to machine.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from chaosgate.run.files import config_folder, did_you_mean, find_config, read_yaml
from chaosgate.study.report.names import NAMES, PLUS_T, is_packed, scaled

STRENGTH, CHECKPOINT, COMMAND = "strength", "checkpoint", "command"
_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")


@cache
def paper_data() -> dict[str, dict[str, Any]]:
    """The paper's tables by name: label, layout and rows, from ``paper_tables.yaml``."""
    text = (files("chaosgate.study.plan") / "paper_tables.yaml").read_text(encoding="utf-8")
    content: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return content


# -- parts of a configuration ----------------------------------------------------------------------


@dataclass(frozen=True)
class ConfigPart:
    """A file, or dotted keys with values.

    Args:
        content: Nested keys of a file, or dotted keys.
        source: The file; None for dotted keys.
    """

    content: dict[str, Any]
    source: Path | None = None


ConfigParts = tuple[ConfigPart, ...]


def find_file(study: Path, name: str) -> Path:
    """A file named in a study: beside the study or in a folder above it, else a shipped one.

    So a name means the same file whatever the current directory. For a shipped study, a copy made
    by ``chaosgate configs copy`` in the current directory wins, as it does after ``-c``.
    """
    start = study.resolve().parent
    here = [Path.cwd()] * start.is_relative_to(config_folder().resolve())
    return find_config(name, (*here, start, *start.parents))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _parts(value: Any, info: ValidationInfo) -> ConfigParts:
    study, found = info.context or Path(), []
    for part in _listed(value):
        if isinstance(part, dict):
            found.append(ConfigPart({str(key): entry for key, entry in part.items()}))
        elif not isinstance(part, str):
            raise ValueError(f"{part!r} is neither a file nor keys (trainer.max_epochs: 20).")
        elif not is_packed(study.parent):  # there the file may be gone by now
            file = find_file(study, part)
            found.append(ConfigPart(read_yaml(file), file))
    return tuple(found)


def resolve(value: Any, folders: Mapping[str, str]) -> Any:
    """``value`` with names replaced by folders; unknown names stay.

    >>> resolve({"root": "${CHAOSGATE_PETS}", "n": 3}, {"CHAOSGATE_PETS": "/data"})
    {'root': '/data', 'n': 3}
    """

    def folder(name: re.Match[str]) -> str:
        return json.dumps(folders.get(name[1], name[0]))[1:-1]

    return json.loads(_VARIABLE.sub(folder, json.dumps(value)))


def require_folders(study: "Study", folders: Mapping[str, str]) -> None:
    """Refuse missing folders of data before anything is trained."""
    names = sorted({*_VARIABLE.findall(repr(study))})
    found = {name: folders.get(name, "not set") for name in names}
    missing = [f"{n} is {one}" for n, one in found.items() if not Path(one).expanduser().exists()]
    if missing:
        raise FileNotFoundError(
            f"the data are missing: {', '.join(missing)}, which does not exist. Set the "
            "variable, or try --size smoke."
        )


# -- the schema ------------------------------------------------------------------------------------

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+]*$")]
"""Part of the name of a directory."""
Parts = Annotated[ConfigParts, BeforeValidator(_parts)]
OneOrMore = BeforeValidator(_listed)
Names = Annotated[tuple[str, ...], OneOrMore]
_METRICS = "|".join([*NAMES, *map(scaled, PLUS_T)])
Endpoint = Annotated[str, Field(pattern=rf"^(clean|corrupted) ({_METRICS})$")]
Contrast = Annotated[str, Field(pattern=r"^\S+ - \S+$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Axis(_Entry):
    """A further axis of the study, besides method and seed.

    Attributes:
        levels: The levels by name, with their settings; may be given alone, without this key.
        methods: Methods that vary along the axis (None: all); the others are run once.
    """

    levels: dict[Name, Parts] = Field(min_length=1)
    methods: tuple[str, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _levels_alone(cls, value: Any) -> Any:
        whole = isinstance(value, dict) and set(value) == {"levels", "methods"}
        return value if whole else {"levels": value}


class Sweep(_Entry):
    """Strengths of one method; the report selects among them by validation NLL.

    Attributes:
        key: The dotted key of the strength.
        values: Its values.
        paper: The value in the paper (or the usual one), reported beside the selected one; with
            None all strengths are shown and none is selected, as in the paper's sweeps.
    """

    key: str
    values: tuple[FiniteFloat, ...] = Field(min_length=1)
    paper: FiniteFloat | None = None


class Ensemble(_Entry):
    """A deep ensemble of existing runs: the mean of their probabilities, a row without training.

    Attributes:
        of: The method; without a swept strength or further axes.
        size: Number of members, runs with different seeds; more seeds give more ensembles.
    """

    of: str
    size: int = Field(ge=2)


class Planned(_Entry):
    """The plan of a study, written before its first run.

    Attributes:
        claims: The expected results.
        endpoint: The deciding metric, ``PART METRIC``, e.g. ``clean nll_T``; one or several.
        contrasts: ``METHOD - METHOD``, or ``METHOD - METHOD+T``; of a method with swept strengths,
            the selected one is compared. Significance is corrected for these only.
        refuted_if: The result that would refute the claims.
    """

    claims: Names = Field(min_length=1)
    endpoint: Annotated[tuple[Endpoint, ...], OneOrMore] = Field(("clean nll_T",), min_length=1)
    contrasts: Annotated[tuple[Contrast, ...], OneOrMore] = Field(min_length=1)
    refuted_if: str


class Study(_Entry):
    """The content of a study file. Later settings win: base, overrides, method, grid, last.

    Attributes:
        name: Name of the report's directory (default: that of the file).
        project: Name of the directory of the runs. Studies of one project share their trainings:
            the same training runs once, and each study adds the missing tests.
        base: Shared configuration of all runs.
        overrides: Shared settings that override the files: dotted keys.
        methods: The methods to compare, rows of the table. ``{command: "python train.py --seed
            {seed} --out {run_dir}"}`` runs your own program (:mod:`chaosgate.study.execute.run`).
        reference: The method that the others are compared to.
        contrast: Methods that are compared with every other one (default: all pairs, if there are
            few).
        seeds: Every method is run once per seed; at one seed all methods share initial weights and
            batches.
        grid: Further axes by name.
        strength: Methods whose strength is swept.
        tests: Tests of the networks by name: settings that differ from the training. A row of the
            table has the cells of all tests.
        checkpoint: The tested network of a run: ``best`` (smallest validation NLL), ``top1``
            (largest validation Top-1) or ``last`` (final epoch). Several become an axis.
        metrics: Columns of the table.
        planned: The plan (:class:`Planned`). It is hashed before the first run; the report says
            whether it changed afterwards.
        paper: Tables of the paper; the report shows their numbers beside ours.
        reading: Meaning of gamma in the ImageNet tables (documentation: choices): ``budget``, with
            the epsilon of the noise file, or ``unit``, with beta 1. ``unit`` removes epsilon from
            every method and adds ``.unit`` to the name of the study.
        keep_logits: Keep the logits of every test and validation image in half precision.
        ensemble: An :class:`Ensemble`; keeps the logits.
        jobs: Runs at a time on one machine.
        threads: Threads of each; None shares the cores among the jobs. The last digits of sums
            depend on it.
        sizes: The same comparisons with less work, by name: a file with ``seeds``, ``jobs``,
            ``threads``, ``tests`` (added to those of the same name), ``overrides`` (set last) and
            ``synthetic`` (train and test on synthetic images).
    """

    name: Name
    project: Name
    base: Parts = ()
    overrides: Parts = ()
    methods: dict[Name, Parts] = Field(min_length=1)
    reference: str
    contrast: Names = ()
    seeds: Annotated[tuple[NonNegativeInt, ...], OneOrMore] = Field((0,), min_length=1)
    grid: dict[Name, Axis] = {}
    strength: dict[str, Sweep] = {}
    tests: dict[str, Parts] = Field({"test": ()}, min_length=1)
    checkpoint: Annotated[tuple[Literal["best", "top1", "last"], ...], OneOrMore] = ("best",)
    metrics: Names = Field(("top1", "nll", "ece", "gap"), min_length=1)
    planned: Planned | None = None
    paper: Names = ()
    reading: Literal["budget", "unit"] | None = None
    keep_logits: bool = False
    ensemble: Ensemble | None = None
    jobs: PositiveInt = 1
    threads: PositiveInt | None = None
    sizes: dict[Name, str] = {}
    size: str = ""
    last: Parts = ()
    synthetic: bool = False
    path: Path = Path()

    def axes_of(self, method: str) -> dict[str, Mapping[str, ConfigParts]]:
        """The axes that a method is varied over, with their levels; strength is the last."""
        axes: dict[str, Mapping[str, ConfigParts]] = {
            name: axis.levels
            for name, axis in self.grid.items()
            if axis.methods is None or method in axis.methods
        }
        if len(self.checkpoint) > 1:  # nothing to set: the training is the same
            axes[CHECKPOINT] = dict.fromkeys(self.checkpoint, ())
        if method in self.strength:
            sweep = self.strength[method]
            axes[STRENGTH] = {f"{v:g}": (ConfigPart({sweep.key: v}),) for v in sweep.values}
        return axes

    @model_validator(mode="after")
    def _consistent(self) -> "Study":
        planned = self.planned.contrasts if self.planned else ()
        sides = [side for one in planned for side in one.removesuffix("+T").split(" - ")]
        named = [self.reference, *self.contrast, *self.strength]
        named += [side.split("-")[0] for side in sides]
        named += [method for axis in self.grid.values() for method in axis.methods or ()]
        named += [self.ensemble.of] if self.ensemble else []
        for kind, names, known in (
            ("method", named, self.methods),
            ("metric", self.metrics, NAMES),
            ("table", self.paper, paper_data()),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"no {kind} '{name}'. {did_you_mean(name, known)}")
        for name, sweep in self.strength.items():
            if name == self.reference or sweep.paper not in (None, *sweep.values):
                raise ValueError(f"strength.{name}: the reference, or paper is not in values.")
        one = self.ensemble
        if one is not None and (self.axes_of(one.of) or one.size > len(self.seeds)):
            raise ValueError(f"ensemble: {one.of} needs {one.size} seeds, and no other axes.")
        return self


# -- the file --------------------------------------------------------------------------------------


def load_study(path: str | Path, size: str | None = None, seeds: int | None = None) -> Study:
    """Read and check a study file; a mistake is reported before anything runs.

    Args:
        path: The file, or the name of a shipped study.
        size: One of the study's ``sizes``; None for the full study.
        seeds: Number of seeds, instead of the study's: its first ones, then the next numbers.
    """
    path = find_config(path, group="study")
    content = {"name": path.stem, **{k: v for k, v in read_yaml(path).items() if v is not None}}
    content = {"project": content["name"], **content, "path": path}
    try:
        study = Study.model_validate(_sized(path, content, size), context=path)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            text = f"no such key. {did_you_mean(key, Study.model_fields)}"
        raise ValueError(f"{path}: {key}{': ' * bool(key)}{text}") from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from None
    more: dict[str, Any] = {}
    if study.reading == "unit":
        methods = {name: tuple(map(_at_beta_one, own)) for name, own in study.methods.items()}
        more = {"methods": methods, "name": f"{study.name}.unit"}
    if seeds is not None:
        last = max(study.seeds)
        more["seeds"] = (*study.seeds, *range(last + 1, last + 1 + seeds))[:seeds]
    return study.model_copy(update=more)


def _at_beta_one(part: ConfigPart) -> ConfigPart:
    """Without ``epsilon``, so that gamma is used with beta 1."""

    def kept(node: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in node.items() if key != "epsilon"}

    return replace(part, content=json.loads(json.dumps(part.content), object_hook=kept))


def _sized(path: Path, content: dict[str, Any], name: str | None) -> dict[str, Any]:
    """The study with one of its sizes."""
    if name is None:
        return content
    if name not in (sizes := content.get("sizes", {})):
        raise ValueError(f"no size '{name}'. {did_you_mean(name, sizes)}")
    size = dict(read_yaml(find_file(path, sizes[name])))
    more, tests = size.pop("tests", {}), content.get("tests", {"test": None})
    # A file of sizes serves several studies; it may mention tests that this one does not have.
    tests = {one: [*_listed(parts), *_listed(more.get(one))] for one, parts in tests.items()}
    size |= {key: f"{content[key]}.{name}" for key in ("name", "project")}
    return content | {"last": size.pop("overrides", []), "tests": tests, "size": name} | size
