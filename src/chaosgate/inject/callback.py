"""The Lightning callback around :func:`attach`."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from chaosgate.field.white import fold
from chaosgate.gate import Gate, load_noise_state_dict, noise_state_dict
from chaosgate.inject.attachment import Attachment, Ramp, gates_by_stage
from chaosgate.inject.dryrun import eager
from chaosgate.inject.effect import (
    SiteReport,
    first_images,
    measure,
    require_effect,
)
from chaosgate.inject.layout import mapped

_PROBE = 32  # images kept for measuring strength once per epoch
_LAYERS = "noise_of_layers"  # key in a checkpoint


class NoiseInjection(Callback):
    """Attach gates to the backbone for training; measure, print and log how strong they really are.

    At the first training step the backbone runs with the gates off and on: a gate that cannot act,
    or that the network normalises away, stops the run, and so does an epoch in which no gate acted.
    Evaluation is untouched unless ``monte_carlo`` asks for it.

    Args:
        gate: The perturbation; a dict from stages to gates gives each stage its own; null trains
            without noise (the baseline of every comparison).
        stages: ``L1`` to ``L4``, or names of modules of the backbone; null is L4, or what a dict of
            gates names.
        seed: Selects the noise; null takes the run's seed.
        schedule: Strength over the training; null is full strength from the start.
        monte_carlo: In the commands test, validate and predict average the probabilities of this
            many gated passes; 0 runs the plain network. Validation during training is always plain.
        class_axis: Axis of the classes for ``monte_carlo`` where outputs are not (B, K), e.g. 1 for
            (B, K, H, W).
        check: Refuse a gate that does not reach the output, and an epoch without noise; false does
            neither.
        target: Attribute of the LightningModule that holds the backbone.
    """

    def __init__(
        self,
        gate: Gate | dict[str, Gate] | None = None,
        stages: Sequence[str] | None = None,
        seed: int | None = None,
        schedule: Ramp | None = None,
        monte_carlo: int = 0,
        class_axis: int | None = None,
        check: bool = True,
        target: str = "model",
    ) -> None:
        if monte_carlo < 0 or (monte_carlo and gate is None):
            raise ValueError(
                f"noise.monte_carlo={monte_carlo} is 0 or more, and needs a noise.gate."
            )
        if seed is not None and not 0 <= seed < 2**63:
            raise ValueError(f"noise.seed is from 0 to 2^63 - 1, or null; got {seed}.")
        if isinstance(gate, dict) and stages is not None and list(stages) == list(gate):
            stages = None  # a dict of gates names its stages
        self.gates = {} if gate is None else gates_by_stage(gate, stages)
        self.seed, self.schedule, self.check, self.target = seed, schedule, check, target
        self.monte_carlo, self.class_axis = monte_carlo, class_axis
        self.attachment: Attachment | None = None
        self.reports: list[SiteReport] = []
        self._restored: dict[str, Any] = {}
        self._probe: Any = None  # arguments (args, kwargs) of the first forward, with fewer images
        self._fired: int | None = None  # how often gates had acted before this epoch
        self._open = ExitStack()  # what lasts until the end of the batch
        self._uncertainty: dict[str, list[Tensor]] = {}

    @classmethod
    def of(cls, trainer: Trainer) -> "list[NoiseInjection]":
        """The callbacks of this class that a trainer has."""
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        return [one for one in callbacks if isinstance(one, cls)]

    @property
    def state_key(self) -> str:
        """Two callbacks of this class, with other gates, stages or targets, keep separate
        states.
        """
        kinds = dict.fromkeys(type(gate).__name__ for gate in self.gates.values())
        target = "" if self.target == "model" else f", target={self.target}"
        gate = "+".join(kinds) or "NoneType"
        return f"NoiseInjection{{gate={gate}, stages={','.join(self.gates)}{target}}}"

    def state_dict(self) -> dict[str, Any]:
        """Counters, so that a resumed run replays the gates of the uninterrupted one, and the
        images that the strength is measured on, so that it measures the same.
        """
        state = self._restored if self.attachment is None else self.attachment.state_dict()
        return {**state, "probe": self._probe} if _is_plain(self._probe) else {**state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, before or after the gate is attached."""
        self._restored = {k: v for k, v in state_dict.items() if k != "probe"}
        self._probe = state_dict.get("probe")
        if self.attachment is not None and self._restored:
            self.attachment.load_state_dict(self._restored)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Gates that are layers of the network have counters too, outside its ``state_dict``."""
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
        if self._restored:
            self.attachment.load_state_dict(self._restored)

    def _backbone(self, pl_module: LightningModule) -> nn.Module:
        try:
            return pl_module.get_submodule(self.target)
        except AttributeError:
            known = ", ".join(name for name, _ in pl_module.named_children())
            found = f"{type(pl_module).__name__}; it has {known}."
            raise ValueError(f"noise.target={self.target!r} is not a module of {found}") from None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the network as it was found."""
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
        """Measure at the first forward, with what the backbone is called with; follow the
        schedule.
        """
        if self.attachment is None:
            return
        if self._fired is None:
            self._fired = self.attachment.fired
        if self.schedule is not None:
            self.attachment.set_strength(self.schedule(share_done(trainer, batch_idx)))
        if self._probe is None:
            self.attachment.on_first_call = partial(self._first_forward, trainer, pl_module)
            self._open.enter_context(eager())

    def _first_forward(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        assert self.attachment is not None
        probe, strength = first_images((args, kwargs), _PROBE), self.attachment.strength
        if strength != 1:  # shown and checked at full strength
            self.attachment.set_strength(1.0)
        self.reports = measure(self.attachment, *probe)
        if self.check:
            require_effect(self.attachment, *probe)
        self._probe = probe
        for report in self.reports:
            rank_zero_info(str(report))
        if strength != 1:
            self.attachment.set_strength(strength)
        self._measure(trainer, pl_module, again=strength != 1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._open.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure on the same images again: features change, and with them the injected energy."""
        if (attachment := self.attachment) is None:
            return
        if self.check and attachment.fired == self._fired:
            frozen = [site.module for site in attachment.sites if not site.leader.training]
            why = f"{frozen} is in evaluation mode" if frozen else "it was not called"
            if self._backbone(pl_module) is not attachment.model:
                why = "it was replaced by another module"
            raise RuntimeError(
                f"no gate acted in this epoch: noise.target={self.target!r}: {why}. Train it, set "
                "noise.target to what trains, noise.gate to null, or noise.check to false."
            )
        self._fired = None
        if self._probe is not None:
            self._measure(trainer, pl_module)

    def _measure(self, trainer: Trainer, pl_module: LightningModule, again: bool = True) -> None:
        """Measure again, and log, numbered by the last step taken."""
        if again:
            self.reports = []
        scalars = {
            f"noise/{report.stage}/{name}": value
            for report in self.last_reports(pl_module)
            for name, value in report.scalars().items()
        }
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=max(0, trainer.global_step - 1))

    def last_reports(self, pl_module: LightningModule) -> list[SiteReport]:
        """The last measurement; made now if the training was resumed after its last epoch."""
        if not self.reports and self.attachment is not None and self._probe is not None:
            self._probe = mapped(self._probe, lambda t: t.to(pl_module.device))  # of a checkpoint
            self.reports = measure(self.attachment, *self._probe)
        return self.reports

    # -- evaluation: Monte Carlo averages, where asked for ---------------------------------------

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monte_carlo:
            self.on_fit_start(trainer, pl_module)

    def averaging(self, step: int) -> AbstractContextManager[object]:
        """In here the network predicts Monte Carlo averages, if asked for, with the draws of
        ``step``.

        The batches of a test have the steps from 0 on.
        """
        if self.attachment is None or not self.monte_carlo:
            return nullcontext()
        return self.attachment.monte_carlo(self.monte_carlo, step, self.class_axis)

    def on_test_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Open Monte Carlo prediction for this batch; in ``fit`` validation is plain."""
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
        """Close it, and keep the uncertainties."""
        if not self.monte_carlo or trainer.state.fn == TrainerFn.FITTING:
            return
        self._open.close()
        if not self.spread:
            raise RuntimeError(
                f"nothing was averaged: noise.target={self.target!r} was not called in this batch. "
                "Set noise.target to what is evaluated, or noise.monte_carlo to 0."
            )
        number = getattr(batch, "index", None)  # of a Sample; padding of uneven shards has -1
        counted = number >= 0 if isinstance(number, Tensor) else slice(None)
        for name, value in self.spread.items():
            self._uncertainty.setdefault(name, []).append(value[counted].cpu().flatten())

    @property
    def spread(self) -> dict[str, Tensor]:
        """Uncertainties of the last batch of a Monte Carlo prediction, one value per image."""
        return {} if self.attachment is None else dict(self.attachment.uncertainty)

    on_validation_batch_start = on_predict_batch_start = on_test_batch_start
    on_validation_batch_end = on_predict_batch_end = on_test_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the mean uncertainties of all images on all processes, each counted once."""
        split = "test" if trainer.testing else "val"
        for name, parts in self._uncertainty.items():
            values = torch.cat(parts)
            sums = torch.stack((values.sum(), values.new_tensor(len(values)))).to(pl_module.device)
            total, count = trainer.strategy.reduce(sums, reduce_op="sum")
            pl_module.log(f"{split}/monte_carlo/{name}", total / count)
        self._uncertainty = {}

    on_validation_epoch_end = on_test_epoch_end


def share_done(trainer: Trainer, batch_idx: int) -> float:
    """Share of the training that is done before a batch; the earlier end counts."""
    epoch = trainer.current_epoch + batch_idx / trainer.num_training_batches
    ends = ((epoch, trainer.max_epochs), (trainer.global_step, trainer.max_steps))
    shares = [done / end for done, end in ends if end is not None and end > 0]
    if not shares:
        raise ValueError("noise.schedule needs an end: set trainer.max_epochs or max_steps.")
    return max(shares)


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint that is read with ``weights_only=True`` can hold it."""
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return type(value) in (Tensor, bool, int, float, str)
