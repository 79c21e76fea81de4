"""Pictures of a gate at work: log-field, gate, a feature map before and after."""

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from chaosgate.inject.attachment import Attachment
from chaosgate.inject.calls import Call
from chaosgate.inject.survey import eager, evaluation


def gate_figure(attachment: Attachment, batch: Tensor | Call, images: int = 3) -> Figure:
    """One row per image and site: the input, the log-gate, the gate, and the mean absolute feature before and after.

    The gate columns are read off the features, so the picture shows what happened, whatever the gate is.
    """
    call = Call.of(batch).first(images)
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
    figure = Figure(figsize=(10.4, 2.15 * len(shown) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 5, squeeze=False)
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
            if colours != "gray":
                figure.colorbar(image, ax=axis, fraction=0.046, pad=0.04).ax.tick_params(labelsize=7)
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
