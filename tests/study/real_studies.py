"""Tiny studies that really train, through the command line or planned by the real parser."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from chaosgate.cli.fit import parsed
from chaosgate.gate import Gate
from chaosgate.run.directory import RunDirectory
from chaosgate.study import Run, load_study, plan_runs

REPOSITORY = Path(__file__).parents[2]
RECORD = {"trainer.callbacks+": {"class_path": "tests.study.callbacks.Record"}}
KILL = {
    "trainer.callbacks+": {"class_path": "tests.study.callbacks.Kill", "init_args": {"epoch": 1}}
}
ORIGIN = {
    "config_hash",
    "checkpoint",
    "commit",
    "versions",
    "run",
    "method",
    "noise_measured",
    "digest",
}  # of a row, besides its numbers


def tiny(folder: Path, name: str, methods: dict[str, Any], **overrides: Any) -> Path:
    content = {
        "base": [
            str(REPOSITORY / "configs" / file) for file in ("base.yaml", "data/fashion_mnist.yaml")
        ],
        "overrides": {
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
            **overrides,
        },
        "methods": methods,
        "reference": next(iter(methods)),
        "checkpoint": "last",
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def noise(name: str) -> str:
    return str(REPOSITORY / "configs" / "noise" / f"{name}.yaml")


def start(action: str, path: Path, *options: str) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "chaosgate",
        "study",
        action,
        str(path),
        "--root",
        str(path.parent),
        *options,
    ]
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "80"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def study(action: str, path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    process = start(action, path, *options)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@cache
def parse(words: tuple[str, ...]) -> dict[str, Any]:
    """The real parser, once for every command line."""
    return parsed(words)


def runs_of(path: Path, size: str | None = None, root: Path | None = None) -> list[Run]:
    return plan_runs(load_study(path, size), root or path.parent, lambda words: parse(tuple(words)))


def gate_of(run: Run) -> Gate | None:
    """A gate named on top of a file with another one keeps the arguments that both have, and may refuse them."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--gate", type=Gate | None)
    return parser.instantiate_classes(
        parser.parse_object({"gate": run.config["noise"]["gate"]})
    ).gate


def numbers(run: Run) -> list[dict[str, Any]]:
    """Rows without what says where they came from."""
    return [
        {key: value for key, value in row.items() if key not in ORIGIN}
        for row in RunDirectory(run.directory).rows()
    ]
