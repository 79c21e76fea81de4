"""Callbacks that write what happens in a run to its directory, whatever logger the run has.

All of them find the directory in one way: it is the trainer's ``default_root_dir``
(:meth:`~chaosgate.run.directory.RunDirectory.of`), which the command line sets to the run directory. Only the first
process writes, except the outputs of a test, of which every process writes its share.
"""

import json
import os
import time
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from PIL import Image
from torch import Tensor

from chaosgate.data.files.atomic import replace_file
from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics import classification_scores
from chaosgate.metrics.temperature import fit_derivatives, scaled_scores
from chaosgate.run.directory import RunDirectory
from chaosgate.run.outputs import samples_file, write_arrays
from chaosgate.run.temperature import TemperatureScaling

_CURVES = ("train/loss", "val/top1", "val/nll", "val/ece", "val/gap")
_EVERY = 0.5  # seconds between two writes of the progress within an epoch


class WriteProgress(Callback):
    """Write phase, epoch and batch to ``progress.json``, for those who watch the run."""

    def __init__(self) -> None:
        self._last = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write_fit(trainer, 0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._due():
            self._write_fit(trainer, batch_idx + 1)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        if self._due():
            self._write(trainer, phase="test", batch=batch_idx + 1, batches=_number(trainer.num_test_batches))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, phase="tested")

    def _write_fit(self, trainer: Trainer, batch: int) -> None:
        total = trainer.max_epochs
        self._write(
            trainer,
            phase="fit",
            epoch=trainer.current_epoch,
            epochs=total if total is not None and total > 0 else None,
            batch=batch,
            batches=_number(trainer.num_training_batches),
        )

    def _due(self) -> bool:
        return time.monotonic() - self._last >= _EVERY

    def _write(self, trainer: Trainer, **what: Any) -> None:
        if trainer.is_global_zero:
            text = json.dumps({**what, "time": time.time(), "pid": os.getpid()})
            replace_file(RunDirectory.of(trainer).progress, text, durable=False)  # training does not wait for the disk
            self._last = time.monotonic()


class WriteCurves(Callback):
    """Write loss and validation metrics of every epoch to ``curves.jsonl``.

    A study selects strengths by validation NLL and draws training curves; neither should need a logger's format. The
    lines are part of the checkpoint: a run that goes back to an earlier one goes back to its curve, too.
    """

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self._lines}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._lines = list(state_dict["lines"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation of this epoch is over by now."""
        values = {name: float(trainer.callback_metrics[name]) for name in _CURVES if name in trainer.callback_metrics}
        self._lines.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **values})
        self._write(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training that was over already has no further epoch: a curve that was lost or damaged comes back here."""
        if self._lines:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            text = "".join(json.dumps(line) + "\n" for line in self._lines)
            replace_file(RunDirectory.of(trainer).curves, text)


class WriteNoise(Callback):
    """Leave the last measured strength of every gate in ``noise.json``, for the result rows of a later test."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Every ``on_train_end`` is over, so that the last measurement is there whatever the order of callbacks."""
        sites = [asdict(report) for one in NoiseInjection.of(trainer) for report in one.last_reports(pl_module)]
        if sites and trainer.is_global_zero:
            replace_file(RunDirectory.of(trainer).noise, json.dumps(sites, indent=1))


class FigureFiles(Logger):
    """A logger that keeps figures as PNG files in ``figures/``, whatever other logger the run has; nothing else."""

    name, version = "figures", ""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__()
        self.folder = run.figures

    def log_image(self, key: str, images: list[Any], step: int | None = None) -> None:
        """Write one RGBA array; a later figure of the same name replaces it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(images[0])
        replace_file(self.folder / f"{key.replace('/', '-')}.png", partial(picture.save, format="PNG"))

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


class KeepOutputs(Callback):
    """Write confidence, correctness and NLL of every image of every cell beside the results, 9 bytes each.

    Where a temperature was fitted, also what it makes of them, and how that moves with the images it is fitted on: 16
    bytes more. The logits are those that ``test_step`` returns, so nothing is computed twice and Monte Carlo averages
    are seen as the metrics see them. What is kept of the validation images is in the share of the first process.

    Args:
        test: Name of the test, to keep the outputs of several apart.
        logits: Keep logits in half precision and classes, too, of test and validation images: 2 bytes per image and
            class.
    """

    def __init__(self, test: str, logits: bool) -> None:
        self.test, self.logits = test, logits
        self._kept: list[dict[str, Tensor]] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kept = []

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *unused: Any) -> None:
        """Keep the scores of the images that count; padding has index -1."""
        counts = outputs["index"] >= 0
        logits, target, cell, index = (outputs[key][counts] for key in ("logits", "target", "cell", "index"))
        scores = classification_scores(logits, target)
        numbers = {"cell": cell.to(torch.int16), "index": index.to(torch.int32)}
        numbers |= {"confidence": scores.confidence.float(), "correct": scores.rank < 1, "nll": scores.nll.float()}
        scaling = _temperature_scaling(trainer)
        if scaling is not None and scaling.temperature.value is not None:
            scaled = scaled_scores(logits, target, scaling.temperature.value)
            numbers |= {f"{key}_T": value.float() for key, value in scaled._asdict().items()}
        if self.logits:
            numbers |= {"logits": logits.half(), "target": target.to(torch.int32)}
        self._kept.append({key: number.cpu() for key, number in numbers.items()})

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write in one step; an interrupted test leaves nothing. The first process goes on when all have written."""
        try:
            self._write(trainer)
        finally:
            trainer.strategy.barrier()

    def _write(self, trainer: Trainer) -> None:
        cells = getattr(getattr(trainer, "datamodule", None), "test_cells", None)
        if not self._kept or cells is None or not trainer.ckpt_path:
            return
        path = samples_file(RunDirectory.of(trainer).path, self.test, trainer.global_rank, trainer.world_size)
        arrays: dict[str, Any] = {
            "corruption": np.array([name for name, _ in cells]),
            "severity": np.array([severity for _, severity in cells], dtype=np.int8),
            **{key: torch.cat([batch[key] for batch in self._kept]).numpy() for key in self._kept[0]},
            **self._validation(trainer),
        }
        path.parent.mkdir(exist_ok=True)
        write_arrays(path, arrays)

    def _validation(self, trainer: Trainer) -> dict[str, Any]:
        """What the temperature was fitted on; nothing where it was not fitted here."""
        scaling = _temperature_scaling(trainer)
        if scaling is None or scaling.fitted_on is None:
            return {}
        logits, target, index = scaling.fitted_on
        found: dict[str, Any] = {}
        if scaling.temperature.value is not None:
            slope, curvature = fit_derivatives(logits, target, scaling.temperature.value)
            found |= {"slope": slope.float().numpy(), "curvature": curvature.float().numpy()}
            found["on_test"] = scaling.temperature.split == "test"
        if self.logits:
            half, classes = logits.half().numpy(), target.to(torch.int32).numpy()
            found |= {"validation_logits": half, "validation_target": classes}
            found["validation_index"] = index.to(torch.int32).numpy()
        return found


def _temperature_scaling(trainer: Trainer) -> TemperatureScaling | None:
    return next((one for one in trainer.callbacks if isinstance(one, TemperatureScaling)), None)  # type: ignore[attr-defined]


def _number(batches: Any) -> int | None:
    """A count that may be a list over loaders, or infinite."""
    total = sum(batches) if isinstance(batches, list) else batches
    return int(total) if total != float("inf") else None
