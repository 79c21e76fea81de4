"""Every alternative to noise is one line of a study, and trains."""

from pathlib import Path

import pytest
import yaml

from chaosgate.__main__ import main
from chaosgate.cli.training import compose
from chaosgate.run.directory import RunDirectory
from chaosgate.study import load_study, plan_runs

CONFIGS = Path(__file__).parents[2] / "configs"
ALTERNATIVES = sorted(path.stem for path in (CONFIGS / "alternative").glob("*.yaml"))
SMALL = {
    "trainer.max_epochs": 2,
    "trainer.limit_train_batches": 6,
    "trainer.limit_val_batches": 2,
    "trainer.enable_model_summary": False,
    "model.backbone_args": {"channels": [8, 16, 16, 16]},
    "data.init_args.batch_size": 32,
    "data.init_args.corruptions": None,
    "data.init_args.num_workers": 0,
}


def write(folder: Path, names: list[str]) -> Path:
    methods: dict[str, object] = {
        name: str(CONFIGS / f"noise/{name}.yaml") for name in ("none", "dropout")
    }
    methods |= {name: str(CONFIGS / f"alternative/{name}.yaml") for name in names}
    methods["stochastic_depth"] = {"model.backbone_args.drop_path_rate": 0.1}
    methods["gch_label_smoothing"] = [
        str(CONFIGS / "noise/gch.yaml"),
        str(CONFIGS / "alternative/label_smoothing.yaml"),
    ]
    study = {
        "base": [str(CONFIGS / "base.yaml"), str(CONFIGS / "data/fashion_mnist.yaml")],
        "overrides": SMALL,
        "methods": methods,
        "reference": "none",
        "checkpoint": "last",
        "jobs": 2,
        "threads": 1,
    }
    path = folder / "alternatives.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def test_each_is_a_training_of_its_own_network(tmp_path: Path) -> None:
    runs = plan_runs(load_study(write(tmp_path, ALTERNATIVES)), tmp_path / "runs", compose)
    assert len({run.training for run in runs}) == len(ALTERNATIVES) + 3
    sizes = [run.config["model"]["backbone_args"] for run in runs]
    assert all(size["channels"] == [8, 16, 16, 16] for size in sizes)
    assert sum("drop_path_rate" in size for size in sizes) == 1


@pytest.mark.slow
def test_each_is_trained_and_tested_as_one_line_of_a_study(tmp_path: Path) -> None:
    path = write(tmp_path, ALTERNATIVES)
    assert main(["study", "run", str(path), "--root", str(tmp_path / "runs")]) == 0
    runs = plan_runs(load_study(path), tmp_path / "runs", compose)
    values = {run.method: RunDirectory(run.directory).rows()[-1]["nll"] for run in runs}
    assert len(values) == len(ALTERNATIVES) + 4  # Monte Carlo dropout tests dropout's training
    assert len(set(values.values())) == len(values)  # each has done something
