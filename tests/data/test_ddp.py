"""Real runs on several processes: what is counted, and what each of them trains on."""

import json
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.data.recorder import LIGHTNING_WARNINGS, FewImages, Recorder, trainer

pytestmark = [pytest.mark.ddp, *LIGHTNING_WARNINGS]


class Writer(Recorder):
    """Leaves what its process saw in a file, since processes share no memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_fit_end(self) -> None:
        self._write("fit")

    def on_test_end(self) -> None:
        self._write("test")

    def _write(self, stage: str) -> None:
        seen = {"trained": self.trained, "evaluated": self.evaluated, "steps": self.batches_seen}
        (self.folder / f"{stage}{self.global_rank}.json").write_text(json.dumps(seen))


def read(folder: Path, stage: str, processes: int) -> list[dict]:
    return [json.loads((folder / f"{stage}{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.parametrize("processes", [2, 3])
def test_every_test_image_is_counted_once(tmp_path: Path, processes: int):
    data = FewImages(
        corruptions=["pixelate"], severities=[1, 2, 3, 4], eval_batch_size=17
    )  # 505: no multiple of 2 or 3
    trainer(tmp_path, devices=processes, strategy="ddp_fork").test(
        Writer(tmp_path), data, verbose=False
    )
    seen = read(tmp_path, "test", processes)
    counted = [(cell, index) for rank in seen for cell, index in rank["evaluated"] if index != -1]
    assert sorted(counted) == [(cell, index) for cell in range(5) for index in range(101)]
    assert len({rank["steps"] for rank in seen}) == 1


def test_validation_inside_fit_counts_every_image_once_and_the_ranks_share_each_training_step(
    tmp_path: Path,
):
    whole = Recorder()
    trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0).fit(
        whole, FewImages(batch_size=100, corruptions=None)
    )

    data = FewImages(
        batch_size=50, eval_batch_size=17, corruptions=None
    )  # 101 validation images on two processes
    run = trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0, devices=2, strategy="ddp_fork")
    run.fit(Writer(tmp_path), data)
    first, second = read(tmp_path, "fit", 2)
    counted = [index for rank in (first, second) for _, index in rank["evaluated"] if index != -1]
    assert sorted(counted) == sorted(list(range(101)) * 2)
    together = [
        set(a) | set(b) for (a, _), (b, _) in zip(first["trained"], second["trained"], strict=True)
    ]
    assert together == [set(indices) for indices, _ in whole.trained]


def test_two_processes_resume_in_the_middle_of_an_epoch(tmp_path: Path):
    def run(folder: Path, **settings: object) -> list[list[list[int]]]:
        folder.mkdir()
        ckpt_path = settings.pop("ckpt_path", None)
        fit = trainer(folder, devices=2, strategy="ddp_fork", limit_val_batches=0, **settings)
        fit.fit(Writer(folder), FewImages(batch_size=50, corruptions=None), ckpt_path=ckpt_path)
        return [[indices for indices, _ in rank["trained"]] for rank in read(folder, "fit", 2)]

    whole = run(tmp_path / "whole", max_epochs=2)
    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=4)
    first = run(tmp_path / "first", max_epochs=2, max_steps=4, callbacks=[saver])
    (path,) = (tmp_path / "ckpt").glob("*.ckpt")
    second = run(tmp_path / "second", max_epochs=2, ckpt_path=path)
    assert [a + b for a, b in zip(first, second, strict=True)] == whole
