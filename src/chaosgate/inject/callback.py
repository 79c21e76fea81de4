"""The Lightning callback around :func:`attach`."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.nn.functional import cross_entropy

from chaosgate.field.white import fold
from chaosgate.gate import Gate, load_noise_state_dict, noise_state_dict
from chaosgate.inject.attachment import Attachment, gates_by_stage
from chaosgate.inject.dryrun import eager, evaluation
from chaosgate.inject.effect import (
    SiteReport,
    first_images,
    measure,
    require_effect,
)
from chaosgate.inject.layout import mapped
from chaosgate.inject.schedule import Adaptive, Ramp, Schedule

_IMAGES = 32  # for measuring the strength once per epoch
_LAYERS = "noise_of_layers"  # key in a checkpoint


class NoiseInjection(Callback):
    """Attach gates to the backbone for training; measure, print and log their strength.

    At the first training step the backbone runs with the gates off and on. An error is raised if a
    gate cannot act, if a normalization removes its effect, or if no gate acted in an epoch.
    Evaluation does not change unless ``monte_carlo`` is set.

    Args:
        gate: The perturbation, or a dict with one gate per stage; null trains without noise (the
            baseline).
        stages: ``L1`` to ``L4``, or names of modules of the backbone; null is L4, or the keys of
            ``gate``.
        seed: Selects the noise; null uses the seed of the run.
        schedule: Strength over the training; null is full strength from the start.
        monte_carlo: In the commands test, validate and predict average the probabilities of this
            many gated passes; 0 runs without noise, as validation during training always does.
        check: Raise an error if a gate does not reach the output, or for an epoch without noise.
        target: Attribute of the LightningModule that holds the backbone.
    """

    def __init__(
        self,
        gate: Gate | dict[str, Gate] | None = None,
        stages: Sequence[str] | None = None,
        seed: int | None = None,
        schedule: Ramp | Schedule | None = None,
        monte_carlo: int = 0,
        check: bool = True,
        target: str = "model",
    ) -> None:
        if monte_carlo < 0 or (monte_carlo and gate is None):
            raise ValueError(
                f"noise.monte_carlo must be 0 or more and needs a noise.gate; got {monte_carlo}."
            )
        if seed is not None and not 0 <= seed < 2**63:
            raise ValueError(f"noise.seed must be null or from 0 to 2^63 - 1; got {seed}.")
        if isinstance(gate, dict) and stages is not None and list(stages) == list(gate):
            stages = None  # a dict of gates names its stages
        self.gates = {} if gate is None else gates_by_stage(gate, stages)
        self.seed, self.schedule, self.check, self.target = seed, schedule, check, target
        self.monte_carlo = monte_carlo
        self.attachment: Attachment | None = None
        self.reports: list[SiteReport] = []
        self._restored: dict[str, Any] = {}
        self._probe: Any = None  # arguments (args, kwargs) of the first forward, with few images
        self._fired: int | None = None  # how often gates had acted before this epoch
        self._open = ExitStack()  # what lasts until the end of the batch

    @classmethod
    def of(cls, trainer: Trainer) -> "list[NoiseInjection]":
        """The callbacks of this class in a trainer."""
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        return [one for one in callbacks if isinstance(one, cls)]

    @property
    def state_key(self) -> str:
        """Callbacks with different gates, stages or targets have separate states."""
        kinds = dict.fromkeys(type(gate).__name__ for gate in self.gates.values())
        target = "" if self.target == "model" else f", target={self.target}"
        gate = "+".join(kinds) or "NoneType"
        return f"NoiseInjection{{gate={gate}, stages={','.join(self.gates)}{target}}}"

    def state_dict(self) -> dict[str, Any]:
        """Counters, the state of the schedule, the last measurement and its images, so that a
        resumed run continues with the same noise and measures the same.
        """
        if self.attachment is None:
            return self._restored
        schedule = self.schedule.state_dict() if isinstance(self.schedule, Adaptive) else None
        state = {"schedule": schedule, "reports": [asdict(report) for report in self.reports]}
        if _is_plain(self._probe):
            state["probe"] = self._probe
        return {**self.attachment.state_dict(), **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, before or after the gate is attached."""
        self._restored = dict(state_dict)
        if isinstance(self.schedule, Adaptive) and self._restored.get("schedule"):
            self.schedule.load_state_dict(self._restored["schedule"])
        if self.attachment is not None and self._restored:
            self.attachment.load_state_dict(self._restored)
            self.reports = [SiteReport(**one) for one in self._restored.get("reports", ())]
            self._probe = self._restored.get("probe")

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save also the counters of gates that are layers of the network."""
        if layers := noise_state_dict(pl_module):
            checkpoint[_LAYERS] = layers

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if _LAYERS in checkpoint:
            load_noise_state_dict(pl_module, checkpoint[_LAYERS])
        elif noise_state_dict(pl_module) and trainer.state.fn == TrainerFn.FITTING:
            rank_zero_warn(
                "the checkpoint has no counters of the gates that are layers: their noise starts "
                "from the beginning."
            )

    # -- attaching -------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Attach before anything compiles or wraps the network, unless ``configure_model`` makes
        it.
        """
        if (stage == "fit" or self.monte_carlo) and not is_overridden("configure_model", pl_module):
            self.on_fit_start(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the backbone as it is now; ``configure_model`` may have replaced it."""
        if not self.gates:
            return
        backbone = self._backbone(pl_module)
        if self.attachment is not None and self.attachment.model is backbone:
            return
        self.teardown(trainer, pl_module, "")
        seed = self.seed if self.seed is not None else int(os.environ.get("PL_GLOBAL_SEED", 0))
        if self.target != "model":  # two networks of one module have noise of their own
            seed = fold(seed, self.target)
        self.attachment = Attachment(backbone, self.gates, seed, trainer.global_rank)
        self.reports = []
        self.load_state_dict(self._restored)

    def _backbone(self, pl_module: LightningModule) -> nn.Module:
        try:
            return pl_module.get_submodule(self.target)
        except AttributeError:
            known = ", ".join(name for name, _ in pl_module.named_children())
            found = f"{type(pl_module).__name__}; it has {known}."
            raise ValueError(f"noise.target={self.target!r} is not a module of {found}") from None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove the gates from the network."""
        self._open.close()
        if self.attachment is not None:
            self._restored = self.attachment.state_dict()
            self.attachment.remove()
            self.attachment = self._probe = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Lightning calls no ``teardown`` after an error; the next run would find the gate still
        there.
        """
        self.teardown(trainer, pl_module, "")

    # -- training --------------------------------------------------------------------------------

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Follow the schedule; measure at the first forward, with what the backbone gets."""
        if self.attachment is None:
            return
        if self._fired is None:
            self._fired = self.attachment.fired
        if self.schedule is not None:
            done = share_done(
                trainer, trainer.current_epoch + batch_idx / trainer.num_training_batches
            )
            self.attachment.set_strength(self.schedule(done))
        if self._probe is None:
            self.attachment.on_first_call = partial(self._first_forward, trainer)
            self._open.enter_context(eager())

    def _first_forward(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Show and check the gates at full strength."""
        assert self.attachment is not None
        probe, strength = first_images((args, kwargs), _IMAGES), self.attachment.strength
        if strength != 1:
            self.attachment.set_strength(1.0)
        reports = measure(self.attachment, *probe)
        if self.check:
            require_effect(self.attachment, *probe)
        for report in reports:
            rank_zero_info(str(report))
        if strength != 1:
            self.attachment.set_strength(strength)
            reports = measure(self.attachment, *probe)
        self._probe, self.reports = probe, reports
        self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        """Log the last measurement, numbered by the last step."""
        scalars = {
            f"noise/{report.stage}/{name}": value
            for report in self.reports
            for name, value in report.scalars().items()
        }
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=max(0, trainer.global_step - 1))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._open.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise an error if the epoch had no noise; adapt the strength of the next one."""
        if (attachment := self.attachment) is None:
            return
        if self.check and attachment.fired == self._fired:
            frozen = [site.module for site in attachment.sites if not site.leader.training]
            why = f"{frozen} is in evaluation mode" if frozen else "it was not called"
            if self._backbone(pl_module) is not attachment.model:
                why = "it was replaced by another module"
            raise RuntimeError(
                f"no gate acted in this epoch: noise.target={self.target!r}: {why}. Train "
                "this module, set noise.target to another, noise.gate to null, or noise.check to "
                "false."
            )
        self._fired = None
        if self._probe is not None:  # features change, and with them the injected energy
            device = pl_module.device
            self._probe = mapped(self._probe, lambda t: t.to(device))  # it may be from a checkpoint
            self.reports = measure(attachment, *self._probe)
            self._log(trainer)
        if isinstance(self.schedule, Adaptive):
            done, held = share_done(trainer, trainer.current_epoch + 1), trainer.callback_metrics
            if "val/nll" not in held:
                raise ValueError("chaosgate.Adaptive needs validation images and 'val/nll'.")
            train_nll = training_nll(trainer, pl_module) if done >= self.schedule.start else 0.0
            self.schedule.update(done, train_nll, float(held["val/nll"]))

    # -- evaluation: Monte Carlo averages, where asked for ---------------------------------------

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monte_carlo:
            self.on_fit_start(trainer, pl_module)

    def averaging(self, step: int) -> AbstractContextManager[object]:
        """Context in which the network predicts Monte Carlo averages, if configured.

        ``step`` selects the draws; the batches of a test are numbered from 0.
        """
        if self.attachment is None or not self.monte_carlo:
            return nullcontext()
        return self.attachment.monte_carlo(self.monte_carlo, step)

    def on_test_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Start Monte Carlo prediction for this batch, except for validation in ``fit``."""
        if self.monte_carlo and trainer.state.fn != TrainerFn.FITTING:
            self.on_fit_start(trainer, pl_module)
            self._open.enter_context(self.averaging(batch_idx + (dataloader_idx << 32)))

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._open.close()

    on_validation_batch_start = on_predict_batch_start = on_test_batch_start
    on_validation_batch_end = on_predict_batch_end = on_test_batch_end


def share_done(trainer: Trainer, epoch: float) -> float:
    """Completed share of the training after ``epoch`` epochs; the limit reached first counts."""
    ends = ((epoch, trainer.max_epochs), (trainer.global_step, trainer.max_steps))
    shares = [done / end for done, end in ends if end is not None and end > 0]
    if not shares:
        raise ValueError("noise.schedule needs an end: set trainer.max_epochs or max_steps.")
    return max(shares)


def training_nll(trainer: Any, pl_module: LightningModule) -> float:
    """NLL of all training images in evaluation mode, without augmentation, over all processes."""
    data = trainer.datamodule
    if not hasattr(data, "plain_train_dataloader"):
        raise ValueError("chaosgate.Adaptive needs a data module of chaosgate.data.")
    total = torch.zeros(2, dtype=torch.double, device=pl_module.device)
    with evaluation(pl_module), torch.no_grad(), trainer.precision_plugin.val_step_context():
        for batch in data.plain_train_dataloader():
            batch = trainer.strategy.batch_to_device(batch, pl_module.device)
            batch = data.on_after_batch_transfer(batch, 0)
            counted = batch.index >= 0  # padding has -1
            logits = pl_module(batch.image)[counted].double()
            loss = cross_entropy(logits, batch.target[counted], reduction="sum")
            total += torch.stack((loss, counted.sum()))
    loss, count = trainer.strategy.reduce(total, reduce_op="sum").tolist()
    return float(loss / count)


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint that is read with ``weights_only=True`` can hold it."""
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return type(value) in (torch.Tensor, bool, int, float, str)
