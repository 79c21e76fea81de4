"""Read a study file; whatever is wrong with it is said in one sentence, before anything runs."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chaosgate.run.config_files import find_config, read_yaml
from chaosgate.study.plan.parts import did_you_mean, find_file
from chaosgate.study.plan.study import Axis, Size, Study, Sweep, keys_of

Model = TypeVar("Model", bound=BaseModel)


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
    changed = {key: value for key in ("seeds", "jobs", "threads") if (value := getattr(the_size, key)) is not None}
    study = _validated(Study, {**content, **changed}, path)
    # A file of sizes serves several studies; it may speak of tests that this one does not have.
    more = the_size.tests
    tests = tuple(t.model_copy(update={"parts": (*t.parts, *more.get(t.name, ()))}) for t in study.tests)
    names = {key: f"{getattr(study, key)}.{size}" for key in ("name", "project")}
    study = study.model_copy(update={**names, "tests": tests})
    study._path, study._size = path, the_size
    return study


def _find_study(path: Path) -> Path:
    try:
        return find_config(path, group="study")
    except FileNotFoundError as error:
        near = sorted(file.name for file in path.parent.glob("*.yaml")) if path.parent != Path() else []
        there = f" {path.parent} has {', '.join(near)}." if near else ""
        raise FileNotFoundError(f"{error}{there}") from None


def _read_size(path: Path, sizes: Any, name: str) -> Size:
    """A size, written in the study or in a file of its own."""
    if not sizes:
        raise ValueError(f"{path} has one size only; it has no 'sizes:' and thus no '{name}'.")
    if not isinstance(sizes, dict) or name not in sizes:
        raise ValueError(f"{path}: sizes: no size '{name}'. {did_you_mean(name, sizes)}")
    content = read_yaml(find_file(path, sizes[name])) if isinstance(sizes[name], str) else sizes[name]
    size = _validated(Size, _given(content), path, f"sizes.{name}")
    size._own_name = name
    return size


def _given(content: Any) -> Any:
    """Keys without a value, or with nothing in it, are keys not given."""
    if not isinstance(content, dict):
        return content
    return {key: v for key, v in content.items() if key not in keys_of(Study) or (v is not None and v != {})}


def _validated(model: type[Model], content: Any, path: Path, prefix: str = "") -> Model:
    """Validate; pydantic's first complaint becomes a sentence with the file, the key, what was found, what to do."""
    try:
        return model.model_validate(content, context=path)
    except ValidationError as error:
        # An unknown key is the reason why another one is missing, not the other way round.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        if first["type"] == "missing" and first["loc"] == ("reference",):
            names = ", ".join(map(str, content["methods"]))
            raise ValueError(f"{path}: 'reference' is missing; name the method to compare to: {names}.") from None
        raise ValueError(f"{path}: {_sentence(model, first, prefix)}") from None


def _sentence(model: type[BaseModel], error: Any, prefix: str) -> str:
    location = [str(part) for part in error["loc"] if not str(part).startswith("[")]
    nested: dict[str, type[BaseModel]] = {"grid": Axis, "strength": Sweep}
    inner = nested.get(location[0]) if len(location) > 2 else None
    field = (inner or model).model_fields.get(location[2] if inner else location[0]) if location else None
    hint = field.description if field is not None and field.description else str(error["msg"])
    if inner is Axis and location[2] == "levels":  # mostly given without this word
        del location[2]
    key = ".".join(filter(None, [prefix, *location]))
    if error["type"] == "extra_forbidden":
        parent = key.removesuffix(location[-1]).rstrip(".")
        return f"{parent}: no key '{location[-1]}'. {did_you_mean(location[-1], keys_of(inner or model))}".lstrip(": ")
    if error["type"] == "value_error":
        return f"{key}: {error['ctx']['error']}".lstrip(": ")
    if error["type"] == "missing":
        return f"'{key}' is missing; give {hint}."
    return f"{key} is {error['input']!r}; give {hint}."
