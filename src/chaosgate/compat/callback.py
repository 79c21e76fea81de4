"""The probe as a Lightning callback: it measures during training and changes nothing."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from chaosgate.compat.probe import Probe, ProbeReading, probe_figure
from chaosgate.data.samples import as_sample
from chaosgate.gate import Gate
from chaosgate.inject.callback import NoiseInjection
from chaosgate.metrics.figure import log_figure

FILE = "compatibility.jsonl"


class CompatibilityProbe(Callback):
    """Every ``every_n_steps`` steps, measure the observables of the paper at each stage on one
    fixed batch.

    Numbers and figures go to the loggers, rows to ``compatibility.jsonl`` in the run directory. The
    batch is the first one of the run. It is saved in the checkpoint, so that a resumed run measures
    the same images. The network runs in evaluation mode without gradients and without global random
    streams: training with and without the probe gives bit-identical weights.

    Args:
        every_n_steps: Optimizer steps between measurements; the first measurement is before the
            first step, the last after the last step.
        gate: Sets the energy of the comparison at all stages; null takes the gate of the run where
            it is attached, or Gaussian Chaos at log_std 1 at the last stage.
        images: Number of images of the batch that are used.
        figures: Draw a figure at every measurement.
        target: Attribute of the LightningModule that holds the backbone.
        probe: Settings of :class:`~chaosgate.compat.Probe`.
    """

    def __init__(
        self,
        every_n_steps: PositiveInt = 500,
        gate: Gate | None = None,
        images: PositiveInt = 32,
        figures: bool = True,
        target: str = "model",
        **probe: Any,
    ) -> None:
        self.probe = Probe(**probe)
        self.every_n_steps, self.images = every_n_steps, images
        self.gate, self.figures, self.target = gate, figures, target
        self.reading: ProbeReading | None = None
        self._batch: Tensor | None = None
        self._last_step: int | None = None

    @property
    def state_key(self) -> str:
        return f"CompatibilityProbe{{stages={','.join(self.probe.stages)}}}"

    def state_dict(self) -> dict[str, Any]:
        return {} if self._batch is None else {"batch": self._batch.cpu()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._batch = state_dict.get("batch")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Measure before a due step, once if gradients are accumulated over several batches."""
        if self._batch is None:
            self._batch = as_sample(batch).image[: self.images].detach().clone()
        if trainer.global_step % self.every_n_steps == 0 and trainer.global_step != self._last_step:
            self._measure(trainer, pl_module, self._batch)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._batch is not None and trainer.global_step != self._last_step:
            self._measure(trainer, pl_module, self._batch)

    def _measure(self, trainer: Trainer, pl_module: LightningModule, batch: Tensor) -> None:
        backbone = getattr(pl_module, self.target, None)
        if not isinstance(backbone, nn.Module):
            raise ValueError(
                f"CompatibilityProbe: target={self.target!r} is not a module of "
                f"{type(pl_module).__name__}."
            )
        self._batch = batch.to(pl_module.device)
        gate, stages = self._gate(trainer)
        self.reading = self.probe(backbone, self._batch, gate, stages)
        first, step = self._last_step is None, trainer.global_step
        self._last_step = step
        if not trainer.is_global_zero:
            return
        scalars = {f"compat/{name}": value for name, value in self.reading.scalars().items()}
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=step)
        # The first measurement of a run drops rows that an interrupted run left for later steps.
        path = Path(trainer.default_root_dir) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in old if not first or json.loads(line)["step"] < step]
        new = [json.dumps({"step": step, **row}) for row in self.reading.rows()]
        half = path.with_suffix(".part")
        half.write_text("".join(line + "\n" for line in [*kept, *new]), encoding="utf-8")
        half.replace(path)
        if self.figures:
            draw = partial(probe_figure, self.reading, f"step {step}")
            log_figure(trainer.loggers, "compat/depth", draw, step)

    def _gate(self, trainer: Trainer) -> tuple[Gate | None, list[str]]:
        """The gate that sets the energy, and where the run has it attached."""
        if self.gate is None:
            for callback in NoiseInjection.of(trainer):
                if callback.attachment is not None:
                    gates = callback.attachment.gates
                    gate = list(gates.values())[-1]  # that of the last stage, where several differ
                    return gate, [stage for stage, other in gates.items() if other is gate]
        return self.gate, []
