"""Checkpoint files: whole, checked, chosen."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from chaosgate.data.files.atomic import file_hash
from chaosgate.run.checkpoint import AtomicCheckpointIO
from chaosgate.run.checkpoint import files as atomic
from chaosgate.run.checkpoint.files import checkpoints_by_age, damage, newest_intact, read_record
from chaosgate.run.checkpoint.keep import EpochScore, select
from chaosgate.run.directory import RunDirectory


def write(folder, name, step):
    AtomicCheckpointIO().save_checkpoint(
        {"global_step": step, "epoch": 0, "weights": torch.arange(step + 5)}, folder / name
    )


def test_a_checkpoint_is_written_whole_with_its_checksum(tmp_path):
    write(tmp_path, "epoch-0000.ckpt", 7)
    path = tmp_path / "epoch-0000.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 7
    record = read_record(path)
    assert record is not None and record["sha256"] == file_hash(path) and record["bytes"] == path.stat().st_size
    assert damage(path) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch-0000.ckpt", "epoch-0000.json"]


@pytest.mark.parametrize("how", ["one bit", "truncated", "empty", "no record"])
def test_damage_is_seen_and_the_one_before_is_taken(tmp_path, how):
    write(tmp_path, "epoch-0000.ckpt", 7)
    write(tmp_path, "step-00000009.ckpt", 9)
    newest = tmp_path / "step-00000009.ckpt"
    assert newest_intact(tmp_path) == newest
    content = bytearray(newest.read_bytes())
    if how == "one bit":
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    elif how == "no record":
        newest.with_suffix(".json").unlink()
    else:
        newest.write_bytes(content[: len(content) // 2] if how == "truncated" else b"")
    complaints = []
    assert newest_intact(tmp_path, complaints.append) == tmp_path / "epoch-0000.ckpt"
    assert len(complaints) == (0 if how == "no record" else 1)  # without a record it never was a checkpoint
    assert all("step-00000009.ckpt is damaged" in text for text in complaints)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_trace(tmp_path, monkeypatch):
    write(tmp_path, "epoch-0000.ckpt", 7)
    before = (tmp_path / "epoch-0000.ckpt").read_bytes()

    def full(content, file):
        file.write(b"half of")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.torch, "save", full)
    for name in ("epoch-0000.ckpt", "epoch-0001.ckpt"):
        with pytest.raises(
            OSError, match=r"No space left on device. The last one, epoch-0000.ckpt, is intact.*--resume"
        ):
            write(tmp_path, name, 8)
    assert (tmp_path / "epoch-0000.ckpt").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch-0000.ckpt", "epoch-0000.json"]


def test_age_goes_by_step_and_an_epoch_ends_after_its_last_step(tmp_path):
    for name, step in (
        ("epoch-0001.ckpt", 20),
        ("step-00000020.ckpt", 20),
        ("step-00000025.ckpt", 25),
        ("epoch-0000.ckpt", 10),
    ):
        write(tmp_path, name, step)
    (tmp_path / "best.ckpt").symlink_to("epoch-0000.ckpt")
    assert [path.stem for path in checkpoints_by_age(tmp_path)] == [
        "step-00000025",
        "epoch-0001",
        "step-00000020",
        "epoch-0000",
    ]


def test_selection_breaks_ties_by_ece_within_the_tolerance():
    scores = [
        EpochScore(0, nll=0.500, ece=0.001, top1=0.70),
        EpochScore(1, nll=0.4008, ece=0.020, top1=0.80),
        EpochScore(2, nll=0.4000, ece=0.030, top1=0.81),
        EpochScore(3, nll=0.4020, ece=0.002, top1=0.81),
        EpochScore(4, nll=float("nan"), ece=float("nan"), top1=float("nan")),
    ]
    chosen = select(scores, tolerance=1e-3)
    assert (chosen.best, chosen.top1, chosen.last, chosen.candidates) == (1, 2, 4, [1, 2])
    assert select(scores, tolerance=0.0).best == 2
    assert select(scores[-1:], tolerance=1e-3).best == 4  # nothing else there


def test_a_role_is_found_without_its_link(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    write(folder, "epoch-0003.ckpt", 7)
    (folder / "selection.json").write_text(json.dumps({"best": "epoch-0003.ckpt", "last": "../../secret.ckpt"}))
    run = RunDirectory(tmp_path)
    assert run.selected("best") == folder / "epoch-0003.ckpt"
    with pytest.raises(FileNotFoundError, match=r"the run has epoch-0003.ckpt"):
        run.selected("last")


def test_only_one_writer(tmp_path):
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    first.claim(resume=False)
    with pytest.raises(RuntimeError, match="another process is writing"):
        second.claim(resume=False)
    first.release()
    second.claim(resume=False)
    second.release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/run cannot be made: Not a directory. Give another --run_dir"):
        RunDirectory(Path(tmp_path) / "file" / "run").claim(resume=False)
