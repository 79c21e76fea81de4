"""Your own LightningModule. ``NoiseInjection(target="network")`` attaches the gate."""

import lightning.pytorch as pl
import timm
import torch
from torch.nn.functional import cross_entropy

import chaosgate as cg


class Classifier(pl.LightningModule):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.network = timm.create_model("resnet10t", num_classes=num_classes, in_chans=1)
        self.error = cg.metrics.CalibrationError(num_bins=15)

    def training_step(self, batch, batch_idx):
        loss = cross_entropy(self.network(batch.image), batch.target)
        self.log("train/loss", loss)
        return loss

    def test_step(self, batch, batch_idx):
        self.error.update(self.network(batch.image).softmax(1), batch.target)
        self.log("test/ece", self.error)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)
