"""A linear classifier that writes down which images each of its steps saw."""

import lightning.pytorch as pl
import torch
from torch.nn.functional import cross_entropy

from chaosgate.data import FashionMNIST
from chaosgate.data.samples import Split


class FewImages(FashionMNIST):
    """The first images of each split of the subset: real data, short epochs."""

    def setup(self, stage):
        super().setup(stage)
        self.train_split = self.first(self.train_split, 600)
        self.val_split = self.first(self.val_split)
        self.test_splits = list(map(self.first, self.test_splits))

    def first(self, split, count=101):
        return Split(split.images[:count], split.targets[:count])


class Recorder(pl.LightningModule):
    def __init__(self, features=784, classes=10, fail_at=None):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(features, classes)
        self.fail_at = fail_at
        self.trained = []
        self.evaluated = []

    def training_step(self, batch, batch_idx):
        if self.global_step == self.fail_at:
            raise RuntimeError("the step failed")
        self.trained.append((batch.index.tolist(), batch.image.double().sum().item()))
        return cross_entropy(self.linear(batch.image.flatten(1)), batch.target)

    def test_step(self, batch, batch_idx):
        self.evaluated += zip(batch.cell.tolist(), batch.index.tolist(), strict=True)

    validation_step = test_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(tmp_path, **settings):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    quiet |= {"enable_checkpointing": "callbacks" in settings, "accelerator": "cpu"}
    return pl.Trainer(default_root_dir=tmp_path, **{**quiet, **settings})
