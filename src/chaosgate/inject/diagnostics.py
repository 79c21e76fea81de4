"""What a gate does inside a network: a picture of it at work, and BatchNorm under noise.

Running statistics are gathered with the gate on and used with it off. Here is how far apart the two are, and a pass
that gathers them again without noise, as a control.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chaosgate.inject.calls import Call
from chaosgate.inject.survey import eager, evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from chaosgate.inject.attachment import Attachment

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class BatchNormShift:
    r"""What a gate does to the statistics that one BatchNorm gathers.

    ``mean_shift`` is the mean over channels of :math:`|\mu'-\mu|/\sigma`, ``variance_ratio`` that of
    :math:`\sigma'^2/\sigma^2`, with the gate on (primed) and off, on the same images.
    """

    module: str
    mean_shift: float
    variance_ratio: float


def batchnorm_shift(attachment: "Attachment", batch: Tensor | Call) -> list[BatchNormShift]:
    """The shift at every BatchNorm behind a gate; those in front of it see no difference and are left out."""
    with evaluation(attachment.model), torch.no_grad(), eager():
        plain = _input_statistics(attachment.model, Call.of(batch))
        with attachment.forced(draw=-1):
            gated = _input_statistics(attachment.model, Call.of(batch))
    shifts = []
    for name, (mean, variance) in plain.items():
        noisy_mean, noisy_variance = gated[name]
        if torch.equal(mean, noisy_mean):
            continue
        safe = variance.clamp_min(1e-12)
        shifts.append(
            BatchNormShift(
                name, float(((noisy_mean - mean).abs() / safe.sqrt()).mean()), float((noisy_variance / safe).mean())
            )
        )
    return shifts


def _input_statistics(model: nn.Module, call: Call) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def recorder(name: str) -> Any:
        def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].double().transpose(0, 1).flatten(1)
            found[name] = (x.mean(1), x.var(1, correction=0))

        return record

    handles = [m.register_forward_pre_hook(recorder(n)) for n, m in model.named_modules() if isinstance(m, BATCH_NORMS)]
    try:
        call.run(model)
    finally:
        for handle in handles:
            handle.remove()
    return found


def reestimate_bn(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Recompute the running statistics of every BatchNorm from ``batches`` of images, without noise.

    Each statistic becomes the plain average over the batches. Modes and momenta are restored; weights are not touched.
    Call it with no gate attached. Returns the number of batches used.
    """
    norms = [m for m in model.modules() if isinstance(m, BATCH_NORMS) and m.running_mean is not None]
    if not norms:
        raise ValueError(
            f"{type(model).__name__} has no BatchNorm with running statistics; there is nothing to estimate."
        )
    momenta = [norm.momentum for norm in norms]
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise ValueError("reestimate_bn got no batches; the running statistics were left as they are.")
    count = 0
    with evaluation(model, buffers=False), torch.no_grad():
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


def gate_figure(attachment: "Attachment", batch: Tensor | Call) -> "Figure":
    """A row for each site and each of three images: input, log-gate, gate, mean absolute feature before and after.

    The gate columns are read off the features, so the picture shows what happened, whatever the gate is.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    call = Call.of(batch).first(3)
    pictures = call.image()
    if pictures is None or pictures.ndim != 4:
        raise ValueError("the network is not called with images, so there is nothing to draw.")
    with evaluation(attachment.model), torch.no_grad(), eager():
        with attachment.forced(draw=-1, record=True):
            call.run(attachment.model)
    rows = [(site.asked, *_maps(site.before, site.after)) for site in attachment.sites]
    for site in attachment.sites:
        site.before = site.after = None
    shown = [
        (name, i, ratio[i], before[i], after[i]) for name, ratio, before, after in rows for i in range(len(pictures))
    ]
    inputs = pictures.double().mean(1)
    height = 2.05 * len(shown) + 0.4
    figure = Figure(figsize=(11.4, height))
    FigureCanvasAgg(figure)
    # Margins in numbers: to let matplotlib find them took longer than all the rest of a small run.
    margins = {"left": 0.03, "right": 0.95, "bottom": 0.1 / height, "top": 1 - 0.35 / height}
    axes = figure.subplots(len(shown), 5, squeeze=False, gridspec_kw={**margins, "wspace": 0.35, "hspace": 0.08})
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
            image = axis.imshow(picture.cpu().numpy(), cmap=colours, vmin=low, vmax=high, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            if axis not in (row[0], row[3]):  # features before and after have one scale
                bar = axis.inset_axes((1.04, 0.0, 0.05, 1.0))
                figure.colorbar(image, cax=bar).ax.tick_params(labelsize=7)
        row[0].set_ylabel(f"{name}, image {index}", fontsize=9)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    return figure


def _maps(before: Tensor | None, after: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Ratio of the channel norms (the gate, where it is shared), and mean absolute features, each (B, H, W)."""
    if before is None or after is None:
        raise RuntimeError("the gate did not act on this batch, so there is nothing to draw.")
    ratio = after.double().norm(dim=1) / before.double().norm(dim=1).clamp_min(1e-12)
    return ratio, before.double().abs().mean(1), after.double().abs().mean(1)
