"""A callback that leaves in a file what its process saw, since processes share no memory."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor


class Watcher(Callback):
    """Metrics, learning rates, images counted, and the gates of the first training steps, per rank.

    Args:
        stage: Module whose output is gated.
        steps: Training steps whose gates are kept.
    """

    def __init__(self, stage: str = "layer4", steps: int = 6) -> None:
        self.stage = stage
        self.steps = steps
        self.gates: list[list[float]] = []
        self.rates: list[float] = []
        self.counted: list[tuple[int, int]] = []
        self._clean: Tensor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = pl_module.get_submodule(f"model.{self.stage}")
        list(module.children())[-1].register_forward_hook(self._before)  # the map before the gate
        pl_module.get_submodule("model.global_pool").register_forward_pre_hook(
            self._after
        )  # what follows it
        self.rates = [float(rate) for rate in trainer.lr_scheduler_configs[0].scheduler.base_lrs]

    def _before(self, module: Any, inputs: Any, output: Tensor) -> None:
        self._clean = output.detach().clone()

    def _after(self, module: Any, inputs: Any) -> None:
        if module.training and len(self.gates) < self.steps and self._clean is not None:
            ratio = torch.where(self._clean > 0, inputs[0].detach() / self._clean, torch.nan)
            self.gates.append(
                ratio.double().nanmean(1).flatten().tolist()
            )  # one gate for all channels

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self.counted += zip(batch.cell.tolist(), batch.index.tolist(), strict=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: Any) -> None:
        seen = {
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "gates": self.gates,
            "rates": self.rates,
            "counted": self.counted,
            "size": trainer.world_size,
        }
        file = (
            Path(trainer.default_root_dir)
            / f"{stage.value}-{trainer.world_size}-{trainer.global_rank}.json"
        )
        file.write_text(json.dumps(seen))
