"""Read a study file; whatever is wrong with it is said in one sentence, before anything runs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaosgate.study.plan.config_parts import read_yaml
from chaosgate.study.plan.entries import (
    find_file,
    listed,
    read_count,
    read_mapping,
    read_name,
    read_numbers,
    read_parts,
    read_seeds,
    require_known,
)
from chaosgate.study.plan.paper import paper_names
from chaosgate.study.plan.study import (
    CHECKPOINT,
    CHECKPOINTS,
    METRICS,
    STRENGTH,
    Axis,
    Size,
    Study,
    StudyTest,
    Sweep,
)

_KEYS = ("name", "project", "base", "overrides", "methods", "reference", "seeds", "grid", "strength", "tests") + (
    "checkpoint",
    "metrics",
    "paper",
    "jobs",
    "threads",
    "sizes",
)
_SIZE_KEYS = ("seeds", "overrides", "tests", "made_up", "jobs", "threads")


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
        require_known(f"{path}: no key", key, _KEYS)
    for key in ("base", "methods"):
        if not content.get(key):
            raise ValueError(f"{path}: '{key}' is missing. A study needs base (files) and methods (name: file).")
    methods = read_mapping(path, "methods", content["methods"])
    for name in methods:
        read_name(path, "methods", name)
    if "reference" not in content:
        raise ValueError(
            f"{path}: 'reference' is missing; name the method that others are compared to: {listed(methods)}."
        )
    require_known(f"{path}: reference: no method", content["reference"], methods)
    metrics = content.get("metrics", METRICS[:4])
    if isinstance(metrics, str) or not metrics:
        raise ValueError(f"{path}: metrics is {metrics!r}; give a list of some of {listed(METRICS)}.")
    metrics = tuple(metrics)
    for metric in metrics:
        require_known(f"{path}: metrics: no metric", metric, METRICS)
    small = _size(path, read_mapping(path, "sizes", content.get("sizes") or {}), size)
    for key in ("seeds", "jobs", "threads"):
        content[key] = small.get(key, content.get(key))
    tests = _tests_of(path, content.get("tests") or {StudyTest().name: None})
    the_size = None if size is None else _sized(path, size, small, tests)
    suffix = "" if size is None else f".{size}"
    title = read_name(path, "name", content.get("name", path.stem)) + suffix
    paper = content.get("paper") or []
    paper = [paper] if isinstance(paper, str) else paper
    for name in paper:
        require_known(f"{path}: paper: no table", name, paper_names())
    shared = read_parts(path, "overrides", content.get("overrides") or {})
    return Study(
        name=title,
        path=path,
        project=read_name(path, "project", content["project"]) + suffix if "project" in content else title,
        base=read_parts(path, "base", content["base"]) + shared,
        methods={
            read_name(path, "methods", name): read_parts(path, f"methods.{name}", value)
            for name, value in methods.items()
        },
        reference=str(content["reference"]),
        seeds=read_seeds(path, [0] if content["seeds"] is None else content["seeds"]),
        grid=_grid(path, content.get("grid") or {}, methods),
        strength=_strength(path, content.get("strength") or {}, methods, str(content["reference"])),
        metrics=metrics,
        tests=tuple(_sized_test(test, the_size) for test in tests),
        checkpoints=_checkpoints(path, content.get("checkpoint", CHECKPOINTS[0])),
        paper=tuple(paper),
        jobs=read_count(path, "jobs", 1 if content["jobs"] is None else content["jobs"]),
        threads=None if content["threads"] is None else read_count(path, "threads", content["threads"]),
        size=the_size,
    )


def _size(path: Path, sizes: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """What a size says, in the study or in a file of its own that several studies share; nothing for the full size."""
    for key in sizes:
        read_name(path, "sizes", key)
    if name is None:
        return {}
    if not sizes:
        raise ValueError(f"{path} has one size only; it has no 'sizes:' and thus no '{name}'.")
    require_known(f"{path}: no size", name, sizes)
    content = read_yaml(find_file(path, sizes[name])) if isinstance(sizes[name], str) else sizes[name]
    content = read_mapping(path, f"sizes.{name}", content)
    for key in content:
        require_known(f"{path}: sizes.{name}: no key", key, _SIZE_KEYS)
    return content


def _sized(path: Path, name: str, content: Mapping[str, Any], known: Sequence[StudyTest]) -> Size:
    made_up = content.get("made_up", False)
    if not isinstance(made_up, bool):
        raise ValueError(f"{path}: sizes.{name}.made_up is {made_up!r}; give true or false.")
    there = {test.name for test in known}
    tests = read_mapping(path, f"sizes.{name}.tests", content.get("tests") or {})
    parts = {test: read_parts(path, f"sizes.{name}.tests.{test}", value) for test, value in tests.items()}
    overrides = read_parts(path, f"sizes.{name}.overrides", content.get("overrides") or {})
    # A file of sizes serves several studies; it may speak of tests that this one does not have.
    return Size(name, overrides, {test: part for test, part in parts.items() if test in there}, made_up)


def _tests_of(path: Path, value: Any) -> tuple[StudyTest, ...]:
    """``tests:``: a name with what differs from training; nothing for the test set of the training data."""
    return tuple(
        StudyTest(read_name(path, "tests", name), () if parts is None else read_parts(path, f"tests.{name}", parts))
        for name, parts in read_mapping(path, "tests", value).items()
    )


def _sized_test(test: StudyTest, size: Size | None) -> StudyTest:
    return test if size is None else StudyTest(test.name, (*test.parts, *size.tests.get(test.name, ())))


def _checkpoints(path: Path, value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        require_known(f"{path}: checkpoint: no", name, CHECKPOINTS)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path}: checkpoint is {value!r}; give one of {listed(CHECKPOINTS)}, or several in a list.")
    return tuple(names)


def _grid(path: Path, value: Any, methods: Mapping[str, Any]) -> dict[str, Axis]:
    axes: dict[str, Axis] = {}
    for axis, levels in read_mapping(path, "grid", value).items():
        only = list(methods)
        if isinstance(levels, dict) and set(levels) == {"methods", "levels"}:
            only, levels = levels["methods"], levels["levels"]
            for method in only:
                require_known(f"{path}: grid.{axis}: no method", method, methods)
        if not isinstance(levels, dict | list) or not levels or axis in (STRENGTH, CHECKPOINT):
            raise ValueError(
                f"{path}: grid.{axis} needs levels, e.g. {{L3: {{noise.stages: [L3]}}, L4: ...}}; strengths are swept "
                "under 'strength:', checkpoints under 'checkpoint:'."
            )
        named = levels if isinstance(levels, dict) else {_label(level): level for level in levels}
        if len(named) < len(levels):
            raise ValueError(f"{path}: grid.{axis} has two levels that look alike; name them: {{name: keys, ...}}.")
        parts = {
            read_name(path, f"grid.{axis}", level): read_parts(path, f"grid.{axis}.{level}", part)
            for level, part in named.items()
        }
        axes[read_name(path, "grid", axis)] = Axis(parts, frozenset(only))
    return axes


def _strength(path: Path, value: Any, methods: Mapping[str, Any], reference: str) -> dict[str, Sweep]:
    sweeps: dict[str, Sweep] = {}
    for method, sweep in read_mapping(path, "strength", value).items():
        require_known(f"{path}: strength: no method", method, methods)
        if method == reference:
            raise ValueError(f"{path}: strength.{method}: the reference has no strength to sweep.")
        if not isinstance(sweep, dict) or set(sweep) - {"paper"} != {"key", "values"}:
            raise ValueError(
                f"{path}: strength.{method} needs key (dotted), values (a list), and paper (one of them) if one is to "
                "be selected."
            )
        values = read_numbers(path, f"strength.{method}.values", sweep["values"])
        paper = (
            None if sweep.get("paper") is None else read_numbers(path, f"strength.{method}.paper", [sweep["paper"]])[0]
        )
        if (paper is not None and paper not in values) or len(set(values)) < len(values):
            raise ValueError(f"{path}: strength.{method}: values {list(values)} must differ and contain {paper}.")
        sweeps[method] = Sweep(str(sweep["key"]), values, paper)
    return sweeps


def _label(level: Any) -> str:
    """A name for an unnamed level: its values."""
    values = level.values() if isinstance(level, dict) else [Path(str(level)).stem]
    flat = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return "+".join(re.sub(r"[^A-Za-z0-9_.]", "", str(part)) for part in flat)
