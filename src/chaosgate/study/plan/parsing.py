"""Configurations as the command line understands them: parsed by the real parser once, and kept until the code changes.

Which training a run is, is decided over its parsed configuration (:mod:`chaosgate.run.identity`), so that a default
that changes in the code makes another run. The parser needs Lightning and torch; ``study status`` must not wait for
them. So what it gave is kept in the user's cache folder, under a hash of the command line, of every source file of this
package, of the modules that were allowed and of the versions of the libraries whose classes a configuration names.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import chaosgate
from chaosgate.data.files.atomic import replace_file
from chaosgate.run.provenance import file_hash

Parse = Callable[[Sequence[str]], Mapping[str, Any]]
"""From a command line (``fit`` or ``test``, then files and keys) to the parsed configuration; ValueError if refused."""
Sources = dict[str, str]
LIBRARIES = ("jsonargparse", "lightning", "pytorch-lightning", "timm", "torch", "torchmetrics", "torchvision")


class CachedParse:
    """A parser that remembers.

    Args:
        parse: Gives a parsed configuration, and the hashes of the source files of the classes in it that belong
            neither to this package nor to the libraries, by path.
        folder: Where to remember; by default ``parsed`` in the user's cache folder.
    """

    def __init__(
        self, parse: Callable[[Sequence[str]], tuple[dict[str, Any], Sources]], folder: Path | None = None
    ) -> None:
        self.parse = parse
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        self.folder = folder or home / "chaosgate" / "parsed"

    def __call__(self, words: Sequence[str]) -> Mapping[str, Any]:
        meaning = [code_version(), os.environ.get("CHAOSGATE_ALLOW"), list(words)]
        key = hashlib.sha256(json.dumps(meaning).encode()).hexdigest()
        path = self.folder / f"{key}.json"
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
        try:
            digest.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{name} not installed\n".encode())
    return digest.hexdigest()
