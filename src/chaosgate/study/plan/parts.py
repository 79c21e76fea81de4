"""Parts of a configuration as a study names them: YAML files and dotted keys, put together from left to right.

``${NAME}`` in them stands for a data folder, which differs from machine to machine.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaosgate.run.config_files import config_folder, find_config, read_yaml

FOLDERS = {
    "CHAOSGATE_IMAGENET": "train/<wnid> and val/<wnid> of ImageNet-1k",
    "CHAOSGATE_IMAGENET_C": "<corruption>/<severity>/<wnid> of the released ImageNet-C",
    "CHAOSGATE_PETS": "oxford-iiit-pet",
}
"""Variables of the studies in this repository, and what their folders hold."""

MADE_UP = "made_up"
_PREFIX = "CHAOSGATE_"
_NAME = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")


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


def read_parts(value: Any, study: Path) -> ConfigParts:
    """One file or mapping of dotted keys, or several of them in order; files are looked up by :func:`find_file`."""
    return tuple(_read_part(part, study) for part in (value if isinstance(value, list) else [value]))


def _read_part(part: Any, study: Path) -> ConfigPart:
    if isinstance(part, str):
        file = find_file(study, part)
        return ConfigPart(read_yaml(file), file, part)
    if isinstance(part, dict):
        if "config" in part:
            raise ValueError("config: name the file itself, before or after the dotted keys: [FILE, {key: value}].")
        if wrong := [name for name in part if not isinstance(name, str)]:
            raise ValueError(f"{wrong[0]!r} is not a key; write e.g. trainer.max_epochs: 20.")
        return ConfigPart(part)
    raise ValueError(f"{part!r} is not a part of a configuration; give a file, dotted keys with values, or a list.")


def find_file(study: Path, name: str) -> Path:
    """A file named in a study: beside the study or in a folder above it, else a shipped configuration.

    So a name means the same file whatever the current directory. For a shipped study, local files are those here: a
    copy made by ``chaosgate configs copy`` wins as it does after ``-c``.
    """
    start = study.resolve().parent
    here = (Path.cwd(),) if start.is_relative_to(config_folder().resolve()) else ()
    try:
        return find_config(name, (*here, start, *start.parents))
    except OSError as error:
        raise FileNotFoundError(f"{study} names {name}, which is neither in {start} nor above it: {error}") from None


# -- data folders ------------------------------------------------------------------------------------------------------


def variables(allowed: Iterable[str] = ()) -> dict[str, str]:
    """Environment variables that a study may read: those that begin with ``CHAOSGATE_``, and the allowed ones.

    A study file comes from somebody else, and what it reads ends in logs and reports: other variables hold secrets.
    """
    names = {name for name in os.environ if name.startswith(_PREFIX)} | set(allowed)
    return {name: os.environ[name] for name in names if name in os.environ}


def made_up_folders(root: str | Path) -> dict[str, str]:
    """The same variables for images that are written for a smoke study (:mod:`chaosgate.data.sets.made_up`)."""
    return {name: str(Path(root) / MADE_UP / name.removeprefix(_PREFIX).lower()) for name in FOLDERS}


def resolve(value: Any, folders: Mapping[str, str]) -> Any:
    """``value`` with names replaced by folders; unknown names stay.

    >>> resolve({"root": "${CHAOSGATE_PETS}", "n": 3}, {"CHAOSGATE_PETS": "/data"})
    {'root': '/data', 'n': 3}
    """
    if isinstance(value, str):
        return _NAME.sub(lambda match: folders.get(match[1], match[0]), value)
    if isinstance(value, Mapping):
        return {key: resolve(entry, folders) for key, entry in value.items()}
    if isinstance(value, list):
        return [resolve(entry, folders) for entry in value]
    return value


def names_in(value: Any) -> set[str]:
    if isinstance(value, str):
        return set(_NAME.findall(value))
    if isinstance(value, Mapping):
        value = list(value.values())
    return {name for entry in value for name in names_in(entry)} if isinstance(value, list) else set()


def require_allowed(names: Iterable[str], folders: Mapping[str, str]) -> None:
    """Refuse names that a study may not read."""
    if closed := sorted(name for name in names if name not in folders and not name.startswith(_PREFIX)):
        raise ValueError(
            f"the study reads the environment variable {closed[0]}; a study may read {_PREFIX}* only. Set it and allow "
            f"it with --variable {closed[0]} if you know why it is there."
        )


def require_folders(names: Iterable[str], folders: Mapping[str, str]) -> None:
    """Refuse names that are unset, and folders that do not exist; all of them in one message."""
    wanted = sorted(set(names))
    complaints = []
    for name in wanted:
        folder = folders.get(name)
        holds = f" (a folder with {FOLDERS[name]})" if name in FOLDERS else ""
        if not folder:
            complaints.append(f"{name}{holds} is not set")
        elif not Path(folder).expanduser().is_dir():
            complaints.append(f"{name}{holds} is {folder}, which does not exist")
    if complaints:
        raise FileNotFoundError(
            f"the data are missing: {'; '.join(complaints)}. Set the variable, e.g. export {wanted[0]}="
            "FOLDER, or try the study on made-up images with --size smoke."
        )
