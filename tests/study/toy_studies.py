"""Studies of two methods that differ in one key, for what can be shown without training."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from chaosgate.study import Run, load_study, plan_runs

Write = Callable[..., Path]
Plan = Callable[..., list[Run]]


def study_writer(folder: Path) -> Write:
    """Writes studies; keyword arguments replace keys of the study."""
    files = {
        "base": {
            "trainer": {"max_epochs": 3},
            "data": {"init_args": {"severities": [1], "batch_size": 8}},
        },
        "none": {"noise": {"gate": None}},
        "gch": {
            "noise": {
                "gate": {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}
            }
        },
    }
    for stem, content in files.items():
        (folder / f"{stem}.yaml").write_text(yaml.safe_dump(content))

    def write(name: str = "small", **keys: Any) -> Path:
        content = {
            "base": ["base.yaml"],
            "methods": {"none": "none.yaml", "gch": "gch.yaml"},
            "reference": "none",
            "seeds": [0],
        }
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**content, **keys}, sort_keys=False))
        return path

    return write


def toy_parse(words: Sequence[str]) -> dict[str, Any]:
    """What the command line would make of a toy study, which the real parser would refuse: no data, no defaults."""
    whole: dict[str, Any] = {}
    rest = iter(words[1:])
    for word in rest:
        if word == "-c":
            _merge(whole, json.loads(next(rest)))
        else:
            key, _, text = word.removeprefix("--").partition("=")
            try:
                value = json.loads(text)
            except ValueError:
                value = text
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
    return plan_runs(load_study(study, size), root, toy_parse)
