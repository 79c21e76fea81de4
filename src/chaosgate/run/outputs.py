"""The callback that keeps what a tested network said about every image."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from chaosgate.metrics import classification_scores
from chaosgate.run.samples import samples_file


class KeepOutputs(Callback):
    """Write confidence, correctness and NLL of every image of every cell beside the results, 9 bytes each.

    The logits are taken from the module's own forward pass, so nothing is computed twice and Monte Carlo averages
    are seen as the metrics see them. Every process writes its share.

    Args:
        test: Name of the test, to keep the outputs of several apart; that of the checkpoint if not given.
    """

    def __init__(self, test: str | None = None) -> None:
        self.test = test
        self._handle: RemovableHandle | None = None
        self._logits: Tensor | None = None
        self._kept: list[tuple[Tensor, ...]] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to the forward pass."""
        self._kept = []
        self._handle = pl_module.register_forward_hook(self._listen)

    def _listen(self, module: torch.nn.Module, inputs: Any, logits: Tensor) -> None:
        self._logits = logits

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the scores of the images that count; padding has index -1."""
        if self._logits is None or len(batch) < 4:
            return
        counts = batch[2] >= 0
        scores = classification_scores(self._logits[counts], batch[1][counts])
        numbers = (batch[3][counts], batch[2][counts], scores.confidence.float(), scores.rank < 1, scores.nll.float())
        self._kept.append(tuple(number.cpu() for number in numbers))
        self._logits = None

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write in one step; an interrupted test leaves nothing."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        cells = getattr(getattr(trainer, "datamodule", None), "test_cells", None)
        if not self._kept or cells is None or not trainer.ckpt_path:
            return
        test = self.test or Path(trainer.ckpt_path).stem
        path = samples_file(Path(trainer.default_root_dir), test, trainer.global_rank, trainer.world_size)
        cell, index, confidence, correct, nll = (torch.cat(part).numpy() for part in zip(*self._kept, strict=True))
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            np.savez_compressed(
                file,
                corruption=np.array([name for name, _ in cells]),
                severity=np.array([severity for _, severity in cells], dtype=np.int8),
                cell=cell.astype(np.int16),
                index=index.astype(np.int32),
                confidence=confidence,
                correct=correct,
                nll=nll,
            )
        os.replace(temporary, path)
