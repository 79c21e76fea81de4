"""Parts of a configuration: YAML files and dotted keys, put together from left to right as on the command line."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from chaosgate.run.config_files import find_config, read_yaml


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


def read_parts(value: Any, study: Path) -> ConfigParts:
    """One file or mapping of dotted keys, or several of them in order; files are looked up by :func:`find_file`."""
    return tuple(_read_part(part, study) for part in (value if isinstance(value, list) else [value]))


def _read_part(part: Any, study: Path) -> ConfigPart:
    if isinstance(part, str):
        file = find_file(study, part)
        return ConfigPart(read_yaml(file), file)
    if isinstance(part, dict):
        if wrong := [name for name in part if not isinstance(name, str)]:
            raise ValueError(f"{wrong[0]!r} is not a key; write e.g. trainer.max_epochs: 20.")
        return ConfigPart(part)
    raise ValueError(f"{part!r} is not a part of a configuration; give a file, dotted keys with values, or a list.")


def find_file(study: Path, name: str) -> Path:
    """A file named in a study: beside the study or in a folder above it, else a shipped configuration.

    So a name means the same file whatever the current directory.
    """
    start = study.resolve().parent
    try:
        return find_config(name, (start, *start.parents))
    except OSError as error:
        raise FileNotFoundError(f"{study} names {name}, which is neither in {start} nor above it: {error}") from None


def did_you_mean(name: object, choices: Any) -> str:
    """The nearest choice as a question, or all of them.

    >>> did_you_mean("bset", ["best", "last"]), did_you_mean("x", ["best", "last"])
    ("Did you mean 'best'?", 'There are best, last.')
    """
    close = get_close_matches(str(name), list(choices), n=1)
    return f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(choices)}."
