"""Configuration files: found by path or by the name of a shipped one, and read as plain data.

The files of the repository's ``configs/`` are part of the installed package. ``noise/gch`` names
the shipped ``noise/gch.yaml`` unless there is a local file of that name.
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ALLOWED = "CHAOSGATE_ALLOW"
"""Environment variable: modules that configurations may name besides, separated by commas."""


class UsageError(ValueError):
    """The command line or a configuration cannot be understood."""


@cache
def config_folder() -> Path:
    """The shipped configurations: inside the installed package, or in the clone that it is run
    from.
    """
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parents[1] / "configs"


def shipped_configs() -> dict[str, Path]:
    """Every shipped file by its name, such as ``noise/gch``."""
    root = config_folder()
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.yaml"))
    }


def config_name(path: Path) -> str:
    """What to type for a file: the name of a shipped one, else its path from here."""
    if path.is_relative_to(config_folder()):
        return path.relative_to(config_folder()).with_suffix("").as_posix()
    return os.path.relpath(path)


def find_config(name: str | Path, folders: Iterable[Path] = (Path(),), group: str = "") -> Path:
    """The file that a name stands for: a local one, else the shipped one.

    Args:
        name: A path, or a name such as ``noise/gch``; ``configs/noise/gch.yaml`` means the same
            shipped file.
        folders: Where to look for local files, in this order.
        group: Folder that may be left out of the name, such as ``study``.
    """
    text = str(name)
    short = text.removeprefix("configs/").removesuffix(".yaml")
    for folder in folders:
        for near in (text, f"{short}.yaml", Path(group, f"{short}.yaml")):
            if (folder / near).is_file():
                return folder / near
    shipped = shipped_configs()
    for known in (short, f"{group}/{short}"):
        if known in shipped:
            return shipped[known]
    meant = {one.rpartition("/")[2]: one for one in shipped} | {one: one for one in shipped}
    meant |= {path.stem: str(path) for path in Path(text).parent.glob("*.yaml")}
    close = [meant[one] for one in get_close_matches(short, meant, n=1)]
    hint = f" Did you mean '{close[0]}'?" if close else " 'chaosgate configs' lists them."
    raise FileNotFoundError(f"no configuration {text}, neither a file nor a shipped one.{hint}")


def allowed_modules() -> list[str]:
    """The modules of ``--allow``, inherited by child processes in an environment variable."""
    return [name for name in os.environ.get(ALLOWED, "").split(",") if name]


def allow_flags() -> list[str]:
    """``--allow MODULE`` for every module that this command was given, for the commands that it
    suggests.
    """
    return [word for name in allowed_modules() for word in ("--allow", name)]


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """The nearest choice as a question, or all of them.

    >>> did_you_mean("bset", ["best", "last"]), did_you_mean("x", ["best", "last"])
    ("Did you mean 'best'?", 'There are best, last.')
    """
    choices = list(choices)
    close = get_close_matches(str(name), choices, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(choices)}."


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an error names the file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, a date with month 13
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a mapping of keys to values.")
    return content
