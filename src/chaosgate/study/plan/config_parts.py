"""Parts of a configuration: YAML files and dotted keys, put together from left to right as on the command line."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml


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
    """A file named in a study: looked up beside the study, then in every folder above it.

    So ``configs/base.yaml`` means the same in ``configs/study/a.yaml`` and in a study of one's own elsewhere in the
    repository, whatever the current directory.
    """
    start = study.resolve().parent
    for folder in (start, *start.parents):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{study} names {name}, which is neither in {start} nor in a folder above it.")


class _Strict(yaml.SafeLoader):
    """A key given twice is an error; plain YAML keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ValueError(f"{self.name}, line {line}: '{key}' is given twice. Keep one, or rename one.")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an error names the file and the line."""
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.load(file, _Strict)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason}); give a YAML file.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}; a mapping of keys to values is needed.")
    return content


def did_you_mean(name: object, choices: Any) -> str:
    """The nearest choice as a question, or all of them.

    >>> did_you_mean("bset", ["best", "last"]), did_you_mean("x", ["best", "last"])
    ("Did you mean 'best'?", 'There are best, last.')
    """
    close = get_close_matches(str(name), list(choices), n=1)
    return f"Did you mean '{close[0]}'?" if close else f"There are {', '.join(choices)}."
