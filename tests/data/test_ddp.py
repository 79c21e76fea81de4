"""A real run on two processes; tests/processes compares what is counted and measured."""

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
        seen = {"trained": self.trained, "evaluated": self.evaluated}
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(seen))


def test_two_processes_share_each_step_count_validation_once_and_resume_inside_an_epoch(
    tmp_path: Path,
):
    whole = Recorder()
    epochs = {"max_epochs": 2, "num_sanity_val_steps": 0}
    data = {"corruptions": None, "eval_batch_size": 17}  # 101 validation images
    trainer(tmp_path, **epochs).fit(whole, FewImages(batch_size=100, **data))

    def run(folder: Path, path: Path | None = None, **more: object) -> list[dict]:
        folder.mkdir()
        fit = trainer(folder, devices=2, strategy="ddp_fork", **epochs, **more)
        fit.fit(Writer(folder), FewImages(batch_size=50, **data), ckpt_path=path)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]

    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=4)
    first = run(tmp_path / "first", max_steps=4, callbacks=[saver])
    second = run(tmp_path / "second", next((tmp_path / "ckpt").glob("*.ckpt")))
    counted = [index for rank in second for _, index in rank["evaluated"] if index != -1]
    assert sorted(counted) == sorted([*range(101)] * 2)
    a, b = (x["trained"] + y["trained"] for x, y in zip(first, second, strict=True))
    together = [set(i) | set(j) for (i, _), (j, _) in zip(a, b, strict=True)]
    assert together == [set(indices) for indices, _ in whole.trained]
