"""Read a study file; whatever is wrong with it is said in one sentence, before anything runs."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from chaosgate.study.paper import paper_names
from chaosgate.study.specification import (
    CHECKPOINT,
    CHECKPOINTS,
    METRICS,
    STRENGTH,
    Axis,
    Exam,
    Ingredient,
    Recipe,
    Size,
    Study,
    Sweep,
)
from chaosgate.study.strict_yaml import read_yaml

_KEYS = ("name", "project", "base", "overrides", "methods", "reference", "seeds", "grid", "strength", "tests") + (
    "checkpoint",
    "metrics",
    "paper",
    "jobs",
    "threads",
    "sizes",
)
_SIZE_KEYS = ("seeds", "overrides", "tests", "made_up", "jobs", "threads")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]*")


def load_study(path: str | Path, size: str | None = None) -> Study:
    """Read and check a study file; whatever is wrong is said in one sentence, before anything runs.

    Args:
        path: The file.
        size: One of the study's ``sizes``; None for the study as it stands.
    """
    path = Path(path)
    if not path.is_file():
        near = sorted(file.name for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        there = f" {path.parent} has {', '.join(near)}." if near else ""
        raise FileNotFoundError(f"no study file {path}.{there}")
    content = read_yaml(path)
    for key in content:
        _known(f"{path}: no key", key, _KEYS)
    for key in ("base", "methods"):
        if not content.get(key):
            raise ValueError(f"{path}: '{key}' is missing. A study needs base (files) and methods (name: file).")
    methods = _mapping(path, "methods", content["methods"])
    if "reference" not in content:
        raise ValueError(
            f"{path}: 'reference' is missing; name the method that others are compared to: {_list(methods)}."
        )
    _known(f"{path}: reference: no method", content["reference"], methods)
    metrics = tuple(content.get("metrics", METRICS[:4]))
    for metric in metrics:
        _known(f"{path}: metrics: no metric", metric, METRICS)
    small = _size(path, _mapping(path, "sizes", content.get("sizes") or {}), size)
    for key in ("seeds", "jobs", "threads"):
        content[key] = small.get(key, content.get(key))
    exams = _exams(path, content.get("tests") or {Exam().name: None})
    the_size = None if size is None else _sized(path, size, small, exams)
    suffix = "" if size is None else f".{size}"
    title = _name(path, "name", content.get("name", path.stem)) + suffix
    paper = content.get("paper") or []
    paper = [paper] if isinstance(paper, str) else paper
    for name in paper:
        _known(f"{path}: paper: no table", name, paper_names())
    shared = _recipe(path, "overrides", content.get("overrides") or {})
    return Study(
        name=title,
        path=path,
        project=_name(path, "project", content["project"]) + suffix if "project" in content else title,
        base=_recipe(path, "base", content["base"]) + shared,
        methods={
            _name(path, "methods", name): _recipe(path, f"methods.{name}", value) for name, value in methods.items()
        },
        reference=str(content["reference"]),
        seeds=_seeds(path, [0] if content["seeds"] is None else content["seeds"]),
        grid=_grid(path, content.get("grid") or {}, methods),
        strength=_strength(path, content.get("strength") or {}, methods, str(content["reference"])),
        metrics=metrics,
        exams=tuple(_examined(exam, the_size) for exam in exams),
        checkpoints=_checkpoints(path, content.get("checkpoint", CHECKPOINTS[0])),
        paper=tuple(paper),
        jobs=_count(path, "jobs", 1 if content["jobs"] is None else content["jobs"]),
        threads=None if content["threads"] is None else _count(path, "threads", content["threads"]),
        size=the_size,
    )


def _size(path: Path, sizes: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """What a size says, in the study or in a file of its own that several studies share; nothing for the full size."""
    for key in sizes:
        _name(path, "sizes", key)
    if name is None:
        return {}
    if not sizes:
        raise ValueError(f"{path} has one size only; it has no 'sizes:' and thus no '{name}'.")
    _known(f"{path}: no size", name, sizes)
    content = read_yaml(find_file(path, sizes[name])) if isinstance(sizes[name], str) else sizes[name]
    content = _mapping(path, f"sizes.{name}", content)
    for key in content:
        _known(f"{path}: sizes.{name}: no key", key, _SIZE_KEYS)
    return content


def _sized(path: Path, name: str, content: Mapping[str, Any], exams: Sequence[Exam]) -> Size:
    made_up = content.get("made_up", False)
    if not isinstance(made_up, bool):
        raise ValueError(f"{path}: sizes.{name}.made_up is {made_up!r}; give true or false.")
    there = {exam.name for exam in exams}
    tests = _mapping(path, f"sizes.{name}.tests", content.get("tests") or {})
    recipes = {test: _recipe(path, f"sizes.{name}.tests.{test}", value) for test, value in tests.items()}
    overrides = _recipe(path, f"sizes.{name}.overrides", content.get("overrides") or {})
    # A file of sizes serves several studies; it may speak of tests that this one does not have.
    return Size(name, overrides, {test: recipe for test, recipe in recipes.items() if test in there}, made_up)


def _exams(path: Path, value: Any) -> tuple[Exam, ...]:
    """``tests:``: a name with what differs from training; nothing for the test set of the training data."""
    return tuple(
        Exam(_name(path, "tests", name), () if recipe is None else _recipe(path, f"tests.{name}", recipe))
        for name, recipe in _mapping(path, "tests", value).items()
    )


def _examined(exam: Exam, size: Size | None) -> Exam:
    return exam if size is None else Exam(exam.name, (*exam.recipe, *size.tests.get(exam.name, ())))


def _checkpoints(path: Path, value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        _known(f"{path}: checkpoint: no", name, CHECKPOINTS)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path}: checkpoint is {value!r}; give one of {_list(CHECKPOINTS)}, or several in a list.")
    return tuple(names)


def _recipe(path: Path, key: str, value: Any) -> Recipe:
    """One file or mapping of dotted keys, or several of them in order."""
    parts = value if isinstance(value, list) else [value]
    return tuple(_ingredient(path, key, part) for part in parts)


def _ingredient(path: Path, key: str, part: Any) -> Ingredient:
    if isinstance(part, str):
        file = find_file(path, part)
        return Ingredient(read_yaml(file), file)
    if isinstance(part, dict):
        if nested := [name for name in part if not isinstance(name, str)]:
            raise ValueError(f"{path}: {key}: {nested[0]!r} is no key; write e.g. trainer.max_epochs: 20.")
        return Ingredient(part)
    raise ValueError(f"{path}: {key} holds {part!r}; give a file, dotted keys with values, or a list of these.")


def find_file(study: Path, name: str) -> Path:
    """A file named in a study: looked up beside the study, then in every folder above it.

    So ``configs/base.yaml`` means the same in ``configs/study/a.yaml`` and in a study of one's own elsewhere in the
    repository, whatever the current directory.
    """
    start = study.resolve().parent
    for folder in (start, *start.parents):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{study} names {name}, which is neither in {start} nor in a folder above it.")


def _grid(path: Path, value: Any, methods: Mapping[str, Any]) -> dict[str, Axis]:
    axes: dict[str, Axis] = {}
    for axis, levels in _mapping(path, "grid", value).items():
        only = list(methods)
        if isinstance(levels, dict) and set(levels) == {"methods", "levels"}:
            only, levels = levels["methods"], levels["levels"]
            for method in only:
                _known(f"{path}: grid.{axis}: no method", method, methods)
        if not isinstance(levels, dict | list) or not levels or axis in (STRENGTH, CHECKPOINT):
            raise ValueError(
                f"{path}: grid.{axis} needs levels, e.g. {{L3: {{noise.stages: [L3]}}, L4: ...}}; strengths are swept "
                "under 'strength:', checkpoints under 'checkpoint:'."
            )
        named = levels if isinstance(levels, dict) else {_label(level): level for level in levels}
        if len(named) < len(levels):
            raise ValueError(f"{path}: grid.{axis} has two levels that look alike; name them: {{name: keys, ...}}.")
        recipes = {
            _name(path, f"grid.{axis}", level): _recipe(path, f"grid.{axis}.{level}", recipe)
            for level, recipe in named.items()
        }
        axes[_name(path, "grid", axis)] = Axis(recipes, frozenset(only))
    return axes


def _strength(path: Path, value: Any, methods: Mapping[str, Any], reference: str) -> dict[str, Sweep]:
    sweeps: dict[str, Sweep] = {}
    for method, sweep in _mapping(path, "strength", value).items():
        _known(f"{path}: strength: no method", method, methods)
        if method == reference:
            raise ValueError(f"{path}: strength.{method}: the reference has no strength to sweep.")
        if not isinstance(sweep, dict) or set(sweep) - {"paper"} != {"key", "values"}:
            raise ValueError(
                f"{path}: strength.{method} needs key (dotted), values (a list), and paper (one of them) if one is to "
                "be selected."
            )
        values = tuple(float(number) for number in sweep["values"])
        paper = None if sweep.get("paper") is None else float(sweep["paper"])
        if not values or (paper is not None and paper not in values) or len(set(values)) < len(values):
            raise ValueError(f"{path}: strength.{method}: values {list(values)} must differ and contain {paper}.")
        sweeps[method] = Sweep(str(sweep["key"]), values, paper)
    return sweeps


def _label(level: Any) -> str:
    """A name for an unnamed level: its values."""
    values = level.values() if isinstance(level, dict) else [Path(str(level)).stem]
    flat = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return "+".join(re.sub(r"[^A-Za-z0-9_.]", "", str(part)) for part in flat)


def _seeds(path: Path, value: Any) -> tuple[int, ...]:
    seeds = value if isinstance(value, list) else [value]
    if not seeds or any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in seeds):
        raise ValueError(f"{path}: seeds is {value!r}; give whole numbers, e.g. [0, 1, 2].")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds {seeds} names a seed twice; that would count one run as two.")
    return tuple(seeds)


def _count(path: Path, key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{path}: {key} is {value!r}; give a whole number of at least 1.")
    return value


def _mapping(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {key} holds {type(value).__name__}; give names with what they mean.")
    return {str(name): entry for name, entry in value.items()}


def _name(path: Path, key: str, name: Any) -> str:
    if not _NAME.fullmatch(str(name)):
        raise ValueError(
            f"{path}: {key}: {name!r} becomes part of a directory name; use letters, digits, '_', '.', '+'."
        )
    return str(name)


def _known(what: str, name: Any, choices: Mapping[str, Any] | Sequence[str]) -> None:
    if name in choices:
        return
    close = get_close_matches(str(name), list(choices), n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"There are {_list(choices)}."
    raise ValueError(f"{what} '{name}'. {hint}")


def _list(names: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(names)
