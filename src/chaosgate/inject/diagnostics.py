"""What gates do around training: averages over draws in evaluation, BatchNorm under noise, a picture.

BatchNorm gathers its running statistics with the gate on and uses them with it off. Here is how far apart the two are,
and a pass that gathers them again without noise, as a control.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chaosgate.inject.layout import logits_of, mapped, tensors
from chaosgate.inject.refusals import refuse
from chaosgate.inject.stages import eager, evaluation, preserved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from chaosgate.inject.attachment import Attachment

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


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

    def __call__(self, attachment: "Attachment", args: Any, kwargs: Any) -> Any:
        """What the model returns in the last pass, with the averaged log-probabilities in the place of its logits."""
        log_p = []
        for _ in range(self.draws):
            self._passes += 1
            with attachment.forced(self._passes):
                output = attachment.model(*args, **kwargs)
            loss = (
                output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            )
            if isinstance(loss, Tensor):
                refuse("loss")
            found = logits_of(output)
            axis = -1 if self.class_axis is None else self.class_axis
            valid = (
                found is not None and -found.ndim <= axis < found.ndim and axis % found.ndim != 0
            )
            if not valid or found is None or (self.class_axis is None and found.ndim != 2):
                shapes = ", ".join(str(tuple(t.shape)) for t in tensors(output))
                refuse(
                    "no logits",
                    output=f"{type(output).__name__} with {shapes} (class_axis={self.class_axis})",
                )
            log_p.append(found.float().log_softmax(axis))
        stacked = torch.stack(log_p)
        mean = torch.logsumexp(stacked, 0) - math.log(self.draws)
        entropy = -(mean.exp() * mean).sum(axis)
        within = -(stacked.exp() * stacked).sum(axis if axis < 0 else axis + 1).mean(0)
        self.uncertainty = {
            "entropy": entropy,
            "mutual_information": (entropy - within).clamp_min(0),
        }
        return mapped(output, lambda t: mean if t is found else t)


@dataclass(frozen=True)
class BatchNormShift:
    r"""What a gate does to the statistics that one BatchNorm gathers.

    ``mean_shift`` is the mean over channels of :math:`|\mu'-\mu|/\sigma`, ``variance_ratio`` that of
    :math:`\sigma'^2/\sigma^2`, with the gate on (primed) and off, on the same images.
    """

    module: str
    mean_shift: float
    variance_ratio: float


def batchnorm_shift(attachment: "Attachment", *args: Any, **kwargs: Any) -> list[BatchNormShift]:
    """The shift at every BatchNorm behind a gate; those in front of it see no difference and are left out."""
    with evaluation(attachment.model), torch.no_grad(), eager():
        plain = _input_statistics(attachment.model, args, kwargs)
        with attachment.forced(draw=-1):
            gated = _input_statistics(attachment.model, args, kwargs)
    shifts = []
    for name, (mean, variance) in plain.items():
        noisy_mean, noisy_variance = gated[name]
        if torch.equal(mean, noisy_mean):
            continue
        safe = variance.clamp_min(1e-12)
        shifts.append(
            BatchNormShift(
                name,
                float(((noisy_mean - mean).abs() / safe.sqrt()).mean()),
                float((noisy_variance / safe).mean()),
            )
        )
    return shifts


def _input_statistics(model: nn.Module, args: Any, kwargs: Any) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def recorder(name: str) -> Any:
        def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].double().transpose(0, 1).flatten(1)
            found[name] = (x.mean(1), x.var(1, correction=0))

        return record

    handles = [
        m.register_forward_pre_hook(recorder(n))
        for n, m in model.named_modules()
        if isinstance(m, BATCH_NORMS)
    ]
    try:
        model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def reestimate_bn(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Recompute the running statistics of every BatchNorm from ``batches`` of images, without noise.

    Each statistic becomes the plain average over the batches. Modes and momenta are restored; weights are not touched.
    Call it with no gate attached. Returns the number of batches used.
    """
    norms = [
        m for m in model.modules() if isinstance(m, BATCH_NORMS) and m.running_mean is not None
    ]
    if not norms:
        raise ValueError(
            f"{type(model).__name__} has no BatchNorm with running statistics; there is nothing to estimate."
        )
    momenta = [norm.momentum for norm in norms]
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise ValueError(
            "reestimate_bn got no batches; the running statistics were left as they are."
        )
    count = 0
    with preserved(model, buffers=False), torch.no_grad():
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the cumulative average
            norm.train()
        for batch in chain([first], waiting):
            model(batch)
            count += 1
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return count


def gate_figure(attachment: "Attachment", *args: Any, **kwargs: Any) -> "Figure":
    """A row for each site and each of three images: input, log-gate, gate, mean absolute feature before and after.

    The gate columns are read off the features, so the picture shows what happened, whatever the gate is.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    args, kwargs = first_images((args, kwargs), 3)
    pictures = next((t for t in tensors((args, kwargs)) if t.ndim >= 3), None)
    if pictures is None or pictures.ndim != 4:
        raise ValueError("the network is not called with images, so there is nothing to draw.")
    with evaluation(attachment.model), torch.no_grad(), eager():
        with attachment.forced(draw=-1, record=True) as maps:
            attachment.model(*args, **kwargs)
    if len(maps) < len(attachment.sites):
        raise RuntimeError("a gate did not act on this batch, so there is nothing to draw.")
    rows = [(site.stage, *_pictures(*maps[site.module])) for site in attachment.sites]
    shown = [
        (name, i, ratio[i], before[i], after[i])
        for name, ratio, before, after in rows
        for i in range(len(pictures))
    ]
    inputs = pictures.double().mean(1)
    height = 2.05 * len(shown) + 0.4
    figure = Figure(figsize=(11.4, height))
    FigureCanvasAgg(figure)
    # Margins in numbers: to let matplotlib find them took longer than all the rest of a small run.
    margins = {"left": 0.03, "right": 0.95, "bottom": 0.1 / height, "top": 1 - 0.35 / height}
    axes = figure.subplots(
        len(shown), 5, squeeze=False, gridspec_kw={**margins, "wspace": 0.35, "hspace": 0.08}
    )
    titles = ("input", "log-gate", "gate", "feature before", "feature after")
    for row, (name, index, ratio, before, after) in zip(axes, shown, strict=True):
        limit = max(float(ratio.clamp_min(1e-12).log().abs().nan_to_num(0).max()), 1e-3)
        top = float(torch.maximum(before.max(), after.max()))
        panels = (
            (inputs[index], "gray", float(inputs[index].min()), float(inputs[index].max())),
            (ratio.clamp_min(1e-12).log(), "RdBu_r", -limit, limit),
            (ratio, "viridis", 0.0, float(ratio.max())),
            (before, "magma", 0.0, top),
            (after, "magma", 0.0, top),
        )
        for axis, (picture, colours, low, high) in zip(row, panels, strict=True):
            image = axis.imshow(
                picture.cpu().numpy(), cmap=colours, vmin=low, vmax=high, interpolation="nearest"
            )
            axis.set_xticks([])
            axis.set_yticks([])
            if axis not in (row[0], row[3]):  # features before and after have one scale
                bar = axis.inset_axes((1.04, 0.0, 0.05, 1.0))
                figure.colorbar(image, cax=bar).ax.tick_params(labelsize=7)
        row[0].set_ylabel(f"{name}, image {index}", fontsize=9)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    return figure


def _pictures(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ratio of the channel norms (the gate, where it is shared), and mean absolute features, each (B, H, W)."""
    ratio = after.double().norm(dim=1) / before.double().norm(dim=1).clamp_min(1e-12)
    return ratio, before.double().abs().mean(1), after.double().abs().mean(1)


def first_images(call: Any, images: int) -> Any:
    """The same arguments with fewer images: every tensor as long as the first one is cut; copies without gradient."""
    size = next((len(t) for t in tensors(call) if t.ndim), 0)
    return mapped(
        call, lambda t: t[:images].detach().clone() if t.ndim and len(t) == size else t.detach()
    )
