"""Prediction with the gates on: the mean probabilities of several passes, and how far the passes disagree."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chaosgate.inject.calls import Call, logits, with_logits

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment


class MonteCarlo:
    r"""The log of :math:`\bar p=\frac1D\sum_d p_d` over the passes with draws 1 to D.

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
        self.uncertainty: dict[str, Tensor] = {}

    def __call__(self, attachment: "Attachment", call: Call) -> Any:
        """What the model returns, with the averaged log-probabilities in the place of its logits."""
        log_p = []
        for draw in range(1, self.draws + 1):
            with attachment.forced(draw):
                output = call.run(attachment.model)
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
