"""Every alternative to noise is one line of a study, and trains."""

from pathlib import Path

import pytest
import yaml

from chaosgate.__main__ import main
from chaosgate.cli.fit import parsed
from chaosgate.study import load_study, plan_runs
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import results_of

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


def test_each_is_a_training_of_its_own(tmp_path: Path) -> None:
    runs = plan_runs(load_study(write(tmp_path, ALTERNATIVES)), tmp_path / "runs", parsed)
    assert (
        len({run.training for run in runs}) == len(ALTERNATIVES) + 3
    )  # Monte Carlo dropout tests that of dropout


def test_each_trains_the_network_that_the_study_asks_for(tmp_path: Path) -> None:
    runs = plan_runs(load_study(write(tmp_path, ALTERNATIVES)), tmp_path / "runs", parsed)
    sizes = [run.config["model"]["backbone_args"] for run in runs]
    assert all(size["channels"] == [8, 16, 16, 16] for size in sizes)
    assert sum("drop_path_rate" in size for size in sizes) == 1


@pytest.mark.slow
def test_each_is_trained_and_tested_as_one_line_of_a_study(tmp_path: Path) -> None:
    path = write(tmp_path, ALTERNATIVES)
    assert main(["study", "run", str(path), "--root", str(tmp_path / "runs")]) == 0
    study = load_study(path)
    runs = plan_runs(study, tmp_path / "runs", parsed)
    lines = results_of(study, runs, collect(runs)).lines(part="clean", metric="nll")
    means = dict(zip(lines.variant, lines.value, strict=True))
    assert set(means) == {
        "none",
        "dropout",
        *ALTERNATIVES,
        "stochastic_depth",
        "gch_label_smoothing",
    }
    assert len(set(means.values())) == len(means)  # each has done something
