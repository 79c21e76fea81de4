"""Files are replaced whole; checkpoints are chosen by validation; a lost curve comes back."""

import errno
import os

import pytest
import torch

from chaosgate.run.checkpoint import AtomicCheckpointIO, damage, select


def test_a_failed_write_keeps_the_old_file_and_leaves_no_trace(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"global_step": 7}, path)
    before = path.read_bytes()
    for error in (OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt("disk full")):

        def fail(content, file, error=error):
            file.write(b"half of")
            raise error

        monkeypatch.setattr(torch, "save", fail)
        with pytest.raises(type(error), match="disk full"):
            AtomicCheckpointIO().save_checkpoint({"global_step": 8}, path)
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["last.ckpt"]


@pytest.mark.parametrize("how", ["one bit", "truncated", "empty"])
def test_damage_is_seen(tmp_path, how):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.arange(1000)}, path)
    assert damage(path) is None
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    keep = {"one bit": len(content), "truncated": len(content) // 2, "empty": 0}[how]
    path.write_bytes(content[:keep])
    assert "last.ckpt" in str(damage(path))
    with pytest.raises(ValueError, match="last.ckpt"):
        AtomicCheckpointIO().load_checkpoint(path)


def test_selection_breaks_ties_by_ece_within_the_tolerance():
    scores = (0, 0.5, 0.001, 0.7), (1, 0.4008, 0.02, 0.8), (2, 0.4, 0.03, 0.81)
    names = ("epoch", "val/nll", "val/ece", "val/top1")
    every = (*scores, (3, 0.402, 0.002, 0.81))
    curve = [*(dict(zip(names, row, strict=True)) for row in every), {"epoch": 4}]
    assert select(curve, tolerance=1e-3) == (1, 2, [1, 2])
    assert select(curve, tolerance=0.0)[0] == 2
    assert select(curve[-1:], tolerance=1e-3)[0] == 4  # without validation the newest
