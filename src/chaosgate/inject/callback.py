"""The Lightning callback around :func:`attach`."""

import os
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from chaosgate.gate import Gate
from chaosgate.inject.attachment import Attachment, attach
from chaosgate.inject.batchnorm import batchnorm_shift, reestimate_bn
from chaosgate.inject.effect import SiteReport, measure
from chaosgate.inject.figures import gate_figure
from chaosgate.inject.schedule import Ramp

_PROBE = 32  # images kept for measuring strength once per epoch


class NoiseInjection(Callback):
    """Attach a gate to the backbone for training; measure, print and log how strong it really is.

    Before the first training step one real batch runs with the gate off and on: a gate that cannot act, or that the
    network normalises away, stops the run. Evaluation is untouched unless ``monte_carlo`` asks for it.

    Args:
        gate: The perturbation; null trains without noise (the baseline of every comparison).
        stages: ``L1`` to ``L4``, or names of modules of the backbone.
        seed: Selects the noise; null takes the run's seed.
        schedule: Strength over training time; null is full strength from the start.
        monte_carlo: At test time average the probabilities of this many gated passes; 0 tests the plain network.
        reestimate_bn: Before a test gather the BatchNorm statistics anew from this many training batches without noise;
            0 tests with the statistics that training gathered under noise. A control; checkpoints are not changed.
        target: Attribute of the LightningModule that holds the backbone.
    """

    def __init__(
        self,
        gate: Gate | None = None,
        stages: list[str] = ["L4"],  # noqa: B006 - jsonargparse reads the default; it is never changed
        seed: int | None = None,
        schedule: Ramp | None = None,
        monte_carlo: int = 0,
        reestimate_bn: int = 0,
        target: str = "model",
    ) -> None:
        if reestimate_bn < 0:
            raise ValueError(f"noise.reestimate_bn is a number of batches, 0 for none; got {reestimate_bn}.")
        if monte_carlo < 0:
            raise ValueError(f"noise.monte_carlo is a number of draws, 0 for none; got {monte_carlo}.")
        if monte_carlo and gate is None:
            raise ValueError("noise.monte_carlo needs a gate; noise.gate is null.")
        if seed is not None and not 0 <= seed < 2**63:
            raise ValueError(f"noise.seed is a whole number from 0 to 2^63 - 1, or null for the run's; got {seed}.")
        if gate is not None and (not stages or len(set(stages)) < len(stages)):
            raise ValueError(f"noise.stages is {list(stages)}; name at least one stage, each once, e.g. [L4].")
        self.gate = gate
        self.stages = list(stages)
        self.seed = seed
        self.schedule = schedule
        self.monte_carlo = monte_carlo
        self.reestimate_bn = reestimate_bn
        self.target = target
        self.attachment: Attachment | None = None
        self.reports: list[SiteReport] = []
        self._restored: dict[str, int] | None = None
        self._probe: Tensor | None = None
        self._monte_carlo_batch: Any = None
        self._uncertainty: dict[str, list[Tensor]] = {}

    @property
    def state_key(self) -> str:
        """Two callbacks of this class, with other gates or on other stages, keep separate states."""
        return f"NoiseInjection{{gate={type(self.gate).__name__}, stages={','.join(self.stages)}}}"

    def state_dict(self) -> dict[str, Any]:
        """Counters, so that a resumed run replays the gates of the uninterrupted one, and the images that the strength
        is measured on, so that its curve goes on.
        """
        counters = self.attachment.state_dict() if self.attachment is not None else dict(self._restored or {})
        return counters if self._probe is None else {**counters, "probe": self._probe}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, before or after the gate is attached."""
        self._probe = state_dict.get("probe")
        self._restored = {name: int(value) for name, value in state_dict.items() if name != "probe"}
        if self.attachment is not None and self._restored:
            self.attachment.load_state_dict(self._restored)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Attach before anything compiles or wraps the network."""
        if self.gate is None or self.attachment is not None or (stage != "fit" and not self.monte_carlo):
            return
        backbone = self._backbone(pl_module)
        seed = self.seed if self.seed is not None else int(os.environ.get("PL_GLOBAL_SEED", 0))
        self.attachment = attach(backbone, self.gate, self.stages, seed, trainer.global_rank, check=False)
        if self._restored:
            self.attachment.load_state_dict(self._restored)

    def _backbone(self, pl_module: LightningModule) -> nn.Module:
        backbone = getattr(pl_module, self.target, None)
        if not isinstance(backbone, nn.Module):
            raise ValueError(
                f"noise.target={self.target!r} is no module of {type(pl_module).__name__}; its modules are "
                f"{', '.join(name for name, _ in pl_module.named_children()) or 'none'}."
            )
        return backbone

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the network as it was found."""
        if self.attachment is not None:
            self._restored = self.attachment.state_dict()
            self.attachment.remove()
            self.attachment = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Check the effect on the first batch; follow the schedule."""
        if self.attachment is None:
            return
        if self._probe is None:
            self._probe = batch[0][:_PROBE].detach().clone()
            self.reports = self.attachment.check(self._probe)
            for report in self.reports:
                rank_zero_info(_sentence(self.attachment.gate, report))
            self._log(trainer, figure=True)
        elif self._probe.device != batch[0].device:  # from a checkpoint
            self._probe = self._probe.to(batch[0].device)
        if self.schedule is not None:
            epoch = trainer.current_epoch + batch_idx / max(1, int(trainer.num_training_batches))
            self.attachment.set_dial(self.schedule(trainer.global_step, epoch))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the strength on the same images again: features change, and with them the injected energy."""
        if self.attachment is not None and self._probe is not None:
            self.reports = measure(self.attachment, self._probe)
            last = trainer.current_epoch + 1 == trainer.max_epochs
            self._log(trainer, figure=last)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have a last measurement in ``reports``, also where training was resumed after its last epoch."""
        if self.attachment is not None and self._probe is not None and not self.reports:
            self._probe = self._probe.to(pl_module.device)
            self.reports = measure(self.attachment, self._probe)

    def _log(self, trainer: Trainer, figure: bool) -> None:
        if trainer.logger is None or self.attachment is None or self._probe is None or trainer.sanity_checking:
            return
        scalars = {f"noise/{r.stage}/{name}": value for r in self.reports for name, value in r.scalars().items()}
        for shift in batchnorm_shift(self.attachment, self._probe):
            scalars[f"noise/batchnorm/{shift.module}/mean_shift"] = shift.mean_shift
            scalars[f"noise/batchnorm/{shift.module}/variance_ratio"] = shift.variance_ratio
        step = max(0, trainer.global_step - 1)  # the last one taken, as Lightning numbers what belongs to an epoch
        trainer.logger.log_metrics(scalars, step=step)
        if figure and trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger):
                    picture = gate_figure(self.attachment, self._probe)
                    logger.experiment.add_figure("noise/gate", picture, global_step=step)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather BatchNorm statistics without noise, where asked for."""
        if not self.reestimate_bn:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        data.setup("fit")
        batches = islice(data.train_dataloader(), self.reestimate_bn)
        moved = (data.on_after_batch_transfer(trainer.strategy.batch_to_device(b), 0)[0] for b in batches)
        count = reestimate_bn(self._backbone(pl_module), moved)
        rank_zero_info(f"BatchNorm statistics gathered anew from {count} training batches without noise")

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Open Monte Carlo prediction for this batch."""
        if self.attachment is not None and self.monte_carlo:
            self._monte_carlo_batch = self.attachment.monte_carlo(self.monte_carlo, step=batch_idx)
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
            counted = batch[2] >= 0 if len(batch) > 2 else slice(None)  # padding of uneven shards has index -1
            for name, value in self.attachment.uncertainty.items():
                self._uncertainty.setdefault(name, []).append(value[counted].cpu())

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log mean predictive entropy and mutual information of all images on all processes, each counted once."""
        for name, parts in self._uncertainty.items():
            values = torch.cat(parts)
            sums = torch.stack((values.sum(), values.new_tensor(len(values)))).to(pl_module.device)
            total, count = trainer.strategy.reduce(sums, reduce_op="sum")
            pl_module.log(f"test/monte_carlo/{name}", total / count)
        self._uncertainty = {}


def _sentence(gate: Gate, report: SiteReport) -> str:
    nominal = ", ".join(f"{name} {value:.4g}" for name, value in report.nominal.items())
    realised = f"gate {report.gate_min:.2g} to {report.gate_max:.2g}"
    if report.log_std == report.log_std:
        realised += f" (log std {report.log_std:.2f})"
    where = report.stage if report.stage == report.module else f"{report.stage} -> {report.module}"
    return (
        f"noise at {where}, {report.channels} channels on {report.grid[0]}x{report.grid[1]}: {type(gate).__name__} "
        f"{nominal}; {realised}; injected energy {report.energy:.3g} of the features'; logits move by "
        f"{report.logit_change:.2g}; {report.positive_share:.0%} of the map is positive"
    )
