"""A probe's readings as a table "stage x method", as a verdict on the late-stage prediction, and as depth profiles."""

import math

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from chaosgate.compat.probe.reading import MethodReading, ProbeReading, StageReading
from chaosgate.field.arguments import grid_text

HEADINGS = (
    "stage",
    "method",
    "strength",
    "energy",
    "log-ratio std",
    "finite",
    "orderings kept",
    "roughness x",
    "Betti kept",
    "top-1 kept",
)

NOTE = (
    "In brackets: predicted by the paper. log-ratio std: root mean square change of the finite log-ratios. finite: "
    "log-ratios that stay finite. roughness x: factor on the intrinsic energy of the maps. Betti kept: superlevel sets "
    "at the mean of each map with the same components and cycles. Log-geometry is read on positive sites."
)


def cells(m: MethodReading) -> tuple[str, ...]:
    return (
        m.stage,
        m.method,
        strength(m.gate),
        _number(m.energy, "{:.2f}"),
        "0" if m.deformation < 1e-6 else _both(m.deformation, m.deformation_predicted, "{:.2f}"),
        _both(m.finite, m.finite_predicted, "{:.0%}"),
        _both(m.ranking, m.ranking_predicted, "{:.1%}"),
        _both(m.inflation, m.inflation_predicted, "{:.2f}"),
        _number(m.topology, "{:.0%}"),
        _number(m.agreement, "{:.0%}"),
    )


def strength(gate: str) -> str:
    """The strength in the words of a gate: ``Dropout(p=0.2, ...)`` gives ``p=0.2``.

    >>> strength("IIDGaussian(Plain(sigma=1.24239), operator=Identity())")
    'sigma=1.24'
    """
    inside = gate.partition("(")[2].removeprefix("Plain(").removeprefix("Wick(").removeprefix("Signed(")
    name, _, value = inside.partition(",")[0].rstrip(")").partition("=")
    try:
        return f"{name}={float(value):.3g}"
    except ValueError:
        return "matched"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def _both(measured: float, predicted: float, form: str) -> str:
    expected = "" if math.isnan(predicted) else f" ({form.format(predicted)})"
    return _number(measured, form) + expected


def stage_line(s: StageReading) -> str:
    """What a stage is like without any gate."""
    where = s.stage if s.stage == s.module else f"{s.stage} ({s.module})"
    sign = "signed maps, so no log-geometry" if s.signed else f"median log-margin {_number(s.margin_median, '{:.2f}')}"
    return (
        f"{where}: {grid_text(s.grid)}, kappa {s.coherence:.2f} ({s.coherence_pooled:.2f} on the coarsest "
        f"grid), {s.positive_share:.0%} of the sites positive, {sign}"
    )


def as_table(reading: ProbeReading) -> Group:
    """For the terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i < 3 else "right", no_wrap=True)
    for s in reading.stages:
        for m in (m for m in reading.methods if m.stage == s.stage):
            table.add_row(*cells(m))
        table.add_section()
    stages = [Text(stage_line(s)) for s in reading.stages]
    lines = [Text(f"- {line}") for line in verdict(reading)]
    return Group(
        *stages, table, Text(NOTE, "dim"), Text("\nThe late-stage prediction, from first to last stage:"), *lines
    )


def as_markdown(reading: ProbeReading) -> str:
    """For a README or an issue."""
    lines = [f"- {stage_line(s)}" for s in reading.stages]
    lines += ["", "| " + " | ".join(HEADINGS) + " |", "|" + "---|" * 3 + "---:|" * (len(HEADINGS) - 3)]
    lines += ["| " + " | ".join(cells(m)) + " |" for m in reading.methods]
    lines += ["", NOTE, "", "The late-stage prediction, from first to last stage:", ""]
    return "\n".join([*lines, *(f"- {line}" for line in verdict(reading)), ""])


def verdict(reading: ProbeReading) -> list[str]:
    """Whether the paper's late-stage prediction holds here: its two premises, and what should follow from them.

    Premises: towards the last stage maps get more coherent (kappa grows) and evidence more decisive (log-margins grow).
    Consequences at equal energy: the smooth gate gains on dropout in orderings kept, and in roughness added.
    """
    lines = [
        _trend("premise, coherence kappa", [s.coherence for s in reading.stages]),
        _trend("premise, kappa of maps pooled to one grid", [s.coherence_pooled for s in reading.stages]),
    ]
    margins = [s.margin_median for s in reading.stages]
    if all(math.isfinite(value) for value in margins):
        lines.append(_trend("premise, median log-margin", margins))
    names = reading.method_names()
    if "gch" in names and "dropout" in names:
        smooth, hard = ([reading.of(s.stage, name) for s in reading.stages] for name in ("gch", "dropout"))
        gained = [g.ranking - d.ranking for g, d in zip(smooth, hard, strict=True)]
        if all(math.isfinite(value) for value in gained):
            lines.append(_trend("consequence, orderings kept by gch minus dropout", gained))
        rougher = [d.inflation / g.inflation for g, d in zip(smooth, hard, strict=True)]
        lines.append(_trend("consequence, roughness under dropout over gch", rougher))
        moved = [d.logit_change / g.logit_change for g, d in zip(smooth, hard, strict=True)]
        if all(math.isfinite(value) for value in moved):
            lines.append(_trend("at the output, change of the logits under dropout over gch", moved))
    return lines


def _trend(name: str, values: list[float]) -> str:
    text = ", ".join(f"{value:.3g}" for value in values)
    rises = [later > earlier for earlier, later in zip(values, values[1:], strict=False)]
    if not rises:
        return f"{name}: {text}; one stage has no trend"
    if all(rises):
        return f"{name}: {text}; grows at every step: holds"
    if values[-1] > values[0]:
        return f"{name}: {text}; grows from first to last, not at every step: holds in part"
    return f"{name}: {text}; does not grow towards the last stage: does not hold"


# Okabe and Ito's palette, told apart under the common colour-vision deficiencies; markers carry the method in grey.
STYLES = {
    "gch": ("#0072B2", "o"),
    "gch_wick": ("#56B4E9", "h"),
    "dropout": ("#D55E00", "X"),
    "dropout_element": ("#CC79A7", "P"),
    "dropblock": ("#E69F00", "s"),
    "iid_gaussian": ("#009E73", "^"),
    "correlated_gaussian": ("#7a7a7a", "v"),
    "signed_correlated": ("#8C564B", "<"),
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
