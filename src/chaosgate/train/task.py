"""The LightningModule for image classification with calibration metrics; independent of gates."""

import copy
import os
from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR
from torchmetrics import MeanMetric, MetricCollection

from chaosgate.data.module import ImageData
from chaosgate.data.samples import CLEAN, as_sample
from chaosgate.metrics import NUM_BINS, CellMetrics, aggregate_cells
from chaosgate.train.alternatives import CrossEntropy, Mixing
from chaosgate.train.backbones import create_backbone, load_weights, size_argument
from chaosgate.train.schedules import WarmupCosine, WeightsOnlyAdamW, warn_of_recipe

SHOWN = ("top1", "nll", "ece", "brier", "gap")
"""The metrics that are logged, in table order."""
_SYNCHRONIZED: dict[str, Any] = {"reduce_fx": "max", "sync_dist": True}  # equal on all processes


class ImageClassifier(LightningModule):
    """A timm backbone, measured by Top-1, NLL, ECE, Brier score and confidence minus accuracy.

    Test data consist of cells (clean, and corruption x severity), counted in one pass. After a test
    ``test_rows`` has one row per cell.

    Args:
        backbone: Name of a timm model, or ``resnet10_small``, ``resnet18_small`` for small images.
        num_classes: Number of classes; null takes that of ``data``, and 1000 without ``data``.
        in_chans: Channels of the images; null takes that of ``data``, otherwise 3.
        weights: Start from a file (timm's, torchvision's with the same names, ``.safetensors``, or
            a checkpoint of a run), or ``timm`` to download timm's weights. If the classes
            differ, the classifier starts from random weights. Null starts from random weights.
        backbone_args: Further arguments of ``timm.create_model``, e.g. ``drop_path_rate`` for
            stochastic depth.
        optimizer: Built from the parameters; any torch optimizer.
        lr_scheduler: Built from the optimizer; null keeps the rate. ``WarmupCosine``,
            ``OneCycleLR``, ``CyclicLR`` step per batch, others per epoch.
        loss: :class:`~chaosgate.train.alternatives.FocalLoss` or
            :class:`~chaosgate.train.alternatives.CrossEntropy` (the default) with their arguments.
        mixing: :class:`~chaosgate.train.alternatives.Mixing` (mixup, cutmix); null mixes nothing.
        data: Provides number of classes, channels and image size; set by the command line.
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        num_classes: PositiveInt | None = None,
        in_chans: PositiveInt | None = None,
        weights: str | None = None,
        backbone_args: dict[str, Any] | None = None,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(
            params, lr=0.1, momentum=0.9, weight_decay=1e-4
        ),
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        loss: CrossEntropy | None = None,
        mixing: Mixing | None = None,
        data: LightningDataModule | None = None,
    ) -> None:
        super().__init__()
        classes: Any = num_classes or getattr(data, "num_classes", None if data else 1000)
        channels: Any = in_chans or getattr(data, "in_chans", 3)
        if classes is None:
            raise ValueError(
                f"{type(data).__name__} has no attribute num_classes: set model.num_classes."
            )
        sizes: dict[str, Any] = {"num_classes": int(classes), "in_chans": int(channels)}
        sized = size_argument(backbone, getattr(data, "image_size", None))
        arguments = {**sized, **(backbone_args or {})}
        self.save_hyperparameters({"backbone": backbone, **sizes, "backbone_args": arguments})
        self.backbone, self.num_classes, self.weights = backbone, int(classes), weights
        network = {**sizes, "pretrained": weights == "timm", **arguments}
        self.model = create_backbone(backbone, **network)
        file = weights if weights != "timm" else None
        self._fresh = [] if file is None else load_weights(self.model, file, backbone)
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.loss, self.mixing = loss or CrossEntropy(), mixing
        self.train_top1 = MeanMetric(nan_strategy="disable")
        self.val_metrics = MetricCollection(CellMetrics(), prefix="val/")
        self.test_metrics = CellMetrics()
        self.columns: Tensor | None = None  # of the logits, if the data have fewer classes
        self.test_cells, self.test_rows = [CLEAN], list[dict[str, Any]]()

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W).

        Not channels_last on the CPU: torch 2.15 corrupts memory in the backward pass of
        channels_last convolutions with fewer than 8 input channels.
        """
        layout = torch.channels_last if image.is_cuda else torch.contiguous_format
        logits: Tensor = self.model(image.contiguous(memory_format=layout))
        return logits if self.columns is None else logits[:, self.columns.to(logits.device)]

    def setup(self, stage: str) -> None:
        """Compare the classes with those of the data; prepare the test cells."""
        if self.trainer.strategy.root_device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, ImageData) and self.trainer.world_size > 1:
            rank_zero_warn(
                "several processes: a padded last batch of validation or test may count an image "
                "twice. For exact counts use a chaosgate.data.ImageData, or one device."
            )
        columns = None if stage == "fit" else getattr(data, "logit_columns", None)
        have, want = self.num_classes, getattr(data, "num_classes", self.num_classes)
        subset = columns is not None and max(columns) < have != len(columns)
        if not subset and have != want:
            raise ValueError(f"the data have {want} classes: set model.num_classes, now {have}.")
        self.columns = torch.tensor(columns) if subset else None
        if stage == "fit":
            size = sum(weight.numel() for weight in self.model.parameters())
            rank_zero_info(f"training {self.backbone}: {size:,} parameters, {have} classes")
        if stage == "test":
            self.test_cells = list(getattr(data, "test_cells", [CLEAN]))
            metrics = CellMetrics(len(self.test_cells), adaptive_bins=NUM_BINS)
            self.test_metrics = metrics.to(self.device)

    # -- training --------------------------------------------------------------------------------

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.optimizer(self.parameters())
        if isinstance(optimizer, WeightsOnlyAdamW):
            optimizer.exempt(self.model)
        if self.weights is None:
            warn_of_recipe(self.model, self.backbone, optimizer)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        if isinstance(scheduler, WarmupCosine):
            scheduler.follow(self.trainer)
        per_step = isinstance(scheduler, WarmupCosine | OneCycleLR | CyclicLR)
        settings: Any = {"scheduler": scheduler, "interval": "step" if per_step else "epoch"}
        settings["monitor"] = "val/nll"
        return {"optimizer": optimizer, "lr_scheduler": settings}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss; not logged in every step, because logging takes as long as a small step."""
        trainer: Any = self.trainer
        image, target = as_sample(batch)[:2]
        if self.mixing is not None:
            seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))  # set by seed_everything
            key = (seed, self.global_rank, self.current_epoch, batch_idx)
            image, target = self.mixing(image, target, self.num_classes, key)
        logits = self(image)
        loss: Tensor = self.loss(logits, target)
        labels = target.argmax(-1) if target.ndim == 2 else target
        self.train_top1.update((logits.detach().argmax(-1) == labels).float())
        step, every = self.global_step + 1, max(1, trainer.log_every_n_steps)
        first_or_last = batch_idx == 0 or trainer.is_last_batch or step == trainer.max_steps
        if first_or_last or step % every == 0:
            self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the running accuracy on the training images."""
        self.log("train/top1", self.train_top1.compute(), **_SYNCHRONIZED)
        self.train_top1.reset()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the counts of an unfinished epoch, summed over processes."""
        with self.train_top1.sync_context():
            checkpoint["train_top1"] = copy.deepcopy(self.train_top1.metric_state)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The first process continues with the counts of all."""
        self._fresh = []
        if self.global_rank == 0:
            for name, count in checkpoint.get("train_top1", {}).items():
                setattr(self.train_top1, name, count.to(self.device))

    # -- validation, test, prediction: padding of uneven shards has index -1 and does not count ----

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        batch = as_sample(batch)
        self.val_metrics.update(self(batch.image), batch.target, weight=batch.index >= 0)

    def on_validation_epoch_end(self) -> None:
        values = {name: float(value) for name, value in self.val_metrics.compute().items()}
        shown = {f"val/{name}": values[f"val/{name}"] for name in SHOWN}
        self.log_dict(shown, **_SYNCHRONIZED)
        self.log("nll", values["val/nll"], prog_bar=True, logger=False, **_SYNCHRONIZED)
        self.val_metrics.reset()

    def on_test_start(self) -> None:
        if self._fresh:
            raise ValueError(
                f"{self.weights} has no classifier for {self.num_classes} classes: train one "
                "(chaosgate fit), or set model.num_classes."
            )

    on_predict_start = on_test_start

    def test_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Count one batch, each image in its cell; callbacks receive logits and labels."""
        batch = as_sample(batch)
        logits = self(batch.image)
        self.test_metrics.update(logits, batch.target, batch.cell, batch.index >= 0)
        return {"logits": logits, "target": batch.target, "index": batch.index, "cell": batch.cell}

    def on_test_epoch_end(self) -> None:
        """One row per cell, and the means that are logged."""
        columns = {k: v.reshape(-1).tolist() for k, v in self.test_metrics.compute().items()}
        self.test_rows = [
            {**cell._asdict(), **{name: column[i] for name, column in columns.items()}}
            for i, cell in enumerate(self.test_cells)
        ]
        self.log_cells({name: columns[name] for name in SHOWN})

    def log_cells(self, columns: dict[str, list[float]]) -> None:
        """Log metrics of all test cells: clean, and the mean over corruptions of their means."""
        logged = {}
        for name, column in columns.items():
            by_cell: Any = dict(zip(self.test_cells, column, strict=True))
            if CLEAN in by_cell:
                logged[f"test/clean/{name}"] = by_cell[CLEAN]
            if by_cell.keys() - {CLEAN}:
                logged[f"test/corrupted/{name}"] = aggregate_cells(by_cell)
        self.log_dict(logged, **_SYNCHRONIZED)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Class probabilities (B, K)."""
        logits: Tensor = self(as_sample(batch).image)
        return logits.float().softmax(-1)
