"""Rows and energy are the same with every logger, and each logger has its own files."""

import json
from pathlib import Path

import pytest

QUICK = """--trainer.max_epochs=1 --trainer.limit_train_batches=3 --trainer.log_every_n_steps=1
    --trainer.enable_progress_bar=false --data.init_args.corruptions=null
    --model.backbone_args={"channels":[8,8,16,16]}""".split()
OWN_FILES = {
    "tensorboard": "events.out.*",
    "csv": "csv/version_0/metrics.csv",
    "wandb": "wandb/offline-run-*/run-*.wandb",
    None: "config.yaml",
}
OF_THE_RUN = ("run", "checkpoint", "digest")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the loggers themselves
def test_rows_and_energy_do_not_depend_on_the_logger(command, configs, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    found = []
    for logger, own in OWN_FILES.items():
        run = Path(f"with_{logger}")
        words = [*configs("base", "data/fashion_mnist", "noise/gch"), *QUICK, f"--run_dir={run}"]
        words += configs(f"logger/{logger}") if logger else ["--trainer.logger=false"]
        for step in ("fit", "test"):
            status, _, err = command(step, *words)
            assert status == 0, err
        rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
        same = [{key: one[key] for key in one if key not in OF_THE_RUN} for one in rows]
        found.append((same, json.loads((run / "noise.json").read_text())))
        assert list(run.glob(own)), logger
    assert all(one == found[0] for one in found) and found[0][1][0]["energy"] > 0
    assert not Path("lightning_logs").exists() and not Path("wandb").exists()
    trained, tested = (Path(f"with_csv/csv/version_{n}/metrics.csv").read_text() for n in (0, 1))
    wanted = {"train/loss", "train/top1", "val/nll", "noise/L4/energy"}
    assert wanted <= set(trained.splitlines()[0].split(",")) and "test/clean/nll" in tested
