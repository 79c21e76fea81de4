"""The one LightningModule: image classification, measured for calibration. It knows nothing of gates."""

import os
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from chaosgate.data.module import ImageData
from chaosgate.data.pipeline.samples import CLEAN, Cell, as_sample
from chaosgate.metrics import CellMetrics, aggregate_cells, reliability_figure
from chaosgate.metrics.figure import log_figure
from chaosgate.train.alternatives import classification_loss, mix_images
from chaosgate.train.backbones import create_backbone, size_argument
from chaosgate.train.schedules import WarmupCosine, effective_batch, require_rates, scale_rates, warn_of_recipe
from chaosgate.train.weights import load_weights

SHOWN = ("top1", "nll", "ece", "brier", "gap")
"""The metrics that are logged, in table order."""
_NARROW = 8  # input channels below which torch 2.15 writes past its buffers


def _is_narrow(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.in_channels // module.groups < _NARROW


class ImageClassifier(LightningModule):
    """A timm backbone trained with cross-entropy; Top-1, NLL, ECE, Brier and confidence minus accuracy.

    Test data come as cells (clean, and corruption x severity); one pass counts them all. Rows per cell are in
    ``test_rows`` after a test.

    Args:
        backbone: Name of a timm model, or of the small-image ones here (``resnet10_small``, ``resnet18_small``).
        num_classes: Number of classes, checked against the data; null takes that of the data on the command line, and
            1000 in Python.
        in_chans: Channels of the images, likewise; 3 in Python.
        image_size: Side of the images, likewise; it matters for networks that are built for one size (ViT, Swin).
        pretrained: Start from timm's weights (needs the network once, unless ``checkpoint`` is given).
        checkpoint: Start from a local file: timm's, torchvision's (where the names are the same), ``.safetensors``, or
            a run of this library. A classifier for other classes starts from fresh weights.
        backbone_args: Further arguments of ``timm.create_model``.
        optimizer: Built from the parameters; any torch optimiser.
        lr_scheduler: Built from the optimiser; null keeps the rate.
        scheduler_interval: Step the schedule per ``step`` or per ``epoch``.
        label_smoothing: In [0, 1); 0 is the paper's loss.
        focal_gamma: Exponent of the focal loss; 0 is cross-entropy.
        mixup: Parameter of mixup's Beta distribution, e.g. 0.2; 0 mixes nothing.
        cutmix: That of cutmix, e.g. 1.0; where both are given, half of the batches each.
        stochastic_depth: Probability of dropping the residual branch of the last block, smaller in earlier ones (timm's
            ``drop_path_rate``); null leaves it to ``backbone_args``.
        channels_last: Memory format of the network; null is channels_last on CUDA devices and contiguous elsewhere.
        num_bins: Bins of the calibration error, of equal width and of equal mass.
        lr_base_batch: Images per optimiser step that the optimiser's rate is meant for; the rate is multiplied by the
            images of a step here (``data.batch_size`` x processes x accumulated batches) over this number. Null takes
            the rate as it is.
        data: Gives the number of classes, channels and the image size that are not set; not kept.
    """

    def __init__(
        self,
        backbone: str = "resnet50",
        num_classes: int | None = None,
        in_chans: int | None = None,
        pretrained: bool = False,
        checkpoint: str | None = None,
        backbone_args: dict[str, Any] | None = None,
        optimizer: OptimizerCallable = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4),
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        scheduler_interval: Literal["step", "epoch"] = "step",
        label_smoothing: float = 0.0,
        focal_gamma: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        stochastic_depth: float | None = None,
        channels_last: bool | None = None,
        num_bins: int = 15,
        lr_base_batch: int | None = None,
        image_size: int | None = None,
        data: LightningDataModule | None = None,
    ) -> None:
        super().__init__()
        num_classes = num_classes or getattr(data, "num_classes", None) or 1000
        in_chans = in_chans or getattr(data, "in_chans", None) or 3
        image_size = image_size or (getattr(data, "image_size", None) if size_argument(backbone, 1) else None)
        if num_classes < 2 or in_chans < 1:
            raise ValueError(
                f"model.num_classes is at least 2, model.in_chans at least 1; got {num_classes}, {in_chans}."
            )
        if image_size is not None and image_size < 1:
            raise ValueError(f"model.image_size is at least 1, or null; got {image_size!r}.")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"model.label_smoothing is in [0, 1); got {label_smoothing!r}.")
        for key, value in (("focal_gamma", focal_gamma), ("mixup", mixup), ("cutmix", cutmix)):
            if not value >= 0:
                raise ValueError(f"model.{key} is at least 0; got {value!r}.")
        if stochastic_depth is not None and not 0 <= stochastic_depth < 1:
            raise ValueError(f"model.stochastic_depth is in [0, 1), or null; got {stochastic_depth!r}.")
        if stochastic_depth is not None and "drop_path_rate" in (backbone_args or {}):
            raise ValueError("model.stochastic_depth and model.backbone_args.drop_path_rate are one setting; give one.")
        if lr_base_batch is not None and lr_base_batch < 1:
            raise ValueError(f"model.lr_base_batch is at least 1, or null; got {lr_base_batch!r}.")
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler", "data"])
        settings: dict[str, Any] = {"num_classes": num_classes, "in_chans": in_chans}
        settings |= size_argument(backbone, image_size)
        settings |= {} if stochastic_depth is None else {"drop_path_rate": stochastic_depth}
        fetch = pretrained and checkpoint is None
        self.model = create_backbone(backbone, **{"pretrained": fetch, **settings, **(backbone_args or {})})
        self._fresh = [] if checkpoint is None else load_weights(self.model, checkpoint, backbone)
        self.channels_last = channels_last
        self.memory_format = torch.contiguous_format
        self.backbone, self.num_classes = backbone, num_classes
        self.optimizer, self.lr_scheduler, self.scheduler_interval = optimizer, lr_scheduler, scheduler_interval
        self.label_smoothing, self.focal_gamma, self.num_bins = label_smoothing, focal_gamma, num_bins
        self.mixup, self.cutmix = mixup, cutmix
        self.lr_base_batch, self.lr_factor = lr_base_batch, 1.0
        self.val_metrics = CellMetrics(num_bins=num_bins)
        self.test_metrics = CellMetrics(num_bins=num_bins)
        self.columns: Tensor | None = None  # of the logits, where the data have some of the network's classes
        self.test_cells: list[Cell] = [CLEAN]
        self.test_rows: list[dict[str, Any]] = []
        self.ood = False  # whether test images belong to none of the classes, so that their labels mean nothing
        self._trained = torch.zeros(2, dtype=torch.int64)  # this epoch's images that were right, and all of them

    def forward(self, image: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.model(image.contiguous(memory_format=self.memory_format))
        return logits if self.columns is None else logits[:, self.columns.to(logits.device)]

    def setup(self, stage: str) -> None:
        """Agree with the data on classes, channels and test cells, and with the device on the memory format."""
        self.choose_memory_format(self.trainer.strategy.root_device.type, training=stage == "fit")
        data = getattr(self.trainer, "datamodule", None)
        if data is not None and not isinstance(data, ImageData) and self.trainer.world_size > 1:
            raise ValueError(
                f"{type(data).__name__} is not a chaosgate.data.ImageData, which counts every image once on any number "
                f"of processes; there are {self.trainer.world_size}. Set trainer.devices to 1, or subclass ImageData."
            )
        self.columns = None if self.ood else self._columns(data, stage)
        for key in ("num_classes", "in_chans", "image_size"):
            have, want = self.hparams[key], getattr(data, key, None)
            needless = key == "num_classes" and (self.columns is not None or self.ood)
            if None not in (have, want) and have != want and not needless:
                raise ValueError(f"the data have {key}={want}, the model {key}={have}. Set model.{key} to {want}.")
        if stage == "fit":
            self._say_what_is_trained()
        if stage == "fit" and self.lr_base_batch is not None:
            batch = effective_batch(self.trainer)
            self.lr_factor = batch / self.lr_base_batch
            for logger in self.loggers:  # not among the module's own: those of a checkpoint must be arguments of it
                logger.log_hyperparams({"effective_batch": batch, "lr_factor": self.lr_factor})
        if stage == "test":
            self.test_cells = list(getattr(data, "test_cells", [CLEAN]))
            self.test_metrics = CellMetrics(len(self.test_cells), self.num_bins, self.num_bins).to(self.device)

    def _say_what_is_trained(self) -> None:
        numbers = sum(weights.numel() for weights in self.model.parameters())
        channels = self.hparams["in_chans"]
        rank_zero_info(
            f"training {self.backbone}: {numbers:,} parameters, {self.num_classes} classes, images of {channels} "
            f"channel{'s' if channels != 1 else ''}"
        )

    def _require_trained(self) -> None:
        if self._fresh:
            raise ValueError(
                f"model.checkpoint {self.hparams['checkpoint']} has no classifier for {self.num_classes} classes, and "
                "an untrained one would be tested. Train it first (chaosgate fit), or set model.num_classes to those "
                "of the file."
            )

    def on_test_start(self) -> None:
        self._require_trained()

    def on_predict_start(self) -> None:
        self._require_trained()

    def choose_memory_format(self, device: str, training: bool) -> None:
        narrow = next((name for name, one in self.model.named_modules() if _is_narrow(one)), None)
        if self.channels_last and device == "cpu" and training and narrow is not None:
            raise ValueError(
                f"model.channels_last is true, and {narrow} has fewer than {_NARROW} input channels: on the CPU the "
                "backward pass of such convolutions corrupts memory. Leave model.channels_last null, or set it to "
                "false."
            )
        chosen = device == "cuda" if self.channels_last is None else self.channels_last
        self.memory_format = torch.channels_last if chosen else torch.contiguous_format
        self.model = self.model.to(memory_format=self.memory_format)

    def _columns(self, data: Any, stage: str) -> Tensor | None:
        """Columns of the logits that data of fewer classes are tested on, such as the 200 of ImageNet-A."""
        columns = getattr(data, "logit_columns", None)
        if stage == "fit" or columns is None or self.num_classes == len(columns) or self.num_classes <= max(columns):
            return None
        return torch.tensor(columns)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Optimiser and schedule from the configuration; a schedule that wants the run's length is told it."""
        optimizer = self.optimizer(self.parameters())
        require_rates(optimizer)
        scale_rates(optimizer, self.lr_factor)
        if not (self.hparams["pretrained"] or self.hparams["checkpoint"]):
            warn_of_recipe(self.model, self.backbone, optimizer)
        if self.lr_scheduler is None:
            return {"optimizer": optimizer}
        scheduler = self.lr_scheduler(optimizer)
        if isinstance(scheduler, WarmupCosine) and scheduler.total_steps is None:
            scheduler.set_total_steps(int(self.trainer.estimated_stepping_batches))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": self.scheduler_interval, "monitor": "val/nll"},
        }

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        image, target = as_sample(batch)[:2]
        if self.mixup or self.cutmix:
            image, target = self._mix(image, target, batch_idx)
        logits = self(image)
        loss = classification_loss(logits, target, self.label_smoothing, self.focal_gamma)
        labels = target.argmax(-1) if target.ndim == 2 else target  # mixup and cutmix give class weights
        right = (logits.detach().argmax(-1) == labels).sum()
        self._trained = self._trained.to(right.device) + torch.stack((right, right.new_tensor(len(labels))))
        if self._is_logged(batch_idx):
            self.log("train/loss", loss, prog_bar=True)
        return loss

    def _is_logged(self, batch_idx: int) -> bool:
        """Whether anybody reads what this step logs: the logger every n-th one, the curve the last one of an epoch.

        To note a value in Lightning's results takes longer than the optimiser's step of a small network.
        """
        trainer: Any = self._trainer
        if trainer is None:  # a step by hand
            return False
        step = self.global_step + 1
        due = step % max(1, trainer.log_every_n_steps) == 0 or step == trainer.max_steps
        return due or batch_idx == 0 or bool(trainer.is_last_batch)

    def _mix(self, image: Tensor, target: Tensor, batch_idx: int) -> tuple[Tensor, Tensor]:
        if target.ndim == 2:
            raise ValueError("the data mix images already (data.recipe full); set model.mixup and model.cutmix to 0.")
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))  # of the run, set by seed_everything
        key = (seed, self.trainer.global_rank, self.current_epoch, batch_idx)
        return mix_images(image, target, self.num_classes, self.mixup, self.cutmix, key)

    def on_train_epoch_end(self) -> None:
        """Log the accuracy of the epoch's training images, as they were when each was seen.

        Counted here and logged at once: an average that Lightning keeps is in no checkpoint, and is logged only after
        the checkpoint of the epoch is written.
        """
        right, seen = self._sum_over_processes(self._trained).tolist()
        self._trained = torch.zeros_like(self._trained)
        self.log("train/top1", right / max(1, seen), logger=False)
        for logger in self.loggers:
            logger.log_metrics({"train/top1": right / max(1, seen)}, step=self.global_step - 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the counts of an unfinished epoch."""
        checkpoint["trained_this_epoch"] = self._sum_over_processes(self._trained).tolist()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue with the counts of an unfinished epoch; one process has those of all."""
        self._fresh = []
        counts = checkpoint.get("trained_this_epoch", [0, 0])
        first = self._trainer is None or self.trainer.global_rank == 0  # no trainer: loaded by hand
        self._trained = torch.tensor(counts if first else [0, 0], device=self.device)

    def _sum_over_processes(self, counts: Tensor) -> Tensor:
        if self._trainer is None:
            return counts
        # a copy: the reduction works in place, and the counts of this process go on
        summed = self.trainer.strategy.reduce(counts.to(self.device, copy=True), reduce_op="sum")
        assert isinstance(summed, Tensor)
        return summed

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Count one batch; padding of uneven shards has index -1 and does not count."""
        batch = as_sample(batch)
        self.val_metrics.update(self(batch.image), batch.target, weight=batch.index >= 0)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the whole validation set, exact on any number of processes."""
        values = {name: float(column) for name, column in self.val_metrics.compute().items()}
        self.log_dict({f"val/{name}": values[name] for name in SHOWN})
        self.log("nll", values["nll"], prog_bar=True, logger=False)
        if not self.trainer.sanity_checking and self.trainer.current_epoch + 1 == self.trainer.max_epochs:
            self._draw("val/reliability", self.val_metrics, 0, "validation")
        self.val_metrics.reset()

    def test_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Count one batch, each image in its cell; callbacks receive ``logits``, ``target``, ``index`` and ``cell``."""
        batch = as_sample(batch)
        if self.ood:
            batch = batch._replace(target=torch.zeros_like(batch.target))
        logits = self(batch.image)
        self.test_metrics.update(logits, batch.target, batch.cell, batch.index >= 0)
        return {"logits": logits, "target": batch.target, "index": batch.index, "cell": batch.cell}

    def on_test_epoch_end(self) -> None:
        """One row per cell; clean and corrupted metrics, the latter averaged over severities, then corruptions.

        They reach the logger once, with the hyper-parameters: as curves they would start a new one at step 0.
        """
        values = {name: column.reshape(-1).tolist() for name, column in self.test_metrics.compute().items()}
        self.test_rows = [
            {"corruption": cell.corruption, "severity": cell.severity, **{name: values[name][i] for name in values}}
            for i, cell in enumerate(self.test_cells)
        ]
        if self.ood:  # nothing else can be said without labels
            kept = ("corruption", "severity", "n", "confidence")
            self.test_rows = [{"ood": True, **{key: row[key] for key in kept}} for row in self.test_rows]
            for row in self.test_rows:  # a name of its own: no cell of the test set is meant
                row["corruption"] = f"ood {row['corruption']}".removesuffix(f" {CLEAN.corruption}")
            return
        for name in SHOWN:
            by_cell = {(row["corruption"], row["severity"]): row[name] for row in self.test_rows}
            if CLEAN in by_cell:
                self.log(f"test/clean/{name}", by_cell[CLEAN], logger=False)
            if len(by_cell) > (CLEAN in by_cell):
                self.log(f"test/corrupted/{name}", aggregate_cells(by_cell), logger=False)
        self._draw("test/reliability", self.test_metrics, 0, f"test, {self.test_cells[0].corruption}")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Class probabilities (B, K)."""
        logits: Tensor = self(as_sample(batch).image)
        return logits.float().softmax(-1)

    def _draw(self, tag: str, metrics: CellMetrics, cell: int, title: str) -> None:
        reliability = metrics.reliability()  # synchronises: on every process, or on none
        if self.trainer.is_global_zero:
            # the last step that was taken: after a restart, what bears the number of the next one gives way
            step = max(0, self.global_step - 1)
            log_figure(self.loggers, tag, partial(reliability_figure, reliability, cell, title=title), step)
