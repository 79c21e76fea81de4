"""Entries of study files, checked one by one; whatever is wrong is said with the file and the key."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

from chaosgate.study.plan.config_parts import read_yaml
from chaosgate.study.plan.study import ConfigPart, ConfigParts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]*")


def read_parts(path: Path, key: str, value: Any) -> ConfigParts:
    """One file or mapping of dotted keys, or several of them in order."""
    parts = value if isinstance(value, list) else [value]
    return tuple(_part(path, key, part) for part in parts)


def _part(path: Path, key: str, part: Any) -> ConfigPart:
    if isinstance(part, str):
        file = find_file(path, part)
        return ConfigPart(read_yaml(file), file)
    if isinstance(part, dict):
        if nested := [name for name in part if not isinstance(name, str)]:
            raise ValueError(f"{path}: {key}: {nested[0]!r} is no key; write e.g. trainer.max_epochs: 20.")
        return ConfigPart(part)
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


def read_seeds(path: Path, value: Any) -> tuple[int, ...]:
    """Different whole numbers, at least one."""
    seeds = value if isinstance(value, list) else [value]
    if not seeds or any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in seeds):
        raise ValueError(f"{path}: seeds is {value!r}; give whole numbers, e.g. [0, 1, 2].")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds {seeds} names a seed twice; that would count one run as two.")
    return tuple(seeds)


def read_count(path: Path, key: str, value: Any) -> int:
    """A whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{path}: {key} is {value!r}; give a whole number of at least 1.")
    return value


def read_mapping(path: Path, key: str, value: Any) -> dict[str, Any]:
    """Names with what they mean."""
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {key} holds {type(value).__name__}; give names with what they mean.")
    return {str(name): entry for name, entry in value.items()}


def read_name(path: Path, key: str, name: Any) -> str:
    """A name that can be part of that of a directory."""
    if not _NAME.fullmatch(str(name)):
        raise ValueError(
            f"{path}: {key}: {name!r} becomes part of a directory name; use letters, digits, '_', '.', '+'."
        )
    return str(name)


def read_numbers(path: Path, key: str, value: Any) -> tuple[float, ...]:
    """Finite numbers, at least one."""
    numbers = value if isinstance(value, list) else []
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int | float) or not isfinite(n) for n in numbers):
        raise ValueError(f"{path}: {key} is {value!r}; give a list of finite numbers.")
    return tuple(float(number) for number in numbers)


def require_known(what: str, name: Any, choices: Mapping[str, Any] | Sequence[str]) -> None:
    """Refuse what is not among the choices; propose the nearest."""
    if isinstance(name, str) and name in choices:
        return
    close = get_close_matches(str(name), list(choices), n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"There are {listed(choices)}."
    raise ValueError(f"{what} '{name}'. {hint}")


def listed(names: Mapping[str, Any] | Sequence[str]) -> str:
    """Names in a row."""
    return ", ".join(names)
