from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaosgate.study import Run, load_study, plan_runs

Write = Callable[..., Path]


def study_writer(folder: Path) -> Write:
    """Writes studies of two methods that differ in one key; keyword arguments replace keys of the study."""
    files = {
        "base": {"trainer": {"max_epochs": 3}, "data": {"init_args": {"severities": [1], "batch_size": 8}}},
        "none": {"noise": {"gate": None}},
        "gch": {"noise": {"gate": {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0}}}},
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


@pytest.fixture
def write_study(tmp_path: Path) -> Write:
    return study_writer(tmp_path)


@pytest.fixture
def plan(write_study: Write, tmp_path: Path) -> Callable[..., list[Run]]:
    """Runs of a study written with the given keys."""
    return lambda **keys: plan_runs(load_study(write_study(**keys)), tmp_path / "runs")
