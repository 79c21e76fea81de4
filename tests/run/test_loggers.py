"""Rows, energy and figures are the same with every logger, and each logger has its own files."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=3",
    "--trainer.log_every_n_steps=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--data.init_args.corruptions=null",
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
)
OWN_FILES = {
    "tensorboard": "events.out.*",
    "csv": "csv/version_0/metrics.csv",
    "wandb": "wandb/offline-run-*/run-*.wandb",
    None: "config.yaml",
}
FIGURES = ["test-reliability.png", "val-reliability.png"]


def fit_and_test(
    logger: str | None, command: Any, configs: Any
) -> tuple[list[dict[str, Any]], list[Any], Path]:
    run = Path(f"with_{logger}")
    files = configs(
        "base", "data/fashion_mnist", "noise/gch", *([] if logger is None else [f"logger/{logger}"])
    )
    options = [
        *files,
        *QUICK,
        f"--run_dir={run}",
        *(["--trainer.logger=false"] if logger is None else []),
    ]
    for step in ("fit", "test"):
        status, _, err = command(step, *options)
        assert status == 0, err
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    return rows, json.loads((run / "noise.json").read_text()), run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the loggers themselves
def test_rows_energy_and_figures_do_not_depend_on_the_logger(
    command: Any, configs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    found = {logger: fit_and_test(logger, command, configs) for logger in OWN_FILES}
    for logger, (rows, energy, run) in found.items():
        assert list(run.glob(OWN_FILES[logger])), logger
        assert sorted(path.name for path in (run / "figures").iterdir()) == FIGURES
        for name in FIGURES:
            with Image.open(run / "figures" / name) as picture:
                assert (
                    picture.width > 300
                    and len(set(picture.convert("L").resize((64, 64)).getdata())) > 10
                )
        own = {"run", "checkpoint", "digest"}
        same = [{key: value for key, value in row.items() if key not in own} for row in rows]
        expected = found["tensorboard"]
        reference = [
            {key: value for key, value in row.items() if key not in own} for row in expected[0]
        ]
        assert same == reference and energy == expected[1] and energy[0]["energy"] > 0, logger
        assert not Path("lightning_logs").exists() and not Path("wandb").exists()
    metrics = (found["csv"][2] / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    assert {"train/loss", "train/top1", "val/nll", "noise/L4/energy"} <= set(metrics[0].split(","))
    tested = (found["csv"][2] / "csv" / "version_1" / "metrics.csv").read_text().splitlines()
    assert "test/clean/nll" in tested[0].split(",")
    assert list(
        (found["wandb"][2] / "wandb").glob("offline-run-*/files/media/images/noise/gate*.png")
    )
