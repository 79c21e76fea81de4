"""When gates act, and how strongly: raised by a schedule, forced in evaluation mode, averaged over several draws."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from chaosgate.inject.calls import Call, logits, with_logits

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment


@dataclass(frozen=True)
class Ramp:
    """Raise the strength from ``start`` to one over the first steps or epochs, then hold it.

    Args:
        steps: Length in optimiser steps. Exactly one of ``steps`` and ``epochs``.
        epochs: Length in epochs; may be a fraction.
        start: Factor on the nominal strength at the beginning, in [0, 1].
        shape: ``"linear"`` or ``"cosine"`` (slow at both ends).

    >>> Ramp(steps=100)(step=25, epoch=0.0)
    0.25
    """

    steps: int | None = None
    epochs: float | None = None
    start: float = 0.0
    shape: Literal["linear", "cosine"] = "linear"

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"Ramp takes exactly one of steps and epochs; got {self.steps!r} and {self.epochs!r}.")
        name, length = ("steps", self.steps) if self.steps is not None else ("epochs", self.epochs)
        if length is None or not math.isfinite(length) or length <= 0:
            raise ValueError(f"Ramp: {name} is the length of the ramp, a positive number; got {length!r}.")
        if not 0 <= self.start <= 1:
            raise ValueError(f"Ramp: start is a factor in [0, 1]; got {self.start!r}.")
        if self.shape not in ("linear", "cosine"):
            raise ValueError(f"Ramp: shape is 'linear' or 'cosine'; got {self.shape!r}.")

    def __call__(self, step: int, epoch: float) -> float:
        """The factor at an optimiser step and a (fractional) epoch."""
        done = step / self.steps if self.steps is not None else epoch / self.epochs if self.epochs is not None else 1.0
        done = min(max(done, 0.0), 1.0)
        if self.shape == "cosine":
            done = 0.5 - 0.5 * math.cos(math.pi * done)
        return self.start + (1 - self.start) * done


@dataclass(frozen=True)
class Forced:
    """Gates act in evaluation mode too, with the noise of one numbered draw, on some or all sites."""

    draw: int
    only: frozenset[str] | None
    record: bool


class MonteCarlo:
    r"""The log of :math:`\bar p=\frac1D\sum_d p_d` over D passes: with draws 1 to D for the first batch, and so on.

    :attr:`uncertainty` then holds the entropy :math:`H(\bar p)` and the mutual information
    :math:`H(\bar p)-\frac1D\sum_d H(p_d)` of every prediction.

    Args:
        draws: Number of passes D.
        class_axis: Axis of the classes; None is the last of (B, K), and refuses any other output.
    """

    def __init__(self, draws: int, class_axis: int | None = None) -> None:
        if draws < 1:
            raise ValueError(f"Monte Carlo prediction needs at least one draw; got {draws}.")
        self.draws, self.class_axis, self.active = draws, class_axis, True
        self._passes = 0  # of all calls so far: every batch has draws of its own
        self.uncertainty: dict[str, Tensor] = {}

    def __call__(self, attachment: "Attachment", call: Call) -> Any:
        """What the model returns in the last pass, with the averaged log-probabilities in the place of its logits."""
        log_p = []
        for _ in range(self.draws):
            self._passes += 1
            with attachment.forced(self._passes):
                output = call.run(attachment.model)
            require_no_loss(output)
            found = logits(output)
            axis = self._axis(found)
            log_p.append(found.float().log_softmax(axis))
        stacked = torch.stack(log_p)
        mean = torch.logsumexp(stacked, 0) - math.log(self.draws)
        entropy = -(mean.exp() * mean).sum(axis)
        within = -(stacked.exp() * stacked).sum(axis if axis < 0 else axis + 1).mean(0)
        self.uncertainty = {"entropy": entropy, "mutual_information": (entropy - within).clamp_min(0)}
        return with_logits(output, mean)

    def _axis(self, found: Tensor) -> int:
        if self.class_axis is None and found.ndim != 2:
            raise ValueError(
                f"Monte Carlo prediction of outputs {tuple(found.shape)}: which axis has the classes? Only (B, K) is "
                "clear. Say it with class_axis=, e.g. 1 for (B, K, H, W)."
            )
        axis = -1 if self.class_axis is None else self.class_axis
        if not -found.ndim <= axis < found.ndim or axis % found.ndim == 0:
            raise ValueError(f"class_axis={axis} is not an axis of classes of outputs {tuple(found.shape)}.")
        return axis


def require_no_loss(output: Any) -> None:
    """Refuse a loss beside the logits (Hugging Face): it is that of one pass, not of the average."""
    if isinstance(output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None), Tensor):
        raise ValueError(
            "Monte Carlo prediction averages probabilities; the loss that the model returns beside its logits would be "
            "that of a single draw. Call it without labels, and compute the loss from the averages (nll_loss: they are "
            "log-probabilities)."
        )


def require_no_averaging(averages: MonteCarlo | None, how: str) -> None:
    """Refuse a pass that would not be averaged although averages are asked for."""
    if averages is not None and averages.active:
        raise RuntimeError(
            f"Monte Carlo prediction averages calls of the whole model in evaluation mode; it runs {how} here. Call "
            "model.eval() and model(...), or leave monte_carlo()."
        )
