"""Checkpoint files: whole, and chosen by validation; one writer per run directory."""

import errno
import os
from types import SimpleNamespace

import pytest
import torch

from chaosgate.run import checkpoint
from chaosgate.run.checkpoint import AtomicCheckpointIO, damage, select
from chaosgate.run.directory import RunDirectory
from chaosgate.run.recording import RecordTraining


def test_a_failed_write_keeps_the_old_file_and_leaves_no_trace(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"global_step": 7}, path)
    before = path.read_bytes()

    def full(content, file):
        file.write(b"half of")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(OSError, match="No space left on device"):
        AtomicCheckpointIO().save_checkpoint({"global_step": 8}, path)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("how", ["one bit", "truncated", "empty"])
def test_damage_is_seen(tmp_path, how):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.arange(1000)}, path)
    assert damage(path) is None
    content = bytearray(path.read_bytes())
    if how == "one bit":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: len(content) // 2] if how == "truncated" else b"")
    assert "last.ckpt" in str(damage(path))
    with pytest.raises(ValueError, match="last.ckpt"):
        AtomicCheckpointIO().load_checkpoint(path)


NAMES = ("epoch", "val/nll", "val/ece", "val/top1")
SCORES = [
    (0, 0.5, 0.001, 0.7),
    (1, 0.4008, 0.02, 0.8),
    (2, 0.4, 0.03, 0.81),
    (3, 0.402, 0.002, 0.81),
]


def test_selection_breaks_ties_by_ece_within_the_tolerance():
    curve = [*(dict(zip(NAMES, row, strict=True)) for row in SCORES), {"epoch": 4}]
    assert select(curve, tolerance=1e-3) == (1, 2, [1, 2])
    assert select(curve, tolerance=0.0)[0] == 2
    assert select(curve[-1:], tolerance=1e-3)[0] == 4  # without validation the newest


def test_a_curve_that_was_lost_comes_back_from_the_checkpoint(tmp_path):
    settings = {"default_root_dir": str(tmp_path), "is_global_zero": True, "current_epoch": 0}
    trainer = SimpleNamespace(**settings, global_step=3, callback_metrics={"val/nll": 0.25})
    first, resumed = RecordTraining(), RecordTraining()
    first.on_train_epoch_end(trainer, None)
    curves = RunDirectory(tmp_path).curves
    whole = curves.read_text()
    curves.unlink()
    resumed.load_state_dict(first.state_dict())
    resumed.on_fit_start(trainer, None)
    assert curves.read_text() == whole
