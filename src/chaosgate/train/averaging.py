"""Averages of the weights over training, by torch's ``AveragedModel`` and Lightning's callback around it."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class AverageWeights(WeightAveraging):
    r"""Validate, save and test an average of the weights (and of batch-norm statistics) instead of the last ones.

    With ``decay``, an exponential moving average (EMA) over steps, :math:`\bar w \leftarrow d\,\bar w + (1-d)\,w`
    with :math:`d = \min(\text{decay}, (1 + \text{step}) / (10 + \text{step}))`. Without, stochastic weight averaging
    (SWA, Izmailov et al., 2018): the mean over the ends of the epochs from ``start`` on; until then the average is the
    network itself. A checkpoint holds the average as its network, and what is needed to go on beside it.

    Args:
        decay: Of the moving average, e.g. 0.999; null for SWA.
        start: Share of the training after which SWA begins.
    """

    def __init__(self, decay: float | None = None, start: float = 0.75) -> None:
        if decay is not None and not 0 < decay < 1:
            raise ValueError(f"decay is between 0 and 1, or null for SWA; got {decay!r}.")
        if not 0 <= start < 1:
            raise ValueError(f"start is a share of the training in [0, 1); got {start!r}.")
        self.decay, self.start = decay, start
        self._share = 1.0  # of the current weights in the next average
        super().__init__(use_buffers=True, avg_fn=self._averaged)

    def _averaged(self, average: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        return average + self._share * (current - average)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None  # never at the end of an epoch, which comes after validation

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.decay is not None:
            step = max(0, trainer.global_step - 1)
            self._share = 1 - min(self.decay, (1 + step) / (10 + step))
        elif batch_idx + 1 == trainer.num_training_batches:
            epochs = trainer.max_epochs if trainer.max_epochs is not None else -1
            if epochs < 1:
                raise ValueError("SWA needs the length of the training: set trainer.max_epochs.")
            averaged = trainer.current_epoch - int(self.start * epochs) + 1  # epochs in the average with this one
            self._share = 1 / max(1, averaged)
        else:
            return
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            super().on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":  # a test loads the average as the network, and needs no more
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
