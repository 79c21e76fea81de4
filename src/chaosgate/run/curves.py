"""Training curves: one line per epoch in the run directory."""

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from chaosgate.data.files.atomic import replace_file
from chaosgate.study.execute.state import CURVES


class WriteCurves(Callback):
    """Write loss and validation metrics of every epoch to ``curves.jsonl``.

    A study selects strengths by validation NLL and draws training curves; neither should need a logger's format. The
    lines are part of the checkpoint: a run that goes back to an earlier one goes back to its curve, too.
    """

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """The curve so far."""
        return {"lines": self._lines}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with it."""
        self._lines = list(state_dict["lines"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation of this epoch is over by now."""
        names = ("train/loss", "val/top1", "val/nll", "val/ece", "val/gap")
        values = {name: float(trainer.callback_metrics[name]) for name in names if name in trainer.callback_metrics}
        self._lines.append({"epoch": trainer.current_epoch, "step": trainer.global_step, **values})
        if trainer.is_global_zero:
            text = "".join(json.dumps(line) + "\n" for line in self._lines)
            replace_file(Path(trainer.default_root_dir) / CURVES, text)
