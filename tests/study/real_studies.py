"""Tiny studies that really train, through the command line or planned by the real parser."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from chaosgate.cli.training import compose as compose_words
from chaosgate.study import Run, load_study, plan_runs
from chaosgate.study.execute.run import rows_of

REPOSITORY = Path(__file__).parents[2]
RECORD = {"trainer.callbacks+": {"class_path": "tests.study.callbacks.Record"}}
KILL = {
    "trainer.callbacks+": {"class_path": "tests.study.callbacks.Kill", "init_args": {"epoch": 1}}
}
ORIGIN = "config_hash checkpoint commit versions run method noise_measured digest".split()
"""Keys of a row besides its numbers."""


def tiny(folder: Path, name: str, methods: dict[str, Any], **overrides: Any) -> Path:
    small = {
        "trainer.max_epochs": 3,
        "trainer.limit_train_batches": 3,
        "trainer.limit_val_batches": 1,
        "trainer.enable_model_summary": False,
        "trainer.log_every_n_steps": 1,
        "model.backbone_args": {"channels": [4, 8, 8, 8]},
        "data.init_args.batch_size": 16,
        "data.init_args.corruptions": ["gaussian_noise", "pixelate"],
        "data.init_args.severities": [1, 5],
        "data.init_args.cache_dir": str(folder / "cache"),
    }
    content = {
        "base": ["base", "data/fashion_mnist"],
        "overrides": {**small, **overrides},
        "methods": methods,
        "reference": next(iter(methods)),
        "checkpoint": "last",
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    return {**os.environ, "PYTHONPATH": paths, "COLUMNS": "80"}


def start(action: str, path: Path, *options: str) -> "subprocess.Popen[str]":
    words = ["study", action, str(path), "--root", str(path.parent), *options]
    command, pipe = [sys.executable, "-m", "chaosgate", *words], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())


def study(action: str, path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    process = start(action, path, *options)
    out, err = process.communicate(timeout=900)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@cache
def compose(words: tuple[str, ...]) -> dict[str, Any]:
    """The real one, once for every command line."""
    return compose_words(words)


def runs_of(path: Path, size: str | None = None, root: Path | None = None) -> list[Run]:
    found = load_study(path, size)
    return plan_runs(found, root or path.parent, lambda words: compose(tuple(words)))


def numbers(run: Run) -> list[dict[str, Any]]:
    """Rows without their origin."""
    return [{key: value for key, value in row.items() if key not in ORIGIN} for row in rows_of(run)]
