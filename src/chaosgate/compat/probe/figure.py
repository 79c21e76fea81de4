"""A probe's readings along the depth of the network."""

import math

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from chaosgate.compat.probe.reading import MethodReading, ProbeReading

# Okabe and Ito's palette, told apart under the common colour-vision deficiencies; markers carry the method in grey.
STYLES = {
    "gch": ("#0072B2", "o"),
    "gch_wick": ("#56B4E9", "h"),
    "dropout": ("#D55E00", "X"),
    "dropout_element": ("#CC79A7", "P"),
    "dropblock": ("#E69F00", "s"),
    "iid_gaussian": ("#009E73", "^"),
    "correlated_gaussian": ("#7a7a7a", "v"),
    "iid_lognormal": ("#F0E442", "D"),
}
_ATTACHED = ("#000000", "*")
_INK = "#222222"

PANELS: tuple[tuple[str, str, str], ...] = (
    ("ranking", "orderings kept", "share"),
    ("finite", "log-ratios that stay finite", "share"),
    ("inflation", "roughness after / before", "log"),
    ("topology", "superlevel sets with the same Betti numbers", "share"),
)


def probe_figure(reading: ProbeReading, title: str = "") -> Figure:
    """Depth profiles: coherence and log-margins of the bare network, then every method at equal injected energy.

    Filled markers are measured, rings are predicted by the paper. No global matplotlib state is touched.
    """
    figure = Figure(figsize=(11.5, 6.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).flatten()
    stages = [s.stage for s in reading.stages]
    _coherence(axes[0], reading)
    _margins(axes[3], reading)
    for axis, (quantity, label, scale) in zip((axes[1], axes[2], axes[4], axes[5]), PANELS, strict=True):
        for name in reading.method_names():
            _profile(axis, stages, [m for m in reading.methods if m.method == name], quantity)
        axis.set_title(label, fontsize=10, color=_INK, loc="left")
        if scale == "share":
            axis.set_ylim(-0.03, 1.03)
        else:
            axis.axhline(1, color=_INK, linewidth=0.8, linestyle=(0, (1, 2)))
            _log_scale(axis)
    for axis in axes:
        axis.set_xticks(range(len(stages)), stages)
        axis.set_xlim(-0.35, len(stages) - 0.65)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
        axis.grid(axis="y", color="#e6e6e6", linewidth=0.7)
        axis.set_axisbelow(True)
    handles = [Line2D([], [], color=_style(n)[0], marker=_style(n)[1], label=n) for n in reading.method_names()]
    handles.append(Line2D([], [], marker="o", linestyle="", mfc="none", mec=_INK, label="ring: predicted"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold", color=_INK)
    return figure


def _log_scale(axis: Axes, headroom: float = 1.0) -> None:
    """A logarithmic axis with plain numbers on it."""
    axis.set_yscale("log")
    axis.set_ylim(top=headroom * axis.get_ylim()[1])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _style(method: str) -> tuple[str, str]:
    return STYLES.get(method, _ATTACHED)


def _coherence(axis: Axes, reading: ProbeReading) -> None:
    places = range(len(reading.stages))
    axis.plot(places, [s.coherence for s in reading.stages], color=_INK, marker="o", label="kappa")
    pooled = [s.coherence_pooled for s in reading.stages]
    axis.plot(places, pooled, color=_INK, marker="s", mfc="white", linestyle="--", label="kappa, pooled to one grid")
    axis.axhline(1, color=_INK, linewidth=0.8, linestyle=(0, (1, 2)), label="white noise")
    _log_scale(axis, headroom=3.5)
    shares = axis.twinx()
    shares.bar(places, [s.positive_share for s in reading.stages], width=0.5, color="#9ecae1", alpha=0.45, zorder=0)
    shares.set_ylim(0, 1)
    shares.set_ylabel("share of positive sites (bars)", fontsize=8, color="#4a7fa5")
    shares.tick_params(labelsize=8, colors="#4a7fa5")
    shares.spines[["top"]].set_visible(False)
    axis.set_zorder(shares.get_zorder() + 1)
    axis.patch.set_visible(False)
    axis.set_title("coherence of the maps", fontsize=10, color=_INK, loc="left")
    axis.legend(fontsize=8, frameon=False, loc="upper right")


def _margins(axis: Axes, reading: ProbeReading) -> None:
    axis.set_title("log-margins between positive sites", fontsize=10, color=_INK, loc="left")
    found = [(i, s) for i, s in enumerate(reading.stages) if math.isfinite(s.margin_median)]
    if not found:
        axis.text(0.5, 0.5, "signed maps:\nno log-geometry", ha="center", va="center", transform=axis.transAxes)
        return
    for i, s in found:
        axis.vlines(i, s.margin_low, s.margin_high, color="#9a9a9a", linewidth=5, alpha=0.6)
    axis.plot(
        [i for i, _ in found], [s.margin_median for _, s in found], color=_INK, marker="o", label="median, 10-90 %"
    )
    gate = [(i, m.deformation) for i, s in found for m in reading.methods if (m.stage, m.method) == (s.stage, "gch")]
    if gate:
        colour, marker = STYLES["gch"]
        axis.plot(*zip(*gate, strict=True), color=colour, marker=marker, linestyle=":", label="moved by gch (rms)")
    axis.set_ylim(0, 1.35 * axis.get_ylim()[1])
    axis.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)


def _profile(axis: Axes, stages: list[str], readings: list[MethodReading], quantity: str) -> None:
    places = [stages.index(m.stage) for m in readings]
    values = [getattr(m, quantity) for m in readings]
    colour, marker = _style(readings[0].method)
    size = 11 if marker == "*" else 6
    axis.plot(places, values, color=colour, marker=marker, markersize=size, linewidth=1.4, alpha=0.9)
    predicted = [getattr(m, f"{quantity}_predicted", math.nan) for m in readings]
    axis.plot(places, predicted, marker="o", linestyle="", markersize=10, mfc="none", mec=colour)
