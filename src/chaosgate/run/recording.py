"""Callbacks that write what happens in a run to its directory, with any logger.

The directory is the trainer's ``default_root_dir``, which the command line sets. Only the first
process writes. What a test writes is in :mod:`chaosgate.run.rows`.
"""

import os
import time
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from chaosgate.data.samples import as_sample
from chaosgate.inject.callback import NoiseInjection
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
    """Write progress, curves and the strengths of the gates.

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

    def on_fit_start(self, trainer: Trainer, *unused: Any) -> None:
        """Write the curve of the checkpoint: a file that was lost or is ahead is replaced."""
        if trainer.is_global_zero:
            write_lines(RunDirectory.of(trainer).curves, self._lines)

    def on_train_batch_start(self, trainer: Any, model: Any, batch: Any, batch_idx: int) -> None:
        where = {"epoch": trainer.current_epoch, "epochs": trainer.max_epochs or -1}
        where |= {"batch": batch_idx, "batches": trainer.num_training_batches}
        self._progress.write(trainer, "fit", every=5.0, **where)

    def on_train_epoch_end(self, trainer: Trainer, *unused: Any) -> None:
        found = trainer.callback_metrics  # validation of this epoch is over
        values = {name: float(found[name]) for name in _CURVES if name in found}
        self._lines.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **values})
        self.on_fit_start(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        gates = NoiseInjection.of(trainer)
        sites = [asdict(report) for one in gates for report in one.last_reports(pl_module)]
        if trainer.is_global_zero and sites:
            write_json(RunDirectory.of(trainer).noise, sites)


class WritePredictions(Callback):
    """Write index, path (if there is one), label, prediction, confidence and probabilities to
    ``predictions.csv``.

    Monte Carlo prediction (``noise.monte_carlo``) adds its columns of uncertainty. With several
    processes the first one writes for all, each image once and in the order of the test set.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Tensor]] = defaultdict(list)

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
        for name, value in columns.items():
            self._columns[name].append(gather(trainer, value))

    def on_predict_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        import pandas as pd  # takes a second

        columns = {name: torch.cat(parts) for name, parts in self._columns.items()}
        columns |= {f"p{k}": one for k, one in enumerate(columns.pop("probabilities").T)}
        order = order_of_images(columns["index"])
        frame = pd.DataFrame({name: column[order].tolist() for name, column in columns.items()})
        if listings := getattr(trainer.datamodule, "listings", None):
            names = [os.fsencode(listings["test"].names[i]) for i in frame["index"]]
            # a file name may be no UTF-8
            frame.insert(1, "path", [name.decode(errors="backslashreplace") for name in names])
        path = RunDirectory.of(trainer).predictions
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
