"""Parts of a configuration as a study names them, and what the command line makes of them together.

A part is a YAML file or dotted keys; they are put together from left to right. ``${NAME}`` in them stands for a data
folder, which differs from machine to machine.

Which training a run is, is decided over its parsed configuration (:mod:`chaosgate.run.identity`), so that a default
that changes in the code makes another run. The parser needs Lightning and torch; ``study status`` must not wait for
them. So what it gave is kept in the user's cache folder, under a hash of the command line, of every source file of this
package, of the modules that were allowed and of the versions of the libraries whose classes a configuration names.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import chaosgate
from chaosgate.data.atomic import cache_folder, file_hash, replace_file
from chaosgate.run.config_files import allowed_modules, config_folder, find_config, read_yaml
from chaosgate.run.directory import config_hash
from chaosgate.run.identity import installed

FOLDERS = {
    "CHAOSGATE_IMAGENET": "train/<wnid> and val/<wnid> of ImageNet-1k",
    "CHAOSGATE_IMAGENET_C": "<corruption>/<severity>/<wnid> of the released ImageNet-C",
    "CHAOSGATE_PETS": "oxford-iiit-pet",
}
"""Variables of the studies in this repository, and what their folders hold."""

SYNTHETIC = "synthetic"
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
    return tuple(
        _read_part(part, study) for part in (value if isinstance(value, list) else [value])
    )


def _read_part(part: Any, study: Path) -> ConfigPart:
    if isinstance(part, str) and (study.parent / "rows.jsonl.xz").is_file():
        return ConfigPart(
            {}, None, part
        )  # a packed study trains nothing; the file may be gone by now
    if isinstance(part, str):
        file = find_file(study, part)
        return ConfigPart(read_yaml(file), file, part)
    if isinstance(part, dict):
        if "config" in part:
            raise ValueError(
                "config: name the file itself, before or after the dotted keys: [FILE, {key: value}]."
            )
        if wrong := [name for name in part if not isinstance(name, str)]:
            raise ValueError(f"{wrong[0]!r} is not a key; write e.g. trainer.max_epochs: 20.")
        return ConfigPart(part)
    raise ValueError(
        f"{part!r} is not a part of a configuration; give a file, dotted keys with values, or a list."
    )


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
        raise FileNotFoundError(
            f"{study} names {name}, which is neither in {start} nor above it: {error}"
        ) from None


# -- data folders ------------------------------------------------------------------------------------------------------


def variables(allowed: Iterable[str] = ()) -> dict[str, str]:
    """Environment variables that a study may read: those that begin with ``CHAOSGATE_``, and the allowed ones.

    A study file comes from somebody else, and what it reads ends in logs and reports: other variables hold secrets.
    """
    names = {name for name in os.environ if name.startswith(_PREFIX)} | set(allowed)
    return {name: os.environ[name] for name in names if name in os.environ}


def synthetic_folders(root: str | Path) -> dict[str, str]:
    """The same variables for images that are written for a smoke study (:mod:`chaosgate.data.synthetic`)."""
    return {
        name: str(Path(root) / SYNTHETIC / name.removeprefix(_PREFIX).lower()) for name in FOLDERS
    }


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
    return (
        {name for entry in value for name in names_in(entry)} if isinstance(value, list) else set()
    )


def require_allowed(names: Iterable[str], folders: Mapping[str, str]) -> None:
    """Refuse names that a study may not read."""
    if closed := sorted(
        name for name in names if name not in folders and not name.startswith(_PREFIX)
    ):
        raise ValueError(
            f"the study reads the environment variable {closed[0]}; a study may read {_PREFIX}* only. Set it and allow "
            f"it with --variable {closed[0]} if you know why it is there."
        )


def require_folders(names: Iterable[str], folders: Mapping[str, str]) -> None:
    """Refuse names that are unset, and folders and files that do not exist; all of them in one message."""
    wanted = sorted(set(names))
    complaints = []
    for name in wanted:
        folder = folders.get(name)
        holds = f" (a folder with {FOLDERS[name]})" if name in FOLDERS else ""
        if not folder:
            complaints.append(f"{name}{holds} is not set")
        elif not (place := Path(folder).expanduser()).exists():
            complaints.append(f"{name}{holds} is {folder}, which does not exist")
        elif name in FOLDERS and not place.is_dir():
            complaints.append(f"{name}{holds} is {folder}, which is a file")
    if complaints:
        raise FileNotFoundError(
            f"the data are missing: {'; '.join(complaints)}. Set the variable, e.g. export {wanted[0]}="
            f"{'FOLDER' if wanted[0] in FOLDERS else 'PATH'}, or try the study on synthetic images with --size smoke."
        )


# -- parsed configurations ---------------------------------------------------------------------------------------------

Parse = Callable[[Sequence[str]], Mapping[str, Any]]
"""From a command line (``fit`` or ``test``, then files and keys) to the parsed configuration; ValueError if refused."""
Sources = dict[str, str]
LIBRARIES = (
    "jsonargparse",
    "lightning",
    "pytorch-lightning",
    "timm",
    "torch",
    "torchmetrics",
    "torchvision",
)


class CachedParse:
    """A parser that remembers.

    Args:
        parse: Gives a parsed configuration, and the hashes of the source files of the classes in it that belong
            neither to this package nor to the libraries, by path.
        folder: Where to remember; by default ``parsed`` in the user's cache folder.
    """

    def __init__(
        self,
        parse: Callable[[Sequence[str]], tuple[dict[str, Any], Sources]],
        folder: Path | None = None,
    ) -> None:
        self.parse = parse
        self.folder = folder or cache_folder() / "parsed"

    def __call__(self, words: Sequence[str]) -> Mapping[str, Any]:
        meaning = [code_version(), allowed_modules(), list(words)]
        path = self.folder / f"{config_hash(meaning, digits=64)}.json"
        if (known := _read(path)) is not None:
            return known
        config, sources = self.parse(words)
        self._keep(path, {"config": config, "sources": sources, "folder": os.getcwd()})
        return config

    def _keep(self, path: Path, entry: dict[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(entry))
        except (OSError, TypeError):  # a full or read-only home; the next command parses again
            pass


def _read(path: Path) -> dict[str, Any] | None:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        sources: Sources = entry["sources"]
        if sources and entry["folder"] != os.getcwd():  # the same name may be another module here
            return None
        if any(file_hash(file) != known for file, known in sources.items()):
            return None
        config: dict[str, Any] = entry["config"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return config


@cache
def code_version() -> str:
    """Of every source file of this package, and of the libraries whose classes have defaults."""
    digest = hashlib.sha256()
    package = Path(chaosgate.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} {file_hash(path)}\n".encode())
    for name in LIBRARIES:
        digest.update(f"{name} {installed(name)}\n".encode())
    return digest.hexdigest()
