"""Files: shipped configurations by name, the directory of a run, atomic writes and digests.

The files of the repository's ``configs/`` are part of the installed package. ``noise/gch`` names
the shipped ``noise/gch.yaml`` unless there is a local file of that name. Needs no torch, so that
``chaosgate study status`` starts quickly.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml
from filelock import FileLock, Timeout

SELECTION = "selection.json"
DIGEST = "digest"
_ORPHANS = 8.0  # seconds: data workers of a killed run hold its lock for five


def replace_file(path: Path, content: str | bytes | Callable[[IO[bytes]], object]) -> None:
    """Write ``content`` to a temporary file beside ``path``, then rename it.

    On failure the old file is untouched and the temporary file is removed. The bytes are on the
    disk before the file has its name.

    Args:
        path: The file to write.
        content: A string (UTF-8), bytes, or a function that writes to an open binary file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file in one step."""
    replace_file(path, json.dumps(content, indent=1) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines, without lines that cannot be read."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [entry for entry in found if isinstance(entry, dict)]


def write_lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file of JSON lines in one step."""
    replace_file(path, "".join(json.dumps(entry) + "\n" for entry in entries))


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file, as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def config_hash(config: Any, digits: int = 8) -> str:
    """A short hash of plain data (what JSON can hold), independent of the order of keys."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:digits]


def with_digest(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with a hash of its content, to detect damage on the disk."""
    rest = {key: value for key, value in entry.items() if key != DIGEST}
    return {**rest, DIGEST: config_hash(json.loads(json.dumps(rest)), digits=16)}


def report_progress(trainer: Any, phase: str, every: float = 0.0, **where: float) -> None:
    """Replace ``progress.json``, but not within ``every`` seconds; unknown numbers are null."""
    path = RunDirectory(trainer.default_root_dir).progress
    recent = path.exists() and time.time() < path.stat().st_mtime + every
    if trainer.is_global_zero and not trainer.fast_dev_run and not recent:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {key: n if 0 <= n < math.inf else None for key, n in where.items()}
        write_json(path, {"phase": phase, **known, "pid": os.getpid()})


class RunDirectory:
    """The files of one run.

    - ``config.yaml``: the whole configuration of the training
    - ``checkpoints/``: ``last``, ``best``, ``top1``, ``epoch-*`` (``.ckpt``), ``selection.json``
    - ``curves.jsonl``: loss and validation metrics, one line per epoch
    - ``noise.json``: measured strength of the gates at the end of training
    - ``compatibility.jsonl``: rows of :class:`~chaosgate.compat.CompatibilityProbe`, if it was used
    - ``results.jsonl``: one line per test cell
    - ``outputs/``: outputs for every test image (:mod:`chaosgate.run.outputs`)
    - ``predictions.csv``: one line per test image, of ``chaosgate predict``
    - ``progress.json``: phase, epoch and batch

    Args:
        path: The directory; need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.config, self.progress = path / "config.yaml", path / "progress.json"
        self.checkpoints, self.last = path / "checkpoints", path / "checkpoints" / "last.ckpt"
        self.curves, self.noise = path / "curves.jsonl", path / "noise.json"
        self.results, self.outputs = path / "results.jsonl", path / "outputs"
        self.predictions = path / "predictions.csv"

    @classmethod
    def of(cls, trainer: Any) -> "RunDirectory":
        """The run directory of a trainer, created if necessary."""
        run = cls(trainer.default_root_dir)
        run.path.mkdir(parents=True, exist_ok=True)
        return run

    def settings(self) -> dict[str, Any]:
        """The configuration that the training was started with."""
        return read_yaml(self.config)

    def rows(self) -> list[dict[str, Any]]:
        """The result rows that can be read; empty if the run was never tested."""
        return read_lines(self.results)

    def selected(self, which: str = "best") -> Path:
        """The checkpoint with a role (``best``, ``top1`` or ``last``)."""
        path = self.checkpoints / f"{which}.ckpt"
        if not path.is_file():
            raise FileNotFoundError(
                f"no checkpoint {path}. Train first (chaosgate fit with the same files), or give "
                "--run_dir, or --ckpt_path FILE."
            )
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and lock it against other processes."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self.path / ".lock").acquire(timeout=_ORPHANS)
        except Timeout:
            raise RuntimeError(
                f"another process writes to {self.path}. Wait for it, or give another --run_dir."
            ) from None
        with lock:
            yield


# -- configuration files, and suggestions for names -----------------------------------------------

ALLOWED = "CHAOSGATE_ALLOW"
"""Environment variable: further modules that configurations may name, separated by commas."""


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
    """Name of a configuration on the command line: a shipped name, or a relative path."""
    if path.is_relative_to(config_folder()):
        return path.relative_to(config_folder()).with_suffix("").as_posix()
    return os.path.relpath(path)


def find_config(name: str | Path, folders: Iterable[Path] = (Path(),), group: str = "") -> Path:
    """Find a configuration by name: a local file, otherwise a shipped one.

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
    nearby = map(str, Path(text).parent.glob("*.yaml"))
    close = get_close_matches(text, [*shipped, *nearby], n=1)
    hint = f"Did you mean '{close[0]}'?" if close else "'chaosgate configs' lists them."
    raise FileNotFoundError(f"no configuration {text}, neither a file nor a shipped one. {hint}")


def allowed_modules() -> list[str]:
    """The modules of ``--allow``, inherited by child processes in an environment variable."""
    return [name for name in os.environ.get(ALLOWED, "").split(",") if name]


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """A sentence with the closest choice, or with all choices.

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
