"""One directory per run: its files, its lock, and which checkpoint was selected. Needs no torch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from chaosgate.run.provenance import is_unchanged

ROLES = ("best", "top1", "last")
"""Networks of a run by name: smallest validation NLL, best validation Top-1, final epoch."""
BEST, TOP1, LAST = (f"{role}.ckpt" for role in ROLES)
SELECTION = "selection.json"
_ORPHANS = 8.0  # seconds: data workers of a killed run hold its lock for five


class RunDirectory:
    """The files of one run.

    ========================= ====================================================================================
    ``config.yaml``           the whole configuration of the training
    ``checkpoints/``          ``last.ckpt``, ``epoch-*.ckpt``, links ``best`` and ``top1``, ``selection.json``
    ``curves.jsonl``          loss and validation metrics, one line per epoch
    ``noise.json``            measured strength of the gates at the end of training
    ``compatibility.jsonl``   rows of :class:`~chaosgate.compat.CompatibilityProbe`, where a run has one
    ``figures/``              reliability diagrams, as PNG files
    ``results.jsonl``         one line per test cell, with a digest of itself
    ``outputs/``              outputs of the tested network for every image (:mod:`chaosgate.run.outputs`)
    ``predictions.csv``       one line per test image, of ``chaosgate predict``
    ``progress.json``         phase, epoch and batch
    ========================= ====================================================================================

    Args:
        path: The directory; need not exist yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.checkpoints, self.figures, self.outputs = (
            path / "checkpoints",
            path / "figures",
            path / "outputs",
        )
        self.last = self.checkpoints / LAST
        self.config, self.noise, self.progress = (
            path / "config.yaml",
            path / "noise.json",
            path / "progress.json",
        )
        self.curves, self.results = path / "curves.jsonl", path / "results.jsonl"
        self.predictions = path / "predictions.csv"

    @classmethod
    def of(cls, trainer: Any) -> "RunDirectory":
        """The run directory that a callback writes to, which is made if it does not exist."""
        run = cls(trainer.default_root_dir)
        run.path.mkdir(parents=True, exist_ok=True)
        return run

    def settings(self) -> dict[str, Any]:
        """The configuration that the training was started with."""
        content: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8")) or {}
        return content

    def rows(self) -> list[dict[str, Any]]:
        """The result rows that can be read and are unchanged; empty if the run was never tested."""
        return [row for row in read_lines(self.results)[0] if is_row(row)]

    def selected(self, which: str = BEST) -> Path:
        """The checkpoint with a role (``best``, ``top1`` or ``last``)."""
        path = self.checkpoints / f"{which.removesuffix('.ckpt')}.ckpt"
        if not path.is_file():
            found = ", ".join(sorted(one.name for one in self.checkpoints.glob("*.ckpt"))) or "none"
            raise FileNotFoundError(
                f"no checkpoint {path}; the run has {found}. Train first (chaosgate fit with the same "
                "files), or give --run_dir, or --ckpt_path FILE."
            )
        return path

    def check_free(self) -> None:
        """Raise an error if there is a run already."""
        if any(self.checkpoints.glob("*.ckpt")) or self.results.exists():
            raise FileExistsError(
                f"{self.path} already holds a run. Continue it with --resume, or give another --run_dir."
            )

    @contextmanager
    def locked(self, wait: float = _ORPHANS) -> Iterator[None]:
        """Make the directory, and be the only process that trains in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock").acquire(timeout=wait)
        except Timeout:
            raise RuntimeError(
                f"another process is writing to {self.path}. Wait for it, or give another --run_dir."
            ) from None
        except OSError as error:
            raise OSError(
                f"{self.path} cannot be written ({error.strerror}). Give another --run_dir."
            ) from error
        with lock:
            yield


def is_row(entry: dict[str, Any]) -> bool:
    """Whether an entry is the unchanged row of a cell."""
    about_cell = isinstance(entry.get("corruption"), str) and isinstance(entry.get("severity"), int)
    return about_cell and is_unchanged(entry)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The objects in a file of JSON lines, and how many lines are not one (1 for an empty file)."""
    if not path.exists():
        return [], 0
    entries: list[dict[str, Any]] = []
    wrong = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict):
            entries += [entry] if entry else []
        else:
            wrong += 1
    return entries, wrong or int(not entries)
