"""Stop at the first loss that is not a number, with everything needed to see it again."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from chaosgate.data.files.atomic import replace_file
from chaosgate.run.directory import RunDirectory


class NonFiniteLoss(RuntimeError):
    """The loss is infinite or not a number."""


class StopAtNonFiniteLoss(Callback):
    """Look at every loss before it reaches the weights; if it is not finite, save the state and stop.

    The file ``nonfinite-rankR.pt`` in the run directory holds the weights before the step, the batch, the indices of
    its images, and the states of all callbacks, gates' counters included: loading them and running one training step
    gives the same loss. The checkpoints are older and stay as they are.
    """

    def __init__(self) -> None:
        self._batch: Any = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Remember the batch while it is worked on."""
        self._batch = batch

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Check the loss of this process."""
        if bool(torch.isfinite(loss)):
            return
        indices = _indices(self._batch)
        path = RunDirectory.of(trainer).path / f"nonfinite-rank{trainer.global_rank}.pt"
        state = {
            "loss": float(loss.detach()),
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            "indices": indices,
            "batch": [part.detach().cpu() for part in self._batch if isinstance(part, Tensor)],
            "state_dict": {name: value.detach().cpu() for name, value in pl_module.state_dict().items()},
            "callbacks": {callback.state_key: callback.state_dict() for callback in _callbacks(trainer)},
        }
        saved = _try_to_save(state, path)
        shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        raise NonFiniteLoss(
            f"the loss became {float(loss.detach())} at step {trainer.global_step} of epoch {trainer.current_epoch}, "
            f"on images {shown or 'without indices'} (rank {trainer.global_rank}). {saved} Lower the learning rate or "
            "the noise, or clip gradients (trainer.gradient_clip_val); the last checkpoint is untouched."
        )

    def on_train_batch_end(self, trainer: Trainer, *unused: Any) -> None:
        """Let the batch go."""
        self._batch = None


def _callbacks(trainer: Trainer) -> list[Callback]:
    return list(trainer.callbacks)  # type: ignore[attr-defined]


def _indices(batch: Any) -> list[int]:
    index = getattr(batch, "index", None)  # of a plain tuple it is a method
    return [int(i) for i in index] if isinstance(index, Tensor) and index.ndim == 1 else []


def _try_to_save(state: dict[str, Any], path: Path) -> str:
    try:
        replace_file(path, partial(torch.save, state))
    except (OSError, RuntimeError) as error:
        return f"The state could not be saved ({error})."
    return f"The state to reproduce it is in {path}."
