from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaosgate.run.directory import RunDirectory
from chaosgate.run.recording import WriteCurves


def _trainer(folder: Path) -> Any:
    metrics = {"train/loss": 0.5, "val/nll": 0.25}
    return SimpleNamespace(
        default_root_dir=str(folder), is_global_zero=True, callback_metrics=metrics, current_epoch=0, global_step=3
    )


def test_a_curve_that_was_lost_after_the_training_comes_back_from_the_checkpoint(tmp_path: Path):
    first, trainer = WriteCurves(), _trainer(tmp_path)
    first.on_train_epoch_end(trainer, None)
    whole = RunDirectory(tmp_path).curves.read_text()
    RunDirectory(tmp_path).curves.unlink()
    resumed = WriteCurves()
    resumed.load_state_dict(first.state_dict())
    resumed.on_fit_end(trainer, None)  # all that is called when no epoch is left
    assert RunDirectory(tmp_path).curves.read_text() == whole
