"""Callbacks that write what happens in a run to its directory, with any logger.

The directory is the trainer's ``default_root_dir``, which the command line sets. Only the first
process writes. What a test writes is in :mod:`chaosgate.run.rows`.
"""

import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from chaosgate.data.samples import as_sample
from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics import CellMetrics
from chaosgate.run.directory import RunDirectory, replace_file, write_json, write_lines

_CURVES = ("train/loss", "val/top1", "val/nll", "val/ece", "val/gap")


class Progress:
    """Writes phase, epoch and batch to ``progress.json``, for programs that watch the run."""

    def __init__(self) -> None:
        self._last = 0.0

    def write(self, trainer: Trainer, phase: str, every: float = 0.0, **where: Any) -> None:
        """Write, but not within ``every`` seconds of the last time; numbers not known are null."""
        now = time.monotonic()
        if now >= self._last + every and trainer.is_global_zero:
            known = {key: n if 0 <= n < float("inf") else None for key, n in where.items()}
            entry = {"phase": phase, **known, "time": time.time(), "pid": os.getpid()}
            write_json(RunDirectory.of(trainer).progress, entry, durable=False)
            self._last = now


class RecordTraining(Callback):
    """Write progress, curves and the strengths of the gates; log a diagram of the last validation.

    ``curves.jsonl`` has loss and validation metrics of every epoch. Its lines are part of the
    checkpoint: a resumed run continues its curve.
    """

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._progress = Progress()

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self._lines}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._lines = list(state_dict["lines"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The curve of the checkpoint, also if a finished training is resumed or the file was
        lost.
        """
        if trainer.is_global_zero:
            write_lines(RunDirectory.of(trainer).curves, self._lines)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        where = {"epoch": trainer.current_epoch, "epochs": trainer.max_epochs or -1}
        where |= {"batch": batch_idx + 1, "batches": trainer.num_training_batches}
        self._progress.write(trainer, "fit", every=1.0, **where)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.on_train_batch_end(trainer, pl_module, None, None, -1)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch + 1 == trainer.max_epochs and not trainer.sanity_checking:
            metrics: Any = pl_module.val_metrics
            draw_reliability(trainer, "val", metrics["CellMetrics"], "validation")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = trainer.callback_metrics  # validation of this epoch is over
        values = {name: float(found[name]) for name in _CURVES if name in found}
        self._lines.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **values})
        self.on_fit_start(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        gates = NoiseInjection.of(trainer)
        sites = [asdict(report) for one in gates for report in one.last_reports(pl_module)]
        if trainer.is_global_zero and sites:
            write_json(RunDirectory.of(trainer).noise, sites)


def draw_reliability(trainer: Trainer, split: str, metrics: CellMetrics, title: str) -> None:
    """Hand a reliability diagram to the loggers that show images."""
    from chaosgate.metrics.figure import log_figure, reliability_figure

    draw = partial(reliability_figure, metrics.reliability(), 0, title=title)  # all processes
    if trainer.is_global_zero:
        log_figure(trainer.loggers, f"{split}/reliability", draw, max(0, trainer.global_step - 1))


class WritePredictions(Callback):
    """Write index, path (if there is one), label, prediction, confidence and probabilities.

    Monte Carlo prediction (``noise.monte_carlo``) adds its columns of uncertainty. With several
    processes the first one writes for all, each image once and in the order of the test set.

    Args:
        output: The file; null is ``predictions.csv`` in the run directory.
    """

    def __init__(self, output: str | None = None) -> None:
        self.output = output
        self._parts: list[dict[str, Tensor]] = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *unused: Any
    ) -> None:
        batch = as_sample(batch)
        confidence, prediction = outputs.max(-1)
        columns = {"index": batch.index, "label": batch.target, "prediction": prediction}
        columns["confidence"] = confidence
        for noise in NoiseInjection.of(trainer):
            columns |= {name: value.to(outputs.device) for name, value in noise.spread.items()}
        columns["probabilities"] = outputs
        self._parts.append({name: gather(trainer, value) for name, value in columns.items()})

    def on_predict_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not self._parts:
            return
        import pandas as pd  # takes a second

        columns = {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
        columns |= {f"p{k}": one for k, one in enumerate(columns.pop("probabilities").T)}
        order = order_of_images(columns["index"])
        frame = pd.DataFrame({name: column[order].tolist() for name, column in columns.items()})
        if listings := getattr(trainer.datamodule, "listings", None):
            names = [os.fsencode(listings["test"].names[i]) for i in frame["index"]]
            # a file name may be no UTF-8
            frame.insert(1, "path", [name.decode(errors="backslashreplace") for name in names])
        path = Path(self.output) if self.output else RunDirectory.of(trainer).predictions
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, frame.to_csv(index=False, lineterminator="\n"))
        print(f"{len(order)} predictions in {path}")


def order_of_images(index: Tensor) -> Tensor:
    """Positions of the images in the order of the data set, without padding (index -1)."""
    order = index.argsort(stable=True)
    return order[index[order] >= 0]


def gather(trainer: Trainer, values: Tensor) -> Tensor:
    """The rows of all processes on the CPU; all have equally many, padding included."""
    every: Tensor = trainer.strategy.all_gather(values)  # (processes, rows, ...), or the rows alone
    return every.reshape(-1, *values.shape[1:]).cpu()
