"""How far a run is, in a small file that others read while it runs."""

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from chaosgate.study.execute.state import PROGRESS, write_json


class WriteProgress(Callback):
    """Write phase, epoch and batch to ``progress.json`` in the run directory.

    Args:
        every: Seconds between two writes within an epoch.
    """

    def __init__(self, every: float = 0.5) -> None:
        self.every = every
        self._last = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch begins."""
        self._write_fit(trainer, 0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A training batch is done."""
        if self._due():
            self._write_fit(trainer, batch_idx + 1)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A test batch is done."""
        if self._due():
            self._write(trainer, phase="test", batch=batch_idx + 1, batches=_number(trainer.num_test_batches))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All cells are counted: say which."""
        cells = getattr(getattr(trainer, "datamodule", None), "test_cells", [])
        self._write(trainer, phase="tested", cells=[list(cell) for cell in cells])

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
        return time.monotonic() - self._last >= self.every

    def _write(self, trainer: Trainer, **what: Any) -> None:
        if trainer.is_global_zero:
            write_json(Path(trainer.default_root_dir) / PROGRESS, what)
            self._last = time.monotonic()


def _number(batches: Any) -> int | None:
    """A count that may be a list over loaders, or infinite."""
    total = sum(batches) if isinstance(batches, list) else batches
    return int(total) if total != float("inf") else None
