"""A linear classifier that writes down which images each of its steps saw."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from chaosgate.data import FashionMNIST, Sample
from chaosgate.data.samples import Split

# what Lightning says about any small run; nothing that concerns the data
LIGHTNING_WARNINGS = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks"),
    pytest.mark.filterwarnings("ignore:.*fit.ckpt_path=(None|.last.)"),
    pytest.mark.filterwarnings("ignore:.* images of ImageNet-1k, in .* classes"),
]


class FewImages(FashionMNIST):
    """The first images of each split of the subset: real data, short epochs."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train_split = _first(self.train_split, 600)
        self.val_split = _first(self.val_split, 101)
        self.test_splits = [_first(split, 101) for split in self.test_splits]


def _first(split: Any, count: int) -> Split:
    return Split(split.images[:count], split.targets[:count])


class Recorder(pl.LightningModule):
    def __init__(self, features: int = 784, classes: int = 10, fail_at: int | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(features, classes)
        self.fail_at = fail_at
        self.trained: list[tuple[list[int], float]] = []
        self.evaluated: list[tuple[int, int]] = []

    def training_step(self, batch: Sample, batch_idx: int) -> Tensor:
        if self.global_step == self.fail_at:
            raise RuntimeError("the step failed")
        self.trained.append((batch.index.tolist(), batch.image.double().sum().item()))
        return cross_entropy(self.linear(batch.image.flatten(1)), batch.target)

    def test_step(self, batch: Sample, batch_idx: int) -> None:
        self.evaluated += zip(batch.cell.tolist(), batch.index.tolist(), strict=True)

    validation_step = test_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(tmp_path: Path, **settings: Any) -> pl.Trainer:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    settings = {"enable_checkpointing": "callbacks" in settings, "accelerator": "cpu", **settings}
    return pl.Trainer(default_root_dir=tmp_path, **quiet, **settings)
