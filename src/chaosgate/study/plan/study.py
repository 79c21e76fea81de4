"""The schema of a study file: which configurations are compared, over which seeds, by what.

A study is put together from *parts*: YAML files and dotted keys, from left to right. ``${NAME}`` in
a part stands for a data folder, which differs from machine to machine.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from chaosgate.run.config_files import config_folder, did_you_mean, find_config, read_yaml
from chaosgate.run.directory import ROLES
from chaosgate.study.report.names import OOD, PLUS_T, is_packed, scaled

_OF_ROWS = ("top1", "nll", "ece", "gap", "brier", "confidence", "top5", "adaptive_ece")
METRICS = (*_OF_ROWS, OOD)
STRENGTH, CHECKPOINT = "strength", "checkpoint"
CHECKPOINTS = ROLES
COMMAND = "command"
FOLDERS = {
    "CHAOSGATE_IMAGENET": "train/<wnid> and val/<wnid> of ImageNet-1k",
    "CHAOSGATE_IMAGENET_C": "<corruption>/<severity>/<wnid> of the released ImageNet-C",
    "CHAOSGATE_PETS": "oxford-iiit-pet",
}
"""Variables of the studies in this repository, and what their folders hold."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]*")
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
        name: What the study calls the file.
    """

    content: dict[str, Any]
    source: Path | None = None
    name: str = ""


ConfigParts = tuple[ConfigPart, ...]


def find_file(study: Path, name: str) -> Path:
    """A file named in a study: beside the study or in a folder above it, else a shipped one.

    So a name means the same file whatever the current directory. For a shipped study, a copy made
    by ``chaosgate configs copy`` in the current directory wins, as it does after ``-c``.
    """
    start = study.resolve().parent
    here = (Path.cwd(),) if start.is_relative_to(config_folder().resolve()) else ()
    try:
        return find_config(name, (*here, start, *start.parents))
    except OSError as error:
        raise FileNotFoundError(
            f"{study} names {name}, which is neither in {start} nor above it: {error}"
        ) from None


def _parts(value: Any, info: ValidationInfo) -> ConfigParts:
    study: Path = info.context or Path()
    found = []
    for part in [] if value is None else _listed(value):
        if isinstance(part, str) and is_packed(study.parent):
            found.append(ConfigPart({}, None, part))  # packed: the file may be gone by now
        elif isinstance(part, str):
            file = find_file(study, part)
            found.append(ConfigPart(read_yaml(file), file, part))
        elif isinstance(part, dict) and all(isinstance(key, str) for key in part):
            found.append(ConfigPart(part))
        else:
            raise ValueError(
                f"{part!r} is not a part of a configuration; give a file, dotted keys with "
                "values (trainer.max_epochs: 20), or a list of them."
            )
    return tuple(found)


def variables(allowed: Iterable[str] = ()) -> dict[str, str]:
    """Environment variables that a study may read: ``CHAOSGATE_*`` and the allowed ones.

    A study file may come from another person, and what it reads ends in logs and reports.
    """
    names = {name for name in os.environ if name.startswith("CHAOSGATE_")} | set(allowed)
    return {name: os.environ[name] for name in names if name in os.environ}


def resolve(value: Any, folders: Mapping[str, str]) -> Any:
    """``value`` with names replaced by folders; unknown names stay.

    >>> resolve({"root": "${CHAOSGATE_PETS}", "n": 3}, {"CHAOSGATE_PETS": "/data"})
    {'root': '/data', 'n': 3}
    """
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: folders.get(match[1], match[0]), value)
    if isinstance(value, Mapping):
        return {key: resolve(entry, folders) for key, entry in value.items()}
    return [resolve(entry, folders) for entry in value] if isinstance(value, list) else value


def require_folders(study: "Study", folders: Mapping[str, str], exist: bool) -> None:
    """Refuse variables that the study may not read and, with ``exist``, missing folders."""
    names = sorted({n for part in study.parts() for n in _VARIABLE.findall(repr(part.content))})
    missing = []
    for name in names:
        if name not in folders and not name.startswith("CHAOSGATE_"):
            raise ValueError(
                f"the study reads the environment variable {name}; a study may read CHAOSGATE_* "
                f"only. If you trust it, set the variable and add --variable {name}."
            )
        holds = f" (a folder with {FOLDERS[name]})" if name in FOLDERS else ""
        if name not in folders:
            missing.append(f"{name}{holds} is not set")
        elif not Path(folders[name]).expanduser().exists():
            missing.append(f"{name}{holds} is {folders[name]}, which does not exist")
    if missing and exist:
        raise FileNotFoundError(
            f"the data are missing: {'; '.join(missing)}. Set the variable, e.g. export "
            f"{names[0]}=FOLDER, or try the study on synthetic images with --size smoke."
        )


# -- the schema ------------------------------------------------------------------------------------


def _name(value: Any) -> str:
    if not _NAME.fullmatch(str(value)):
        raise ValueError(
            f"{value!r} becomes part of a directory name; use letters, digits, '_', '.', '+'."
        )
    return str(value)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _known(what: str, choices: Callable[[], Any]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in choices():
            raise ValueError(f"no {what} '{value}'. {did_you_mean(value, choices())}")
        return value

    return AfterValidator(check)


def _unique(what: str) -> AfterValidator:
    def check(values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(values)) < len(values):
            raise ValueError(f"{list(values)} names a {what} twice; give each once.")
        return values

    return AfterValidator(check)


Name = Annotated[str, BeforeValidator(_name)]
Parts = Annotated[ConfigParts, BeforeValidator(_parts)]
OneOrMore = BeforeValidator(_listed)
Count = Annotated[StrictInt, Field(ge=1)]
Seed = Annotated[StrictInt, Field(ge=0)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Metric = Annotated[str, _known("metric", lambda: METRICS)]
Checkpoint = Annotated[str, _known("checkpoint", lambda: CHECKPOINTS)]
PaperTable = Annotated[str, _known("table of the paper", lambda: paper_data())]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Entry):
    """Something that varies besides method and seed.

    Attributes:
        levels: Name of every level with what it sets; may be given alone, without this key.
        methods: Methods that it applies to, None for all; the others are run once.
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
        key: The dotted key that is the strength.
        values: The values it takes.
        paper: The value of the paper (or of common use), reported beside the selected one; None
            selects nothing: all strengths are shown, as in the paper's sweeps.
    """

    key: str
    values: Annotated[tuple[Number, ...], _unique("value")] = Field(min_length=1)
    paper: Number | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Sweep":
        if self.paper is not None and self.paper not in self.values:
            raise ValueError(f"paper is {self.paper:g}, which is not in {list(self.values)}.")
        return self


class StudyTest(_Entry):
    """What trained networks are tested on.

    Attributes:
        parts: What differs from the training configuration, e.g. other data.
        ood: Whether the images belong to none of the classes.
    """

    name: str = "test"
    parts: Parts = ()
    ood: bool = False


class Ensemble(_Entry):
    """A deep ensemble of existing runs: the mean of their probabilities, a row without training.

    Attributes:
        of: The method; without a swept strength or further axes.
        size: Members, runs of as many seeds; further seeds make further ensembles.
    """

    of: str
    size: Annotated[StrictInt, Field(ge=2)]


class Size(_Entry):
    """Another size of a study: the same comparisons with less work, e.g. to try the whole path.

    Attributes:
        overrides: Set last, for all runs.
        tests: What differs in some of the tests, by name.
        synthetic: Train and test on synthetic images (:mod:`chaosgate.data.synthetic`).
    """

    seeds: Any = None
    jobs: Any = None
    threads: Any = None
    overrides: Parts = ()
    tests: dict[str, Parts] = {}
    synthetic: StrictBool = False
    _own_name: str = PrivateAttr("")

    @property
    def name(self) -> str:
        """Part of the name of the study, of its runs and of every row."""
        return self._own_name

    @property
    def warning(self) -> str:
        """The first line of every report of this size."""
        images = ", on synthetic images" if self.synthetic else ""
        return (
            f"Size {self.name}{images}: it shows that the path works; its numbers say nothing "
            "about any method."
        )


class Planned(_Entry):
    """What a study is run for, written down before its first run.

    Attributes:
        claims: What is expected.
        endpoint: What decides: ``PART METRIC``, e.g. ``clean nll_T``; one or several.
        contrasts: ``METHOD - METHOD``, or ``METHOD - METHOD+T``; a method with swept strengths
            stands for its selected one. Significance is corrected for these only.
        refuted_if: Which result would refute the claims.
    """

    claims: Annotated[tuple[str, ...], OneOrMore] = Field(min_length=1)
    endpoint: Annotated[tuple[str, ...], OneOrMore] = Field(("clean nll_T",), min_length=1)
    contrasts: Annotated[tuple[str, ...], OneOrMore] = Field(min_length=1)
    refuted_if: str

    @model_validator(mode="after")
    def _readable(self) -> "Planned":
        known = (*METRICS, *map(scaled, PLUS_T))
        for one in self.endpoint:
            part, _, metric = one.partition(" ")
            if part not in ("clean", "corrupted") or metric not in known:
                raise ValueError(
                    f"endpoint {one!r} is not a part (clean, corrupted) and a metric, e.g. clean "
                    "nll_T."
                )
        for one in self.contrasts:
            if len(one.split(" - ")) != 2:
                raise ValueError(f"contrast {one!r} is not METHOD - METHOD, e.g. gch - none.")
        return self


class Study(_Entry):
    """The content of a study file. Later ones win: base, overrides, method, grid, size.

    Attributes:
        name: Names the directory of the report; by default that of the file.
        project: Names the directory of the runs. Studies of one project share their trainings:
            where two ask for the same one, it happens once, and each adds the missing tests.
        base: What all runs share.
        overrides: More of it: dotted keys, after the files.
        methods: What is compared: rows of the table. ``{command: "python train.py --seed {seed}
            --out {run_dir}"}`` runs a program of yours (:mod:`chaosgate.study.execute.run`).
        reference: The method that differences are taken to.
        contrast: Methods that are compared with every other one; by default, all pairs where there
            are few.
        seeds: Every method is run once per seed; at one seed all methods share initial weights and
            batches.
        grid: Further axes by name.
        strength: Methods whose strength is swept.
        tests: What the networks are tested on; a row of the table has the cells of all of them.
        ood: A second data set whose images belong to none of the classes, by name; for the metric
            ``ood_auroc``. Give it the size, mean and std of the training images.
        checkpoints: Which network of a run is tested: ``best`` (smallest validation NLL), ``top1``
            (largest validation Top-1) or ``last`` (final epoch). Several become an axis.
        metrics: Columns of the table.
        planned: What the study is run for (:class:`Planned`). It is hashed before the first run;
            the report says whether it changed afterwards.
        paper: Tables of the paper that this study answers; the report sets their numbers beside
            ours.
        keep_logits: Keep the logits of every test and validation image in half precision;
            ensembles do so anyway.
        ensemble: One or several :class:`Ensemble`; keeps the logits.
        jobs: Runs at a time on one machine.
        threads: Threads of each; None shares the cores among the jobs. Sums depend on it in their
            last digits.
        sizes: Other sizes: a name with keys of :class:`Size`, or with a file of them that several
            studies share.
    """

    name: Name = ""
    project: Name = ""
    base: Parts = ()
    overrides: Parts = ()
    methods: dict[Name, Parts] = Field(min_length=1)
    reference: str
    contrast: Annotated[tuple[str, ...], OneOrMore] = ()
    seeds: Annotated[tuple[Seed, ...], OneOrMore, _unique("seed")] = Field((0,), min_length=1)
    grid: dict[Name, Axis] = {}
    strength: dict[str, Sweep] = {}
    tests: tuple[StudyTest, ...] = (StudyTest(),)
    ood: dict[Name, Parts] = Field({}, max_length=1)
    checkpoints: Annotated[tuple[Checkpoint, ...], OneOrMore, _unique("checkpoint")] = Field(
        CHECKPOINTS[:1], min_length=1, alias="checkpoint"
    )
    metrics: tuple[Metric, ...] = Field(METRICS[:4], min_length=1)
    planned: Planned | None = None
    paper: Annotated[tuple[PaperTable, ...], OneOrMore] = ()
    keep_logits: StrictBool = False
    ensemble: Annotated[tuple[Ensemble, ...], OneOrMore] = ()
    jobs: Count = 1
    threads: Count | None = None
    sizes: dict[Name, Any] = {}
    _path: Path = PrivateAttr()
    _size: Size | None = PrivateAttr(None)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> Size | None:
        """The size that was asked for; None for the study as it stands."""
        return self._size

    @property
    def with_logits(self) -> bool:
        return self.keep_logits or bool(self.ensemble)

    @property
    def all_tests(self) -> tuple[StudyTest, ...]:
        """The tests, and the one of other images."""
        ood = [StudyTest.model_construct(name=n, parts=p, ood=True) for n, p in self.ood.items()]
        return (*self.tests, *ood)

    @property
    def checkpoint(self) -> str:
        """The tested checkpoints, as text."""
        return " and ".join(self.checkpoints)

    def parts(self) -> Iterator[ConfigPart]:
        """Every part of a configuration that this study names."""
        yield from (*self.base, *self.overrides)
        yield from () if self.size is None else self.size.overrides
        levels = [axis.levels for axis in self.grid.values()]
        for parts in (one for named in (self.methods, *levels) for one in named.values()):
            yield from parts
        for test in self.all_tests:
            yield from test.parts

    def axes_of(self, method: str) -> dict[str, Mapping[str, ConfigParts]]:
        """The axes that a method is varied over, with their levels; strength is the last."""
        axes: dict[str, Mapping[str, ConfigParts]] = {
            name: axis.levels
            for name, axis in self.grid.items()
            if axis.methods is None or method in axis.methods
        }
        if len(self.checkpoints) > 1:  # nothing to set: the training is the same
            axes[CHECKPOINT] = dict.fromkeys(self.checkpoints, ())
        if method in self.strength:
            sweep = self.strength[method]
            axes[STRENGTH] = {f"{v:g}": (ConfigPart({sweep.key: v}),) for v in sweep.values}
        return axes

    @field_validator("tests", mode="before")
    @classmethod
    def _tests_by_name(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("give names with what they mean, e.g. {clean: null}.")
        return [{"name": _name(name), "parts": parts} for name, parts in value.items()]

    @model_validator(mode="after")
    def _consistent(self) -> "Study":
        named: dict[str, Iterable[str]] = {
            "reference": [self.reference],
            "contrast": self.contrast,
            "strength": self.strength,
            "ensemble": [ensemble.of for ensemble in self.ensemble],
            **{f"grid.{axis}": content.methods or () for axis, content in self.grid.items()},
        }
        if self.planned is not None:
            sides = " - ".join(one.removesuffix("+T") for one in self.planned.contrasts)
            named["planned.contrasts"] = [one.split("-")[0] for one in sides.split(" - ")]
        for key, names in named.items():
            for name in names:
                if name not in self.methods:
                    hint = did_you_mean(name, self.methods)
                    raise ValueError(f"{key}: no method '{name}'. {hint}")
        if self.reference in self.strength:
            raise ValueError(f"strength.{self.reference}: the reference has no strength to sweep.")
        if wrong := {STRENGTH, CHECKPOINT} & set(self.grid):
            raise ValueError(f"grid.{min(wrong)}: give '{min(wrong)}:' beside 'grid:', not in it.")
        for ensemble in self.ensemble:
            if axes := self.axes_of(ensemble.of):
                raise ValueError(f"ensemble: {ensemble.of} is varied over {', '.join(axes)}.")
            if ensemble.size > len(self.seeds):
                raise ValueError(
                    f"ensemble: {ensemble.size} members of {ensemble.of}, but {len(self.seeds)} "
                    "seeds."
                )
        if bool(self.ood) != ("ood_auroc" in self.metrics):
            raise ValueError("ood: the metric ood_auroc and a data set under 'ood:' go together.")
        return self


# -- the file --------------------------------------------------------------------------------------

Model = TypeVar("Model", bound=BaseModel)


def load_study(path: str | Path, size: str | None = None, seeds: int | None = None) -> Study:
    """Read and check a study file; a mistake is reported before anything runs.

    Args:
        path: The file, or the name of a shipped study.
        size: One of the study's ``sizes``; None for the study as it stands.
        seeds: How many seeds instead of the study's: its first ones, then the numbers that follow.
    """
    path = find_config(path, group="study")
    content = {"name": path.stem, **_given(read_yaml(path))}
    content = {"project": content["name"], **content}
    the_size = None if size is None else _read_size(path, content.get("sizes"), size)
    for key in ("seeds", "jobs", "threads"):
        if (value := getattr(the_size, key, None)) is not None:
            content[key] = value
    study = _validated(Study, content, path)
    if seeds is not None:
        known = study.seeds
        more = range(max(known) + 1, max(known) + 1 + max(0, seeds - len(known)))
        study = study.model_copy(update={"seeds": (*known, *more)[:seeds]})
    if the_size is not None:
        # A file of sizes serves several studies; it may mention tests that this one does not have.
        more_of, names = the_size.tests, ("name", "project")
        tests = tuple(
            test.model_copy(update={"parts": (*test.parts, *more_of.get(test.name, ()))})
            for test in study.tests
        )
        named = {key: f"{getattr(study, key)}.{size}" for key in names}
        study = study.model_copy(update={**named, "tests": tests})
    study._path, study._size = path, the_size
    return study


def _read_size(path: Path, sizes: Any, name: str) -> Size:
    """A size, written in the study or in a file of its own."""
    if not sizes:
        raise ValueError(f"{path} has one size only; it has no 'sizes:' and thus no '{name}'.")
    if not isinstance(sizes, dict) or name not in sizes:
        raise ValueError(f"{path}: sizes: no size '{name}'. {did_you_mean(name, sizes)}")
    content = sizes[name]
    if isinstance(content, str):
        content = read_yaml(find_file(path, content))
    size = _validated(Size, _given(content), path, f"sizes.{name}")
    size._own_name = name
    return size


def _given(content: Any) -> Any:
    """Keys without a value, or with nothing in it, are keys not given."""
    if not isinstance(content, dict):
        return content
    known = keys_of(Study)
    return {key: v for key, v in content.items() if key not in known or (v not in (None, {}))}


def _validated(model: type[Model], content: Any, path: Path, prefix: str = "") -> Model:
    """Validate; the first mistake becomes one line with the file, the key and what was found."""
    try:
        return model.model_validate(content, context=path)
    except ValidationError as error:
        # An unknown key is the reason why another one is missing, not the other way round.
        first: Any = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        places = [str(part) for part in first["loc"] if not str(part).startswith("[")]
        key, text = ".".join(filter(None, [prefix, *places])), first["msg"]
        if first["type"] == "extra_forbidden":
            text = did_you_mean(places[-1], keys_of(model)) if len(places) == 1 else ""
            text = f"no key '{places[-1]}'. {text}".strip()
        elif first["type"] == "missing":
            text = f"'{places[-1]}' is missing."
            if places == ["reference"]:
                text += f" Name the method to compare to: {', '.join(content['methods'])}."
        else:
            found = "" if first["type"] == "value_error" else f"{first['input']!r}: "
            text = found + text.removeprefix("Value error, ")
        raise ValueError(f"{path}: {key}: {text}".replace(": : ", ": ")) from None


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a study file, or of a size."""
    return [field.alias or name for name, field in model.model_fields.items()]
