"""What the callback does in evaluation: Monte Carlo averages and fresh BatchNorm statistics, where asked for."""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from chaosgate.inject.attachment import Attachment
from chaosgate.inject.diagnostics import reestimate_bn


class Evaluation(Callback):
    """The hooks of test, validate and predict. Validation during training is plain."""

    monte_carlo: int
    class_axis: int | None
    reestimate_bn: int
    target: str
    attachment: Attachment | None

    def __init__(self) -> None:
        self._monte_carlo_batch: Any = None
        self._uncertainty: dict[str, list[Tensor]] = {}

    @abstractmethod
    def backbone(self, pl_module: LightningModule) -> nn.Module:
        """The network that the gates are attached to."""

    @abstractmethod
    def attach_now(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the gates to the backbone as it is now, unless they are."""

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather BatchNorm statistics without noise, where asked for."""
        if self.monte_carlo:
            self.attach_now(trainer, pl_module)
        if not self.reestimate_bn:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        data.setup("fit")
        batches = islice(data.train_dataloader(), self.reestimate_bn)
        moved = (data.on_after_batch_transfer(trainer.strategy.batch_to_device(b), 0)[0] for b in batches)
        silent: AbstractContextManager[object] = (
            nullcontext() if self.attachment is None else self.attachment.forced(0, only=set())
        )
        with silent:  # a gate may sit on a BatchNorm, which is in training mode here
            count = reestimate_bn(self.backbone(pl_module), moved)
        rank_zero_info(f"BatchNorm statistics recomputed from {count} training batches without noise")

    def averaging(self, step: int) -> AbstractContextManager[object]:
        """In here a test's network answers: by Monte Carlo averages where they are asked for, whose draws belong to
        ``step``. The batches of a test have the steps from 0 on.
        """
        if self.attachment is None or not self.monte_carlo:
            return nullcontext()
        return self.attachment.monte_carlo(self.monte_carlo, step, self.class_axis)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Open Monte Carlo prediction for this batch."""
        if self.monte_carlo:
            self.attach_now(trainer, pl_module)
            self._monte_carlo_batch = self.averaging(batch_idx + (dataloader_idx << 32))
            self._monte_carlo_batch.__enter__()

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Close it, and keep the uncertainties."""
        if self._monte_carlo_batch is not None and self.attachment is not None:
            self._monte_carlo_batch.__exit__(None, None, None)
            self._monte_carlo_batch = None
            if not self.attachment.uncertainty:
                raise RuntimeError(
                    f"noise.monte_carlo={self.monte_carlo}, and {type(pl_module).__name__} did not call "
                    f"noise.target={self.target!r} in this batch: nothing was averaged. Set noise.target to what it "
                    "evaluates, or noise.monte_carlo to 0."
                )
            index = getattr(batch, "index", None)  # of a Sample; padding of uneven shards has index -1
            counted = index >= 0 if isinstance(index, Tensor) else slice(None)
            for name, value in self.attachment.uncertainty.items():
                self._uncertainty.setdefault(name, []).append(value[counted].cpu().flatten())

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """The same in the command ``validate``; validation during training is plain."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            self.on_test_batch_start(trainer, pl_module, *args, **kwargs)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self.on_test_batch_end(trainer, pl_module, *args, **kwargs)

    @property
    def spread(self) -> dict[str, Tensor]:
        """Uncertainties of the last batch of a Monte Carlo prediction, one value per image; empty without one."""
        return dict(self.attachment.uncertainty) if self.attachment is not None and self.monte_carlo else {}

    on_predict_batch_start = on_test_batch_start
    on_predict_batch_end = on_test_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log mean predictive entropy and mutual information of all images on all processes, each counted once."""
        self._log_uncertainty(trainer, pl_module, "test")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log_uncertainty(trainer, pl_module, "val")

    def _log_uncertainty(self, trainer: Trainer, pl_module: LightningModule, split: str) -> None:
        for name, parts in self._uncertainty.items():
            values = torch.cat(parts)
            sums = torch.stack((values.sum(), values.new_tensor(len(values)))).to(pl_module.device)
            total, count = trainer.strategy.reduce(sums, reduce_op="sum")
            pl_module.log(f"{split}/monte_carlo/{name}", total / count)
        self._uncertainty = {}
