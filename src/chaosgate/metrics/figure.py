"""Reliability diagrams drawn from sums per bin; figures for any logger."""

from collections.abc import Callable, Iterable
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from chaosgate.metrics.functional import Reliability, calibration_error

# Okabe and Ito's palette, for the common color-vision deficiencies; hatches work in gray.
_ACCURACY, _OVER, _UNDER, _INK = "#56B4E9", "#D55E00", "#009E73", "#222222"
_BOX: dict[str, dict[str, Any]] = {  # opaque, so that a box over a bar keeps its color
    _OVER: {"facecolor": "#F9DFCF", "hatch": "////", "label": "over-confident by"},
    _UNDER: {"facecolor": "#CFEBE2", "hatch": "\\\\\\\\", "label": "under-confident by"},
}

Floats = NDArray[np.float64]


def reliability_figure(
    reliability: Reliability, cell: int = 0, title: str = "", effective: Tensor | None = None
) -> Figure:
    """Accuracy and confidence per bin with the gap hatched, and the histogram of confidence.

    A bar is the accuracy of a bin, with a 95 % interval as a thin line (Wilson's, for few
    samples). The hatched box reaches from the accuracy to the mean confidence; the ECE is the mean
    height of the boxes, weighted by the histogram below. The global state of matplotlib does not
    change.

    Args:
        reliability: sums ``(num_bins,)`` or ``(num_cells, num_bins)``.
        cell: row of ``reliability`` if it has several cells.
        title: title of the figure.
        effective: effective number of independent samples per bin, ``(num_bins,)``, for the
            intervals (:func:`~chaosgate.metrics.effective_counts`).
    """
    row = reliability.of_cell(cell) if reliability.count.ndim > 1 else reliability
    count, confidence_sum, correct_sum, edges = (x.cpu().numpy() for x in row)
    total = count.sum()

    figure = Figure(figsize=(5.0, 5.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    if title:
        figure.suptitle(fill(title, width=48), fontsize=12, fontweight="bold", color=_INK)
    summary = "no samples"
    if total > 0:
        top1, confidence = correct_sum.sum() / total, confidence_sum.sum() / total
        means = f"ECE {calibration_error(row):.3f}, Top-1 {top1:.3f}, confidence {confidence:.3f}"
        summary = f"{means}, n = {total:,.0f}"
        lower.bar(edges[:-1], count / total, np.diff(edges), align="edge", color="#9a9a9a")
    upper.set_title(summary, fontsize=9.5, color=_INK)
    filled = count > 0
    size = (count if effective is None else effective.cpu().numpy())[filled]
    accuracy, claimed = (sums[filled] / count[filled] for sums in (correct_sum, confidence_sum))
    _draw_bins(upper, edges[:-1][filled], np.diff(edges)[filled], accuracy, claimed, size)
    style: dict[str, Any] = {"ncols": 3, "frameon": False, "fontsize": 8.5}
    handles, _ = upper.get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside lower center", **style)

    ticks = np.linspace(0, 1, 6)
    upper.set(xlim=(0, 1), ylim=(0, 1), yticks=ticks, ylabel="accuracy")
    lower.set(xticks=ticks, xlabel="confidence", ylabel="share")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    return figure


def _draw_bins(
    axes: Axes, left: Floats, width: Floats, accuracy: Floats, confidence: Floats, size: Floats
) -> None:
    bars: dict[str, Any] = {"align": "edge", "linewidth": 0.8}
    axes.bar(left, accuracy, width, color=_ACCURACY, edgecolor="white", label="accuracy", **bars)
    for color, rows in ((_OVER, confidence > accuracy), (_UNDER, confidence < accuracy)):
        if rows.any():
            gap, box = (confidence - accuracy)[rows], _BOX[color] | bars
            axes.bar(left[rows], gap, width[rows], accuracy[rows], edgecolor=color, **box)
    z = 1.96  # Wilson's interval
    center = (accuracy + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * np.sqrt(accuracy * (1 - accuracy) / size + z**2 / (4 * size**2))
    line: dict[str, Any] = {"color": _INK, "linewidth": 1.1}
    middle = left + width / 2
    axes.vlines(middle, center - half, center + half, zorder=3, label="95 % interval", **line)
    axes.plot([0, 1], [0, 1], linestyle=(0, (4, 3)), label="calibrated", **line)


def log_figure(loggers: Iterable[Any], tag: str, draw: Callable[[], Figure], step: int) -> None:
    """Pass a figure to every logger that shows figures; it is drawn only if there is one.

    TensorBoard's has ``experiment.add_image``; others have ``log_image(key, images, step)``.
    """
    boards, others = [], []
    for logger in loggers:
        if hasattr(getattr(logger, "experiment", None), "add_image"):
            boards.append(logger.experiment)
        elif hasattr(logger, "log_image"):
            others.append(logger)
    if not boards and not others:
        return
    canvas = FigureCanvasAgg(draw())
    canvas.draw()  # type: ignore[no-untyped-call]
    image = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    for board in boards:  # its add_figure would draw once more
        board.add_image(tag, image[..., :3], global_step=step, dataformats="HWC")
    for logger in others:
        logger.log_image(tag, [image], step=step)
