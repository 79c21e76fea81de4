"""Reliability diagrams drawn from the sums of :class:`~chaosgate.metrics.CellMetrics`."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from chaosgate.metrics.functional import Reliability, calibration_error

# Okabe and Ito's palette: told apart under the common colour-vision deficiencies, and in grey.
_BLUE, _VERMILION, _GREEN, _INK, _MUTED = "#0072B2", "#D55E00", "#009E73", "#1a1a1a", "#8a8a8a"


def reliability_figure(reliability: Reliability, cell: int = 0, title: str = "") -> Figure:
    """Accuracy against confidence per bin with the gap shaded, and how many samples each bin holds beneath.

    Bars show accuracy; hatched boxes reach from there to the bin's mean confidence, in one colour where the network is
    over-confident and in another where it is under-confident. No global matplotlib state is touched, so it is safe in
    a training loop, and the figure can be handed to ``SummaryWriter.add_figure`` or saved.

    Args:
        reliability: sums ``(num_bins,)`` or ``(num_cells, num_bins)``.
        cell: which row of the latter.
        title: printed above.
    """
    row = reliability.of_cell(cell) if reliability.count.ndim > 1 else reliability
    count, confidence_sum, correct_sum, edges = (x.cpu().numpy() for x in row)
    left, width = edges[:-1], edges[1:] - edges[:-1]
    filled = count > 0
    total = count.sum()

    figure = Figure(figsize=(5.0, 5.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))

    accuracy = correct_sum[filled] / count[filled]
    confidence = confidence_sum[filled] / count[filled]
    over = confidence >= accuracy
    upper.bar(left[filled], accuracy, width[filled], align="edge", color=_BLUE, edgecolor="white", linewidth=0.8)
    upper.bar(
        left[filled],
        confidence - accuracy,
        width[filled],
        bottom=accuracy,
        align="edge",
        color=[_VERMILION if o else _GREEN for o in over],
        alpha=0.45,
        edgecolor=[_VERMILION if o else _GREEN for o in over],
        hatch="///",
        linewidth=0.8,
    )
    upper.plot([0, 1], [0, 1], color=_INK, linestyle=(0, (4, 3)), linewidth=1.2)
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    upper.legend(
        handles=[
            Patch(facecolor=_BLUE, label="accuracy"),
            Patch(facecolor=_VERMILION, alpha=0.45, hatch="///", label="over-confident by"),
            Patch(facecolor=_GREEN, alpha=0.45, hatch="///", label="under-confident by"),
        ],
        loc="upper left",
        frameon=False,
        fontsize=9,
    )
    if total > 0:
        ece = float(calibration_error(row))
        upper.text(
            0.97,
            0.04,
            f"ECE {ece:.3f}\ntop-1 {correct_sum.sum() / total:.3f}\nconfidence {confidence_sum.sum() / total:.3f}",
            transform=upper.transAxes,
            ha="right",
            va="bottom",
            fontsize=10,
            bbox={"facecolor": "white", "edgecolor": _MUTED, "boxstyle": "round,pad=0.4"},
        )
    lower.bar(left, count / max(total, 1), width, align="edge", color=_MUTED, edgecolor="white", linewidth=0.8)
    lower.set(xlabel="confidence", ylabel="share")
    for axis in (upper, lower):
        axis.spines[["top", "right"]].set_visible(False)
    if title:
        upper.set_title(title, fontsize=11, loc="left")
    return figure
