"""Callbacks that write what happens in a run to its directory, whatever logger the run has.

The directory is the trainer's ``default_root_dir`` (:meth:`~chaosgate.run.directory.RunDirectory.of`),
which the command line sets. Only the first process writes, except for the outputs of a test, of which
every process writes its share.
"""

import os
import time
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics import CellMetrics, classification_scores, reliability_figure
from chaosgate.metrics.figure import log_figure
from chaosgate.metrics.temperature import fit_derivatives, scaled_scores
from chaosgate.run.directory import RunDirectory, replace_file, write_json, write_lines
from chaosgate.run.outputs import samples_file, write_arrays
from chaosgate.run.temperature import TemperatureScaling

_CURVES = ("train/loss", "val/top1", "val/nll", "val/ece", "val/gap")
_EVERY = 1.0  # seconds between two writes of the progress within an epoch


class WriteProgress(Callback):
    """Write phase, epoch and batch to ``progress.json``, for programs that watch the run."""

    def __init__(self) -> None:
        self._last = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = 0.0
        self.on_train_batch_end(trainer, pl_module, None, None, -1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._last >= _EVERY:
            where: Any = {"epoch": trainer.current_epoch, "epochs": trainer.max_epochs or -1}
            where |= {"batch": batch_idx + 1, "batches": trainer.num_training_batches}
            self._write(trainer, "fit", where)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        *unused: Any,
    ) -> None:
        if time.monotonic() - self._last >= _EVERY:
            where = {"batch": batch_idx + 1, "batches": sum(trainer.num_test_batches)}
            self._write(trainer, "test", where)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, "tested", {})

    def _write(self, trainer: Trainer, phase: str, where: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            known = {key: n if 0 <= n < float("inf") else None for key, n in where.items()}
            now = {"time": time.time(), "pid": os.getpid()}
            entry = {"phase": phase, **known, **now}
            write_json(RunDirectory.of(trainer).progress, entry, durable=False)
            self._last = time.monotonic()


class WriteCurves(Callback):
    """Write loss and validation metrics of every epoch to ``curves.jsonl``, which studies read.

    The lines are part of the checkpoint: a run that resumes from it continues its curve.
    """

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self._lines}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._lines = list(state_dict["lines"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = trainer.callback_metrics  # validation of this epoch is over
        values = {name: float(found[name]) for name in _CURVES if name in found}
        self._lines.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **values})
        self.on_fit_end(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Also restores a lost file if a finished training is resumed."""
        if self._lines and trainer.is_global_zero:
            write_lines(RunDirectory.of(trainer).curves, self._lines)


class WriteNoise(Callback):
    """Write the last measured strength of every gate to ``noise.json``, for the rows of a test."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        gates = NoiseInjection.of(trainer)
        sites = [asdict(report) for one in gates for report in one.last_reports(pl_module)]
        if sites and trainer.is_global_zero:
            write_json(RunDirectory.of(trainer).noise, sites)


class WriteFigures(Callback):
    """Draw the reliability diagrams of the last validation and of a test.

    They are PNG files in ``figures/``, and images in the loggers that show images.
    """

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch + 1 == trainer.max_epochs and not trainer.sanity_checking:
            metrics: Any = pl_module.val_metrics
            self._draw(trainer, "val", metrics["CellMetrics"], "validation")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        if not module.ood:
            self._draw(
                trainer, "test", module.test_metrics, f"test, {module.test_cells[0].corruption}"
            )

    def _draw(self, trainer: Trainer, images: str, metrics: CellMetrics, title: str) -> None:
        reliability = metrics.reliability()  # synchronizes: all processes
        if trainer.is_global_zero:
            figure = reliability_figure(reliability, 0, title=title)
            folder = RunDirectory.of(trainer).figures
            folder.mkdir(exist_ok=True)
            save: Any = partial(figure.savefig, format="png")
            replace_file(folder / f"{images}-reliability.png", save)
            step = max(0, trainer.global_step - 1)  # the last one taken
            log_figure(trainer.loggers, f"{images}/reliability", lambda: figure, step)


class KeepOutputs(Callback):
    """Write confidence, correctness and NLL of every test image, 9 bytes each.

    With a fitted temperature also the scaled values, and their derivatives by the images it was
    fitted on: 16 bytes more. The logits are those that ``test_step`` returns, so nothing is computed
    twice. Values of the validation images are in the share of the first process.

    Args:
        test: Name of the test, to keep the outputs of several apart.
        logits: Also keep logits in half precision and classes, of test and validation images.
    """

    def __init__(self, test: str, logits: bool) -> None:
        self.test, self.logits = test, logits
        self._kept: list[dict[str, Tensor]] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kept = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *unused: Any
    ) -> None:
        counts = outputs["index"] >= 0  # padding has index -1
        logits, target = outputs["logits"][counts], outputs["target"][counts]
        scores = classification_scores(logits, target)
        kept = {
            "cell": outputs["cell"][counts].to(torch.int16),
            "index": outputs["index"][counts].to(torch.int32),
            "confidence": scores.confidence.float(),
            "correct": scores.rank < 1,
            "nll": scores.nll.float(),
        }
        temperature = _scaling(trainer).value
        if temperature is not None:
            scaled = scaled_scores(logits, target, temperature)._asdict()
            kept |= {f"{name}_T": value.float() for name, value in scaled.items()}
        if self.logits:
            kept |= {"logits": logits.half(), "target": target.to(torch.int32)}
        self._kept.append({name: value.cpu() for name, value in kept.items()})

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write in one step; the first process continues when all have written."""
        try:
            cells = getattr(getattr(trainer, "datamodule", None), "test_cells", None)
            if self._kept and cells is not None and trainer.ckpt_path:
                self._write(trainer, cells)
        finally:
            trainer.strategy.barrier()

    def _write(self, trainer: Trainer, cells: Any) -> None:
        names, severities = zip(*cells, strict=True)
        arrays = {"corruption": np.array(names), "severity": np.array(severities, dtype=np.int8)}
        for name in self._kept[0]:
            arrays[name] = torch.cat([batch[name] for batch in self._kept]).numpy()
        scaling = _scaling(trainer)
        if scaling.fitted_on is not None:
            logits, target, index = scaling.fitted_on
            if scaling.value is not None:
                slope, curvature = fit_derivatives(logits, target, scaling.value)
                arrays |= {"slope": slope.float().numpy(), "curvature": curvature.float().numpy()}
                arrays["on_test"] = np.array(scaling.columns["temperature_split"] == "test")
            if self.logits:
                arrays["validation_logits"] = logits.half().numpy()
                arrays["validation_target"] = target.to(torch.int32).numpy()
                arrays["validation_index"] = index.to(torch.int32).numpy()
        run, (rank, world) = RunDirectory.of(trainer), (trainer.global_rank, trainer.world_size)
        run.outputs.mkdir(exist_ok=True)
        write_arrays(samples_file(run.path, self.test, rank, world), arrays)


def _scaling(trainer: Trainer) -> TemperatureScaling:
    """The temperature of the test; an empty one if it is switched off."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    found = (one for one in callbacks if isinstance(one, TemperatureScaling))
    return next(found, TemperatureScaling())
