"""The baseline "+T": every test row also says what one fitted temperature makes of the same logits.

A claim that noise calibrates a network should stand beside the cheapest repair there is: divide the logits by one
number, fitted on validation images after training (:mod:`chaosgate.metrics.temperature`).
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics.utilities.distributed import gather_all_tensors

from chaosgate.data.files.atomic import file_hash
from chaosgate.data.module import ImageData
from chaosgate.data.pipeline.samples import CLEAN, Sample
from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics import CellMetrics, aggregate_cells, temperature_scaling
from chaosgate.metrics.names import PLUS_T, SCALED, SUFFIX
from chaosgate.metrics.sums import working_precision


class Temperature(NamedTuple):
    """A temperature, or why there is none.

    Args:
        value: The temperature; None if there is none.
        split: Images it was fitted on: ``validation``, or ``test`` where the protocol selects on the test images.
        images: How many they were.
        reason: Why there is none, in a sentence.
    """

    value: float | None
    split: str | None = None
    images: int = 0
    reason: str = ""

    def columns(self) -> dict[str, Any]:
        """What a result row says about it."""
        about = {"temperature": self.value, "temperature_split": self.split, "temperature_n": self.images}
        return about if self.value is not None else {**about, "temperature_missing": self.reason}


class TemperatureScaling(Callback):
    """Fit a temperature before a test, and add the metrics of the scaled logits to ``test_rows`` as ``nll_T``, ...

    The validation images pass through the network as the test images do: without noise, or by the same number of Monte
    Carlo draws, whose mean log-probabilities are then divided. Each image counts once on any number of processes. The
    test images pass no second time: their logits are divided as they come.

    Where the validation images are the test images (the paper's protocol on ImageNet), the rows say so. A test set
    without validation images (ImageNet-C) takes the temperature that an earlier test of the same checkpoint fitted.
    Where no temperature is best, there is none, and the rows say why.

    Must stand before :class:`~chaosgate.run.rows.WriteResults` among the callbacks, which writes the rows.

    ``fitted_on`` has logits, targets and indices of the validation images, on the first process.

    Args:
        known: Earlier rows of the same run, tested with the same noise settings.
    """

    def __init__(self, known: Sequence[Mapping[str, Any]] = ()) -> None:
        self.known = known
        self.temperature = Temperature(None, reason="no test yet")
        self._scaled: CellMetrics | None = None
        self._columns: dict[str, list[float]] = {}
        self.fitted_on: tuple[Tensor, Tensor, Tensor] | None = None

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, after every other callback has prepared the network."""
        self._scaled, self._columns, self.fitted_on = None, {}, None
        self.temperature = self._find(trainer, pl_module)
        if self.temperature.value is None:
            rank_zero_info(f"no temperature for the columns +T: {self.temperature.reason}")
            return
        unscaled: Any = pl_module.test_metrics
        self._scaled = CellMetrics(
            unscaled.num_cells, unscaled.num_bins, unscaled.adaptive_bins, validate_args=False
        ).to(pl_module.device)

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *unused: Any) -> None:
        """Count the scaled logits as the module counts the others."""
        if self._scaled is not None and self.temperature.value is not None:
            logits = working_precision(outputs["logits"]) / self.temperature.value
            self._scaled.update(logits, outputs["target"], outputs["cell"], outputs["index"] >= 0)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Combine the processes; clean and corrupted metrics beside those of the module."""
        if self._scaled is None:
            return
        found = self._scaled.compute()
        self._columns = {name + SUFFIX: found[name].reshape(-1).tolist() for name in SCALED if name in found}
        cells: Any = pl_module.test_cells
        for name in PLUS_T:
            by_cell = dict(zip(map(tuple, cells), self._columns[name + SUFFIX], strict=True))
            if CLEAN in by_cell:
                pl_module.log(f"test/clean/{name}{SUFFIX}", by_cell[CLEAN], logger=False, sync_dist=True)
            if len(by_cell) > (CLEAN in by_cell):
                pl_module.log(f"test/corrupted/{name}{SUFFIX}", aggregate_cells(by_cell), logger=False, sync_dist=True)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Extend the rows of the module, which are there by now."""
        rows: Any = pl_module.test_rows
        for i, row in enumerate(rows):
            row |= self.temperature.columns() | {name: column[i] for name, column in self._columns.items()}

    def _find(self, trainer: Trainer, pl_module: LightningModule) -> Temperature:
        """The same on every process."""
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, ImageData):
            return Temperature(None, reason="the data module is not a chaosgate.data.ImageData")
        try:
            loader = validation_loader(data)
        except (ValueError, OSError) as error:  # no validation images here, or not all of what they are cut from
            found = self._known(trainer.ckpt_path) or Temperature(None, reason=" ".join(str(error).split()))
        else:
            split = "test" if data.validation_is_test else "validation"
            found, self.fitted_on = fit(trainer, pl_module, data, loader, split)
        return trainer.strategy.broadcast(found)

    def _known(self, checkpoint: Any) -> Temperature | None:
        if not self.known or not checkpoint:
            return None
        tested = file_hash(Path(checkpoint))
        fitted = [row for row in self.known if row.get("temperature") is not None and row["checkpoint"] == tested]
        if not fitted:
            return None
        return Temperature(fitted[-1]["temperature"], fitted[-1]["temperature_split"], fitted[-1]["temperature_n"])


def validation_loader(data: ImageData) -> DataLoader[Sample]:
    """Validation images of a data module that is set up for a test, and that goes on describing its test alone."""
    twin = copy.copy(data)
    for name, value in vars(data).items():
        if isinstance(value, dict | list):  # what setting up adds to
            setattr(twin, name, copy.copy(value))
    twin.setup("validate")
    return twin.val_dataloader()


def fit(
    trainer: Trainer, pl_module: LightningModule, data: ImageData, loader: DataLoader[Sample], split: str
) -> tuple[Temperature, tuple[Tensor, Tensor, Tensor] | None]:
    """One pass over the loader in evaluation mode; the first process fits, in the order of the images.

    It also keeps logits, targets and indices of the images.
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with trainer.precision_plugin.val_step_context():
        for number, batch in enumerate(loader):
            batch = data.on_after_batch_transfer(trainer.strategy.batch_to_device(batch, pl_module.device), 0)
            with ExitStack() as stack:
                for noise in NoiseInjection.of(trainer):
                    stack.enter_context(noise.averaging(-1 - number))  # draws that no test batch has
                outputs: tuple[Any, ...] = (pl_module(batch.image).float(), batch.target, batch.index)
            logits, target, index = (from_all_processes(output) for output in outputs)
            if trainer.is_global_zero:
                parts.append((logits, target, index))
    if not trainer.is_global_zero:
        return Temperature(None), None  # the first process broadcasts
    logits, target, index = (torch.cat(part) for part in zip(*parts, strict=True))
    order = order_of_images(index)
    images = (logits[order], target[order], index[order])
    try:
        value = temperature_scaling(*images[:2]).temperature
    except ValueError as error:
        return Temperature(None, reason=str(error)), images
    return Temperature(value, split, len(order)), images


def order_of_images(index: Tensor) -> Tensor:
    """Places of the images in the order of the data set, those of padding (index -1) left out."""
    order = index.argsort(stable=True)
    return order[index[order] >= 0]


def from_all_processes(values: Tensor) -> Tensor:
    """The rows of all processes, on the CPU; they have equally many, padding included."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.cat(gather_all_tensors(values) if several else [values]).cpu()
