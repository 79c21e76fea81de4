"""A callback that leaves in a file what its process saw, since processes share no memory."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor


class Watcher(Callback):
    """Metrics, images counted, and the gates of the first six training steps at layer4, per
    rank."""

    def __init__(self) -> None:
        self.gates: list[list[float]] = []
        self.counted: list[tuple[int, int]] = []
        self._clean: Tensor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        block = list(pl_module.get_submodule("model.layer4").children())[-1]
        block.register_forward_hook(self._before)  # the map before the gate
        pl_module.get_submodule("model.global_pool").register_forward_pre_hook(self._after)

    def _before(self, module: Any, inputs: Any, output: Tensor) -> None:
        self._clean = output.detach().clone()

    def _after(self, module: Any, inputs: Any) -> None:
        if module.training and len(self.gates) < 6 and self._clean is not None:
            ratio = torch.where(self._clean > 0, inputs[0].detach() / self._clean, torch.nan)
            self.gates.append(ratio.double().nanmean(1).flatten().tolist())  # shared by channels

    def on_test_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, *unused: Any
    ) -> None:
        self.counted += zip(batch.cell.tolist(), batch.index.tolist(), strict=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: Any) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        seen = {"metrics": metrics, "gates": self.gates, "counted": self.counted}
        name = f"{stage.value}-{trainer.world_size}-{trainer.global_rank}.json"
        Path(trainer.default_root_dir, name).write_text(json.dumps(seen))
