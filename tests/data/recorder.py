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

# what Lightning and torch say about any small run; nothing that concerns the data
LIGHTNING_WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks"),
    pytest.mark.filterwarnings("ignore:`.fit.ckpt_path=None.` was called without a model"),
    pytest.mark.filterwarnings(
        "ignore:.fit.ckpt_path=.last.. is set, but there is no last checkpoint"
    ),
]


class FewImages(FashionMNIST):
    """The first images of each split of the subset: real data, short epochs."""

    train, held_out = 600, 101

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train_split = _first(self.train_split, self.train)
        self.val_split = _first(self.val_split, self.held_out)
        self.test_splits = [_first(split, self.held_out) for split in self.test_splits]


def _first(split: Split, count: int) -> Split:
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
        self.batches_seen = 0
        self.dtypes: set[torch.dtype] = set()

    def training_step(self, batch: Sample, batch_idx: int) -> Tensor:
        if self.global_step == self.fail_at:
            raise RuntimeError("the step failed")
        self.dtypes.add(batch.image.dtype)
        self.trained.append((batch.index.tolist(), batch.image.double().sum().item()))
        return cross_entropy(self.linear(batch.image.flatten(1)), batch.target)

    def _note(self, batch: Sample) -> None:
        self.batches_seen += 1
        self.evaluated += zip(batch.cell.tolist(), batch.index.tolist(), strict=True)

    def validation_step(self, batch: Sample, batch_idx: int) -> None:
        self._note(batch)

    def test_step(self, batch: Sample, batch_idx: int) -> None:
        self._note(batch)

    def predict_step(self, batch: Sample, batch_idx: int) -> Sample:
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(tmp_path: Path, **settings: Any) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    if "callbacks" not in settings:
        settings["enable_checkpointing"] = False
    return pl.Trainer(default_root_dir=tmp_path, **quiet, **settings)
