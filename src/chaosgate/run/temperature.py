"""Temperature scaling ("+T"): test rows with the metrics of logits divided by one fitted number.

This is the cheapest calibration method, and the baseline for every other: the temperature is fitted
on validation images after training (:mod:`chaosgate.metrics.temperature`).
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.distributed import is_initialized
from torch.utils.data import DataLoader
from torchmetrics.utilities.distributed import gather_all_tensors

from chaosgate.data.module import ImageData
from chaosgate.data.samples import Sample
from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics import CellMetrics, temperature_scaling
from chaosgate.metrics.aggregate import PLUS_T, SCALED, SUFFIX
from chaosgate.metrics.functional import working_precision
from chaosgate.run.directory import file_hash

_COLUMNS = ("temperature", "temperature_split", "temperature_n")


class TemperatureScaling(Callback):
    """Fit a temperature before a test, and add ``nll_T``, ``ece_T``, ... to ``test_rows``.

    The validation images pass through the network as the test images do: without noise, or with the
    same number of Monte Carlo draws. Each image counts once on any number of processes. The test
    images pass once: their logits are divided as they come.

    Rows say ``temperature_split: test`` if the validation images are the test images (the paper's
    protocol on ImageNet). A test set without validation images (ImageNet-C) takes the temperature
    that an earlier test of the same checkpoint fitted. If no temperature is optimal, the rows have
    ``temperature_missing`` with the reason.

    Must come before :class:`~chaosgate.run.rows.WriteResults`, which writes the rows.

    Attributes:
        columns: What a row says about the temperature.
        fitted_on: Logits, targets and indices of the validation images, on the first process.

    Args:
        known: Earlier rows of the run, tested with the same noise settings.
    """

    def __init__(self, known: Sequence[Mapping[str, Any]] = ()) -> None:
        self.known = known
        self.columns: dict[str, Any] = {}
        self.fitted_on: tuple[Tensor, Tensor, Tensor] | None = None
        self._metrics: CellMetrics | None = None
        self._scaled: dict[str, list[float]] = {}

    @property
    def value(self) -> float | None:
        """The temperature; None if there is none."""
        return self.columns.get("temperature")

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, after every other callback has prepared the network."""
        self._metrics, self._scaled, self.fitted_on = None, {}, None
        self.columns = trainer.strategy.broadcast(self._fit(trainer, pl_module))
        if self.value is None:
            rank_zero_info(f"no temperature for +T: {self.columns['temperature_missing']}")
            return
        unscaled: Any = pl_module.test_metrics
        sizes = (unscaled.num_cells, unscaled.num_bins, unscaled.adaptive_bins)
        self._metrics = CellMetrics(*sizes, validate_args=False).to(pl_module.device)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *unused: Any
    ) -> None:
        if self._metrics is not None and self.value is not None:
            logits = working_precision(outputs["logits"]) / self.value
            counts = outputs["index"] >= 0
            self._metrics.update(logits, outputs["target"], outputs["cell"], counts)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._metrics is not None:
            found = self._metrics.compute()
            columns = {n + SUFFIX: found[n].reshape(-1).tolist() for n in SCALED if n in found}
            log_cells: Any = pl_module.log_cells
            log_cells({name + SUFFIX: columns[name + SUFFIX] for name in PLUS_T})
            self._scaled = columns

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Extend the rows of the module, which are there by now."""
        rows: Any = pl_module.test_rows
        for i, row in enumerate(rows):
            row |= self.columns | {name: column[i] for name, column in self._scaled.items()}

    def _fit(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Columns of the rows, on the first process."""
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, ImageData):
            return _missing("the data module is not a chaosgate.data.ImageData")
        try:
            loader = validation_loader(data)
        except (ValueError, OSError) as error:  # no validation images
            return self._known(trainer.ckpt_path) or _missing(" ".join(str(error).split()))
        images = _outputs(trainer, pl_module, data, loader)
        if not trainer.is_global_zero:
            return {}
        self.fitted_on = images
        try:
            value = temperature_scaling(*images[:2]).temperature
        except ValueError as error:
            return _missing(str(error))
        split = "test" if data.validation_is_test else "validation"
        return dict(zip(_COLUMNS, (value, split, len(images[0])), strict=True))

    def _known(self, checkpoint: Any) -> dict[str, Any]:
        tested = file_hash(checkpoint) if self.known and checkpoint else None
        for row in reversed(self.known):
            if row.get("temperature") is not None and row["checkpoint"] == tested:
                return {name: row[name] for name in _COLUMNS}
        return {}


def _missing(reason: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(_COLUMNS, (None, None, 0), strict=True))
    return {**found, "temperature_missing": reason}


def validation_loader(data: ImageData) -> DataLoader[Sample]:
    """Validation images of a data module that is set up for a test and still describes its test."""
    twin = copy.copy(data)
    for name, value in vars(data).items():
        if isinstance(value, dict | list):  # setup adds to these
            setattr(twin, name, copy.copy(value))
    twin.setup("validate")
    return twin.val_dataloader()


def _outputs(
    trainer: Trainer, pl_module: LightningModule, data: ImageData, loader: DataLoader[Sample]
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets and indices of all images in the order of the data set."""
    parts: list[tuple[Tensor, ...]] = []
    with trainer.precision_plugin.val_step_context():
        for number, batch in enumerate(loader):
            batch = trainer.strategy.batch_to_device(batch, pl_module.device)
            batch = data.on_after_batch_transfer(batch, 0)
            with ExitStack() as stack:
                for noise in NoiseInjection.of(trainer):
                    stack.enter_context(
                        noise.averaging(-1 - number)
                    )  # draws that no test batch has
                columns: tuple[Any, ...] = (
                    pl_module(batch.image).float(),
                    batch.target,
                    batch.index,
                )
            parts.append(tuple(gather(column) for column in columns))
    logits, target, index = (torch.cat(part) for part in zip(*parts, strict=True))
    order = order_of_images(index)
    return logits[order], target[order], index[order]


def order_of_images(index: Tensor) -> Tensor:
    """Positions of the images in the order of the data set, without padding (index -1)."""
    order = index.argsort(stable=True)
    return order[index[order] >= 0]


def gather(values: Tensor) -> Tensor:
    """The rows of all processes on the CPU; all have equally many, padding included."""
    return torch.cat(gather_all_tensors(values) if is_initialized() else [values]).cpu()
