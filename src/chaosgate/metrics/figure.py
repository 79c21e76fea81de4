"""Reliability diagrams drawn from the sums of :class:`~chaosgate.metrics.CellMetrics`; figures for any logger."""

from collections.abc import Callable, Iterable
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from chaosgate.metrics.functional import Reliability, calibration_error

# Okabe and Ito's palette: told apart under the common colour-vision deficiencies. Hatches carry the sign in grey.
_ACCURACY, _OVER, _UNDER, _INK, _MUTED = "#56B4E9", "#D55E00", "#009E73", "#222222", "#9a9a9a"
_HATCH = {_OVER: "////", _UNDER: "\\\\\\\\"}
_TINT = {_OVER: "#F9DFCF", _UNDER: "#CFEBE2"}  # opaque, so that a box over a bar keeps its colour

Floats = NDArray[np.float64]


def reliability_figure(
    reliability: Reliability, cell: int = 0, title: str = "", effective: Tensor | None = None
) -> Figure:
    """Accuracy against confidence per bin with the gap shaded, and where the samples are beneath.

    A bar is the accuracy of a bin, with a 95 % interval as a thin line (Wilson's, good for few samples). The hatched
    box reaches from there to the bin's mean confidence: one colour and hatch where the network claims too much,
    another where it claims too little; the ECE is the mean height of the boxes, weighted by the histogram beneath.

    No global matplotlib state is touched, so it is safe in a training loop. Hand the figure to
    ``SummaryWriter.add_figure`` or save it.

    Args:
        reliability: sums ``(num_bins,)`` or ``(num_cells, num_bins)``.
        cell: which row of the latter.
        title: printed above.
        effective: independent samples that each bin is worth, ``(num_bins,)``, for the intervals; where one image
            stands in several cells they are fewer than its count (:func:`~chaosgate.metrics.effective_counts`).
    """
    row = reliability.of_cell(cell) if reliability.count.ndim > 1 else reliability
    count, confidence_sum, correct_sum, edges = (x.cpu().numpy() for x in row)
    total = count.sum()

    figure = Figure(figsize=(5.0, 5.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    if title:
        figure.suptitle(fill(title, width=48), fontsize=12, fontweight="bold", color=_INK)
    if total > 0:
        top1, confidence = correct_sum.sum() / total, confidence_sum.sum() / total
        means = f"ECE {calibration_error(row):.3f}, Top-1 {top1:.3f}, confidence {confidence:.3f}"
        summary = f"{means}, n = {total:,.0f}"
        _draw_histogram(lower, edges, count / total, top1, confidence)
    else:
        summary = "no samples"
    upper.set_title(summary, fontsize=9.5, color=_INK)
    size = count if effective is None else effective.cpu().numpy()
    handles = _draw_bins(upper, edges, count, confidence_sum, correct_sum, size)
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)

    ticks = np.linspace(0, 1, 6)
    upper.set(xlim=(0, 1), ylim=(0, 1), yticks=ticks, ylabel="accuracy")
    lower.set(xticks=ticks, xlabel="confidence", ylabel="share")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    return figure


def log_figure(loggers: Iterable[Any], tag: str, draw: Callable[[], Figure], step: int) -> None:
    """Hand a figure to every logger that shows figures; drawn once, and only if there is such a logger.

    TensorBoard's has ``experiment.add_image``; Weights & Biases' and others have ``log_image(key, images, step)``.
    """
    shown = [one for one in loggers if _takes_images(one) or hasattr(one, "log_image")]
    if not shown:
        return
    canvas = FigureCanvasAgg(draw())
    canvas.draw()  # type: ignore[no-untyped-call]
    image = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    for logger in shown:
        if _takes_images(logger):  # TensorBoard's add_figure would draw once more
            logger.experiment.add_image(tag, image[..., :3], global_step=step, dataformats="HWC")
        else:
            logger.log_image(tag, [image], step=step)


def _takes_images(logger: Any) -> bool:
    return hasattr(getattr(logger, "experiment", None), "add_image")


def _draw_bins(
    axes: Axes,
    edges: Floats,
    count: Floats,
    confidence_sum: Floats,
    correct_sum: Floats,
    effective: Floats,
) -> list[Patch | Line2D]:
    """Draw the bins; return what the legend explains."""
    filled = count > 0
    left, width, size = edges[:-1][filled], np.diff(edges)[filled], count[filled]
    accuracy, confidence = correct_sum[filled] / size, confidence_sum[filled] / size
    axes.bar(left, accuracy, width, align="edge", color=_ACCURACY, edgecolor="white", linewidth=0.8)
    handles: list[Patch | Line2D] = [Patch(facecolor=_ACCURACY, label="accuracy")]
    for colour, label, rows in (
        (_OVER, "over-confident by", confidence > accuracy),
        (_UNDER, "under-confident by", confidence < accuracy),
    ):
        style: dict[str, Any] = {
            "facecolor": _TINT[colour],
            "edgecolor": colour,
            "hatch": _HATCH[colour],
            "linewidth": 0.8,
        }
        gap = (confidence - accuracy)[rows]
        axes.bar(
            left[rows], gap, width[rows], bottom=accuracy[rows], align="edge", zorder=2, **style
        )
        if rows.any():
            handles.append(Patch(label=label, **style))
    low, high = _wilson(accuracy, effective[filled])
    axes.vlines(left + width / 2, low, high, color=_INK, linewidth=1.1, zorder=3)
    handles.append(
        Line2D([], [], color=_INK, linewidth=1.1, marker="|", linestyle="", label="95 % interval")
    )
    (diagonal,) = axes.plot(
        [0, 1], [0, 1], color=_INK, linestyle=(0, (4, 3)), linewidth=1.1, label="calibrated"
    )
    return [*handles, diagonal]


def _draw_histogram(
    axes: Axes, edges: Floats, share: Floats, top1: float, confidence: float
) -> None:
    axes.bar(
        edges[:-1],
        share,
        np.diff(edges),
        align="edge",
        color=_MUTED,
        edgecolor="white",
        linewidth=0.8,
    )
    colour = _OVER if confidence > top1 else _UNDER
    axes.axvline(top1, color=_INK, linewidth=1.6, label="Top-1")
    axes.axvline(
        confidence, color=colour, linewidth=1.6, linestyle=(0, (3, 2)), label="mean confidence"
    )
    axes.legend(loc="best", frameon=False, fontsize=8, handlelength=1.6)


def _wilson(accuracy: Floats, size: Floats) -> tuple[Floats, Floats]:
    """Ends of the 95 % score interval of a share among ``size`` samples."""
    z = 1.96
    centre = (accuracy + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * np.sqrt(accuracy * (1 - accuracy) / size + z**2 / (4 * size**2))
    return centre - half, centre + half
