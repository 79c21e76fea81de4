import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaosgate.run.directory import RunDirectory
from chaosgate.run.recording import RecordTraining


def _trainer(folder: Path) -> Any:
    metrics = {"train/loss": 0.5, "val/nll": 0.25}
    return SimpleNamespace(
        default_root_dir=str(folder),
        is_global_zero=True,
        callback_metrics=metrics,
        current_epoch=0,
        global_step=3,
    )


@pytest.mark.parametrize("lost", [True, False])
def test_a_curve_that_was_lost_or_changed_after_the_training_comes_back_from_the_checkpoint(
    lost: bool, tmp_path: Path
):
    first, trainer = RecordTraining(), _trainer(tmp_path)
    first.on_train_epoch_end(trainer, None)
    curves = RunDirectory(tmp_path).curves
    whole = curves.read_text()
    curves.unlink() if lost else curves.write_text(whole.replace("5", "4"))
    resumed = RecordTraining()
    resumed.load_state_dict(first.state_dict())
    resumed.on_fit_start(trainer, None)  # all that is called when no epoch is left
    assert curves.read_text() == whole


def test_training_does_not_wait_for_the_disk_to_take_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is written twice a second, and two calls of fsync on a busy disk take as long as a step."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("waits"))
    trainer = _trainer(tmp_path)
    trainer.max_epochs, trainer.num_training_batches = 2, 5
    RecordTraining().on_train_epoch_start(trainer, None)
    assert json.loads(RunDirectory(tmp_path).progress.read_text())["batches"] == 5
