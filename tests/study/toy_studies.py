"""Studies of two methods that differ in one key, and a training without work."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from chaosgate.run.files import RunDirectory, with_digest, write_json, write_lines
from chaosgate.study import Run, load_study, plan_runs

Write = Callable[..., Path]
Plan = Callable[..., list[Run]]
GATE = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}


def study_writer(folder: Path) -> Write:
    """Writes studies; keyword arguments replace keys of the study."""
    data = {"init_args": {"severities": [1], "batch_size": 8}}
    files = {
        "base": {"trainer": {"max_epochs": 3}, "data": data},
        "none": {"noise": {"gate": None}},
        "gch": {"noise": {"gate": GATE}},
    }
    for stem, content in files.items():
        (folder / f"{stem}.yaml").write_text(yaml.safe_dump(content))

    def write(name: str = "small", **keys: Any) -> Path:
        methods = {"none": "none.yaml", "gch": "gch.yaml"}
        content = {"base": ["base.yaml"], "methods": methods, "reference": "none", "seeds": [0]}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**content, **keys}, sort_keys=False))
        return path

    return write


def toy_compose(words: Sequence[str]) -> dict[str, Any]:
    """The configuration of a toy study; the real parser would refuse it: no data, no defaults."""
    whole: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if word == "-c":
            value = json.loads(next(rest))
        else:
            key, _, text = word.removeprefix("--").partition("=")
            value = yaml.safe_load(text)
            for part in reversed(key.split(".")):
                value = {part: value}
        _merge(whole, value)
    return whole


def _merge(whole: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(whole.get(key), dict):
            _merge(whole[key], value)
        else:
            whole[key] = value


def toy_runs(study: Path, root: Path, size: str | None = None) -> list[Run]:
    return plan_runs(load_study(study, size), root, toy_compose)


def toy_execute(command: str, config: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Leave the files of a training or a test, after what the study overrides with ``stub: fail |
    fail_once | crash | wait``."""
    import torch

    run, stub = RunDirectory(options["run_dir"]), config.get("stub")
    if command == "fit":
        with open(run.path / "attempts.txt", "a") as file:
            print(os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
        write_json(run.progress, {"phase": "fit", "epoch": 0, "epochs": 1, "pid": os.getpid()})
        if stub == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if stub == "fail" or (stub == "fail_once" and attempts(run.path) == 1):
            raise ValueError("the loss became nan")
        while stub == "wait" and not (run.path.parent / "go").exists():
            time.sleep(0.02)
        run.checkpoints.mkdir(exist_ok=True)
        for role in ("best", "top1", "last"):
            torch.save({"state_dict": {}}, run.checkpoints / f"{role}.ckpt")
        write_lines(run.curves, [{"epoch": 0, "val/nll": 1.0}])
        write_json(run.config, {"model": {"num_classes": 10}})
        return []
    run.outputs.mkdir(exist_ok=True)
    about = {"checkpoint": "c", "checkpoint_name": Path(options["ckpt_path"]).stem}
    cell = {"corruption": "clean", "severity": config["data"]["init_args"]["severities"][0]}
    row = {**options["labels"], **about, **cell, "top1": 0.5, "nll": 1.0, "ece": 0.1, "n": 10}
    write_lines(run.results, [*run.rows(), with_digest(row)])
    return [row]


def attempts(directory: Path) -> int:
    path = directory / "attempts.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


if __name__ == "__main__":  # STUDY ROOT JOBS: a runner that a test can kill
    from rich.console import Console

    from chaosgate.study.execute.local import Display, warm, work_through
    from tests.study.toy_studies import toy_execute as execute  # by its name in other processes

    signal.signal(signal.SIGINT, signal.default_int_handler)
    study, root, jobs = sys.argv[1:]
    display = Display(Console(stderr=True))
    context = warm("chaosgate.run.checkpoint")
    runs = toy_runs(Path(study), Path(root))
    outcome = work_through(runs, execute, display, int(jobs), 1, context)
    print(json.dumps({"failed": sorted(outcome.failed), "interrupted": outcome.interrupted}))
