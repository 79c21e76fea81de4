"""A study: which configurations are compared, over which seeds, by which metrics. The schema of a study file."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

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
    ValidationInfo,
    field_validator,
    model_validator,
)

from chaosgate.run.config_files import did_you_mean
from chaosgate.run.directory import ROLES
from chaosgate.study.plan.parts import ConfigPart, ConfigParts, read_parts
from chaosgate.study.report.names import FROM_LOGITS, FROM_OUTPUTS, PLUS_T, scaled

METRICS = (
    "top1",
    "nll",
    "ece",
    "gap",
    "brier",
    "confidence",
    "top5",
    "adaptive_ece",
    *FROM_OUTPUTS,
)
STRENGTH, CHECKPOINT = "strength", "checkpoint"
CHECKPOINTS = ROLES
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]*")


@cache
def paper_data() -> dict[str, dict[str, Any]]:
    """The paper's tables by name: label, layout and rows, from ``paper_tables.yaml`` beside this file."""
    text = (files("chaosgate.study.plan") / "paper_tables.yaml").read_text(encoding="utf-8")
    content: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return content


def _name(value: Any) -> str:
    if not _NAME.fullmatch(str(value)):
        raise ValueError(
            f"{value!r} becomes part of a directory name; use letters, digits, '_', '.', '+'."
        )
    return str(value)


def _parts(value: Any, info: ValidationInfo) -> ConfigParts:
    study: Path = info.context or Path()
    return () if value is None else read_parts(value, study)


def _one_or_several(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _known(what: str, choices: Callable[[], Any]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in choices():
            raise ValueError(f"no {what} '{value}'. {did_you_mean(value, choices())}")
        return value

    return AfterValidator(check)


Name = Annotated[str, BeforeValidator(_name)]
Parts = Annotated[ConfigParts, BeforeValidator(_parts)]
Count = Annotated[StrictInt, Field(ge=1)]
Seed = Annotated[StrictInt, Field(ge=0)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Metric = Annotated[str, _known("metric", lambda: METRICS)]
Checkpoint = Annotated[str, _known("checkpoint", lambda: CHECKPOINTS)]
PaperTable = Annotated[str, _known("table of the paper", lambda: paper_data())]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axis(_Entry):
    """Something that varies besides method and seed: name of every level with what it sets.

    Attributes:
        methods: Methods that it applies to, None for all; the others are run once, not once per level.
    """

    levels: dict[Name, Parts] = Field(
        min_length=1, description="levels, e.g. {L3: {noise.stages: [L3]}, L4: ...}"
    )
    methods: tuple[str, ...] | None = Field(None, description="a list of methods")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, dict) or set(value) != {"levels", "methods"}:
            value = {"levels": value}
        if isinstance(levels := value["levels"], list):
            named = {_label(level): level for level in levels}
            if len(named) < len(levels):
                raise ValueError("two levels that look alike; name them: {name: keys, ...}.")
            value = {**value, "levels": named}
        return value


def _label(level: Any) -> str:
    """A name for an unnamed level: its values."""
    values = level.values() if isinstance(level, dict) else [Path(str(level)).stem]
    flat = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return "+".join(re.sub(r"[^A-Za-z0-9_.]", "", str(part)) for part in flat)


class Sweep(_Entry):
    """Strengths of one method; the report selects among them by validation NLL.

    Attributes:
        key: The dotted key that is the strength.
        values: What it takes.
        paper: The value of the paper (or of common use), reported beside the selected one; None selects nothing: all
            strengths are shown, as in the paper's sweeps.
    """

    key: str = Field(description="the dotted key that is the strength")
    values: tuple[Number, ...] = Field(min_length=1, description="a list of finite numbers")
    paper: Number | None = Field(None, description="one of the values")

    @model_validator(mode="after")
    def _consistent(self) -> "Sweep":
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"values {list(self.values)} names a value twice.")
        if self.paper is not None and self.paper not in self.values:
            raise ValueError(
                f"paper is {self.paper:g}, which is not among the values {list(self.values)}."
            )
        return self


class StudyTest(_Entry):
    """What trained networks are tested on.

    Attributes:
        parts: What differs from the training configuration, e.g. other data; nothing for its own test set.
        ood: Whether the images belong to none of the classes.
    """

    name: str = "test"
    parts: Parts = ()
    ood: bool = False


class Ensemble(_Entry):
    """A deep ensemble of runs that exist anyway: the mean of their probabilities, a row without any training.

    Attributes:
        of: The method; without a swept strength or further axes.
        size: Members, runs of as many seeds; further seeds make further ensembles.
    """

    of: str = Field(description="a method")
    size: Annotated[StrictInt, Field(ge=2)] = Field(description="a whole number of at least 2")


class Size(_Entry):
    """Another size of a study: the same comparisons with other means, for instance to see that everything works.

    Attributes:
        overrides: Set last, for all runs.
        tests: What differs in some of the tests, by name.
        synthetic: Train and test on images that are written for the purpose (:mod:`chaosgate.data.synthetic`).
    """

    seeds: Any = None
    jobs: Any = None
    threads: Any = None
    overrides: Parts = ()
    tests: dict[str, Parts] = Field({}, description="names of tests with what differs")
    synthetic: StrictBool = Field(False, description="true or false")
    _own_name: str = PrivateAttr("")

    @property
    def name(self) -> str:
        """Part of the name of the study, of its runs and of every row."""
        return self._own_name

    @property
    def warning(self) -> str:
        """What every report of this size says first."""
        images = ", on synthetic images" if self.synthetic else ""
        return f"Size {self.name}{images}: it shows that the path works; its numbers say nothing about any method."


class Planned(_Entry):
    """What a study is run for, written down before its first run.

    Attributes:
        claims: What is expected, in words.
        endpoint: What decides: ``PART METRIC``, e.g. ``clean nll_T``; one or several.
        contrasts: ``METHOD - METHOD``, or ``METHOD - METHOD+T``; a method with swept strengths stands
            for its selected one. Significance is corrected for these only.
        refuted_if: Which result would refute the claims, in words.
    """

    claims: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = Field(
        min_length=1, description="one or several sentences"
    )
    endpoint: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = Field(
        ("clean nll_T",), min_length=1, description="part and metric, e.g. clean nll_T"
    )
    contrasts: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = Field(
        min_length=1, description="differences of methods, e.g. [gch - none]"
    )
    refuted_if: str = Field(description="a sentence: which result would refute the claims")

    @model_validator(mode="after")
    def _readable(self) -> "Planned":
        known = (*METRICS, *map(scaled, PLUS_T))
        for one in self.endpoint:
            part, _, metric = one.partition(" ")
            if part not in ("clean", "corrupted") or metric not in known:
                raise ValueError(
                    f"endpoint {one!r} is not a part (clean, corrupted) and a metric, e.g. clean nll_T."
                )
        for one in self.contrasts:
            if len(one.split(" - ")) != 2:
                raise ValueError(
                    f"contrast {one!r} is not a difference of two methods, e.g. gch - none."
                )
        return self


_NAMES = "names with what they mean, e.g. {none: noise/none}"


class Study(_Entry):
    """What a study file says. What is more special wins: base, overrides, method, grid, size.

    Attributes:
        name: Names the directory of the report; by default that of the file.
        project: Names the directory of the runs. Studies of one project share their training runs: where two ask for
            the same training, it happens once, and each adds the tests that are missing.
        base: What all runs share.
        overrides: More of it: dotted keys, after the files.
        methods: What is compared: rows of the table.
        reference: The method that differences are taken to.
        contrast: Methods that are set against every other one; by default, all pairs where there are few.
        seeds: Every method is run once per seed; at one seed all methods share initial weights and batches.
        grid: Further axes by name.
        strength: Methods whose strength is swept.
        tests: What the networks are tested on; a row of the table has the cells of all of them.
        ood: A second data set whose images belong to none of the classes, by name; for the metric ``ood_auroc``. Give
            it the size, mean and std of the training images, or the network is shown something else than other images.
        checkpoints: Which network of a run is tested: ``best`` (smallest validation NLL), ``top1`` (largest validation
            Top-1) or ``last`` (final epoch). Several become an axis: a row for each.
        metrics: Columns of the table.
        planned: What the study is run for (:class:`Planned`). It is hashed before the first run; the report says
            whether it changed afterwards.
        paper: Tables of the paper that this study answers; the report sets their numbers beside ours.
        keep_logits: Keep the logits of every test and validation image in half precision; metrics that need all
            classes and ensembles do so anyway. ``study plan`` says how large they are.
        ensemble: One or several :class:`Ensemble`; keeps the logits.
        jobs: Workers at a time on one machine, if the command line does not say.
        threads: Threads of each; None shares the cores among the jobs. Sums depend on it in their last digits.
        sizes: Other sizes: a name with keys of :class:`Size`, or with a file of them that several studies share.
    """

    name: Name = ""
    project: Name = ""
    base: Parts = Field(min_length=1, description="files, e.g. [base, data/fashion_mnist]")
    overrides: Parts = ()
    methods: dict[Name, Parts] = Field(min_length=1, description=_NAMES)
    reference: str = Field(description="the method that others are compared to")
    contrast: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = Field(
        (), description="some methods"
    )
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_one_or_several)] = Field(
        (0,), min_length=1, description="whole numbers, e.g. [0, 1, 2]"
    )
    grid: dict[Name, Axis] = Field({}, description="axes with their levels")
    strength: dict[str, Sweep] = Field(
        {}, description="methods with key (dotted), values (a list) and paper"
    )
    tests: tuple[StudyTest, ...] = Field((StudyTest(),), description=_NAMES)
    ood: dict[Name, Parts] = Field(
        {}, max_length=1, description="one name with its data, e.g. {mnist: data/mnist}"
    )
    checkpoints: Annotated[tuple[Checkpoint, ...], BeforeValidator(_one_or_several)] = Field(
        CHECKPOINTS[:1],
        min_length=1,
        alias="checkpoint",
        description=f"one of {', '.join(CHECKPOINTS)}, or several",
    )
    metrics: tuple[Metric, ...] = Field(
        METRICS[:4], min_length=1, description=f"a list of {', '.join(METRICS)}"
    )
    planned: Planned | None = Field(None, description="claims, endpoint, contrasts, refuted_if")
    paper: Annotated[tuple[PaperTable, ...], BeforeValidator(_one_or_several)] = Field(
        (), description="tables of the paper"
    )
    keep_logits: StrictBool = Field(False, description="true or false")
    ensemble: Annotated[tuple[Ensemble, ...], BeforeValidator(_one_or_several)] = Field(
        (), description="e.g. {of: none, size: 5}, or several in a list"
    )
    jobs: Count = Field(1, description="a whole number of at least 1")
    threads: Count | None = Field(None, description="a whole number of at least 1")
    sizes: dict[Name, Any] = Field({}, description="names of sizes with what they change")
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
        return (
            self.keep_logits
            or bool(self.ensemble)
            or any(metric in FROM_LOGITS for metric in self.metrics)
        )

    @property
    def all_tests(self) -> tuple[StudyTest, ...]:
        """The tests, and the one of other images."""
        return (
            *self.tests,
            *(
                StudyTest.model_construct(name=name, parts=parts, ood=True)
                for name, parts in self.ood.items()
            ),
        )

    @property
    def checkpoint(self) -> str:
        """The tested checkpoints, in words."""
        return " and ".join(self.checkpoints)

    def parts(self) -> Iterator[ConfigPart]:
        """Every part of a configuration that this study names."""
        yield from (
            *self.base,
            *self.overrides,
            *(self.size.overrides if self.size is not None else ()),
        )
        for parts in self.methods.values():
            yield from parts
        for axis in self.grid.values():
            for parts in axis.levels.values():
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
            axes[STRENGTH] = {
                f"{value:g}": (ConfigPart({sweep.key: value}),) for value in sweep.values
            }
        return axes

    @field_validator("tests", mode="before")
    @classmethod
    def _tests_by_name(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is not a mapping; give {_NAMES}.")
        return [{"name": _name(name), "parts": parts} for name, parts in value.items()]

    @model_validator(mode="after")
    def _consistent(self) -> "Study":
        named = {
            "reference": [self.reference],
            "contrast": self.contrast,
            "strength": self.strength,
        }
        for what, names in named.items():
            for name in names:
                _require(what, "method", name, self.methods)
        if self.reference in self.strength:
            raise ValueError(f"strength.{self.reference}: the reference has no strength to sweep.")
        for axis, content in self.grid.items():
            if axis in (STRENGTH, CHECKPOINT):
                raise ValueError(
                    f"grid.{axis}: strengths are swept under 'strength:', checkpoints under 'checkpoint:'."
                )
            for name in content.methods or ():
                _require(f"grid.{axis}", "method", name, self.methods)
        for ensemble in self.ensemble:
            _require("ensemble", "method", ensemble.of, self.methods)
            if self.axes_of(ensemble.of):
                raise ValueError(
                    f"ensemble: {ensemble.of} is varied over {', '.join(self.axes_of(ensemble.of))}."
                )
            if ensemble.size > len(self.seeds):
                raise ValueError(
                    f"ensemble: {ensemble.size} members of {ensemble.of}, but {len(self.seeds)} seeds."
                )
        for contrast in self.planned.contrasts if self.planned is not None else ():
            for name in contrast.removesuffix("+T").split(" - "):
                _require("planned.contrasts", "method", name.split("-")[0], self.methods)
        if bool(self.ood) != ("ood_auroc" in self.metrics):
            raise ValueError(
                "ood: the metric ood_auroc needs a data set under 'ood:', and is all that it is used for."
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"seeds {list(self.seeds)} names a seed twice; that would count one run as two."
            )
        if len(set(self.checkpoints)) < len(self.checkpoints):
            raise ValueError(
                f"checkpoint is {list(self.checkpoints)}; give one, or several in a list, each once."
            )
        return self


def _require(key: str, what: str, name: str, choices: Any) -> None:
    if name not in choices:
        raise ValueError(f"{key}: no {what} '{name}'. {did_you_mean(name, choices)}")


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a study file, or of a size."""
    return [field.alias or name for name, field in model.model_fields.items()]
