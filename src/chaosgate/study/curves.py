"""Training curves: one line per epoch in the run directory."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from chaosgate.study.state import CURVES


class WriteCurves(Callback):
    """Append loss and validation metrics of every epoch to ``curves.jsonl``.

    A study selects strengths by validation NLL and draws training curves; neither should need a logger's format.
    """

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation of this epoch is over by now."""
        if not trainer.is_global_zero:
            return
        names = ("train/loss", "val/top1", "val/nll", "val/ece", "val/gap")
        values = {name: float(trainer.callback_metrics[name]) for name in names if name in trainer.callback_metrics}
        line: dict[str, Any] = {"epoch": trainer.current_epoch, "step": trainer.global_step, **values}
        with open(Path(trainer.default_root_dir) / CURVES, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
