"""The pictures of a study report, drawn without touching matplotlib's global state."""

from collections.abc import Callable, Mapping, Sequence
from math import fsum, isnan
from statistics import stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogFormatter, MaxNLocator

from chaosgate.metrics.aggregate import corruption_means
from chaosgate.metrics.names import FITTED_ON_TEST, ON_TEST, PLUS_T, scaled, title
from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report.collect import Finished
from chaosgate.study.report.table import CLEAN, Entry, Table

# Okabe and Ito's palette, told apart under the common colour-vision deficiencies, then Tol's dark tones: twelve methods
# have twelve colours. Markers carry them in grey.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_COLOURS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#661100", "#44AA99", "#AA4499")
_MARKERS = ("s", "D", "^", "v", "P", "X", "p")  # seven and twelve: no pair comes again before the 84th method
_HATCHES, _DASHES = ("", "/////", ".....", "xxxxx"), ("-", "--", ":", "-.")
INK, MUTED, _REFERENCE = "#1f2430", "#8a8f99", "#5a5f6a"


def method_styles(methods: Sequence[str], reference: str) -> dict[str, dict[str, Any]]:
    """A colour and a marker for every method; the reference is grey."""
    others = [method for method in methods if method != reference]
    styles = {
        method: {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)]}
        for i, method in enumerate(others)
    }
    return {reference: {"color": _REFERENCE, "marker": "o"}, **styles}


def energy_figure(table: Table) -> Figure:
    """NLL and ECE against the realised injected energy: all methods on the axis that they have in common."""

    def draw(axes: Axes, part: str, metric: str) -> None:
        for method, style in _styles(table).items():
            rows = [row for row in table.rows if row.method == method and row.seeds and row.members == 1]
            rows.sort(key=lambda row: row.energy.mean)
            points = [(row.energy.mean, row.entries[part, metric]) for row in rows]
            if points:
                _with_spread(axes, points, method, style)
            _cross_out(axes, [p for p, row in zip(points, rows, strict=True) if part in row.collapsed], metric)
        for row in (row for row in table.rows if row.members > 1 and row.seeds):
            colour = _styles(table)[row.method]["color"]
            at = row.energy.mean, row.entries[part, metric].mean
            axes.plot(*at, "*", color=colour, mfc="white", ms=10, ls="none", zorder=4, label=row.variant)
        axes.set(xlabel="injected energy / energy of the features", ylabel=f"{part} {title(metric)}")

    return _panels(table, draw)


def axis_figure(table: Table, axis: str) -> Figure:
    """NLL and ECE along an axis of the study: strength, stage."""
    keys = ", ".join(dict.fromkeys(sweep.key.rpartition(".")[2] for sweep in table.study.strength.values()))

    def draw(axes: Axes, part: str, metric: str) -> None:
        names = list(dict.fromkeys(row.levels[axis] for row in table.rows if axis in row.levels))
        for method, style in _styles(table).items():
            rows = [row for row in table.rows if row.method == method and row.seeds and row.members == 1]
            along = [row for row in rows if axis in row.levels]
            if along:
                x = [float(row.levels[axis]) if axis == STRENGTH else names.index(row.levels[axis]) for row in along]
                points = [(at, row.entries[part, metric]) for at, row in zip(x, along, strict=True)]
                _with_spread(axes, points, method, style)
                _cross_out(axes, [p for p, row in zip(points, along, strict=True) if part in row.collapsed], metric)
            for row in rows:
                if axis not in row.levels:
                    axes.axhline(row.entries[part, metric].mean, color=style["color"], lw=1, ls="--", label=row.variant)
        if axis != STRENGTH:
            axes.set_xticks(range(len(names)), names)
        axes.set(xlabel=f"strength ({keys})" if axis == STRENGTH else axis, ylabel=f"{part} {title(metric)}")

    return _panels(table, draw)


def _with_spread(axes: Axes, points: Sequence[tuple[float, Entry]], label: str, style: Mapping[str, Any]) -> None:
    """Means with one standard deviation over seeds up and down."""
    x, y = [at for at, _ in points], [entry.mean for _, entry in points]
    spread = [0.0 if isnan(entry.std) else entry.std for _, entry in points]
    axes.errorbar(x, y, yerr=spread, label=label, lw=1.4, ms=6, elinewidth=1, **style)


def _cross_out(axes: Axes, points: Sequence[tuple[float, Entry]], metric: str) -> None:
    """A cross over the small ECE of a network that collapsed."""
    if points and metric == "ece":
        x, y = [at for at, _ in points], [entry.mean for _, entry in points]
        axes.plot(x, y, ls="none", marker="x", ms=11, mew=1.6, color=INK, label="collapsed")


def corruption_figure(table: Table, finished: Sequence[Finished], metric: str) -> Figure:
    """A metric of every corruption, averaged over severities, one bar per row of the table."""
    corruptions: list[str] = table.facts["corruptions"]
    rows = [row for row in table.rows if row.seeds and row.members == 1]
    figure = _figure(max(9.6, 1.2 * len(corruptions)), 2.4)
    axes = figure.subplots()
    width = 0.8 / len(rows)
    repeats = _repeats([_styles(table)[row.method]["color"] for row in rows])
    for i, row in enumerate(rows):
        means = [corruption_means(one.by_cell(metric)) for one in finished if one.run.variant == row.variant]
        values = [[mean[name] for mean in means] for name in corruptions]
        x = [k + (i - (len(rows) - 1) / 2) * width for k in range(len(corruptions))]
        spread = [stdev(v) if len(v) > 1 else 0.0 for v in values]
        colour = _styles(table)[row.method]["color"]
        height = [fsum(v) / len(v) for v in values]
        look = {"color": colour, "hatch": _HATCHES[repeats[i] % len(_HATCHES)], "edgecolor": "white", "linewidth": 0}
        axes.bar(x, height, width * 0.92, yerr=spread if any(spread) else None, label=row.variant, ecolor=INK, **look)
    axes.set_xticks(range(len(corruptions)), [name.replace("_", "\n") for name in corruptions])
    axes.set(ylabel=title(metric), ylim=(0, None) if metric != "gap" else None)
    if metric == "gap":
        axes.axhline(0.0, color=MUTED, lw=0.8)
    tidy(axes)
    legend(figure)
    return figure


def _repeats(colours: Sequence[str]) -> list[int]:
    """How often each colour came before: bars and curves have no markers, so hatches and dashes tell them apart."""
    return [colours[:k].count(colour) for k, colour in enumerate(colours)]


def severity_figure(table: Table, finished: Sequence[Finished], metrics: Sequence[str]) -> Figure:
    """Metrics against severity, averaged over corruptions and seeds; severity 0 is the clean set."""
    figure, panels = panel_grid(len(metrics))
    for axes, metric in zip(panels, metrics, strict=True):
        for row in (row for row in table.rows if row.seeds and row.members == 1):
            by_severity: dict[int, list[float]] = {}
            for one in finished:
                if one.run.variant == row.variant:
                    for (_, severity), value in one.by_cell(metric).items():
                        by_severity.setdefault(severity, []).append(value)
            x = sorted(by_severity)
            y = [fsum(by_severity[s]) / len(by_severity[s]) for s in x]
            axes.plot(x, y, label=row.variant, lw=1.4, ms=5, **row_styles(table)[row.variant])
            axes.set_xticks(x)  # those that were tested
        axes.set(xlabel="severity (0: clean)", ylabel=title(metric))
        tidy(axes)
    legend(figure)
    return figure


def curves_figure(table: Table, finished: Sequence[Finished]) -> Figure:
    """Training loss and validation NLL by epoch; one line per run."""
    figure, panels = panel_grid(2)
    styles = row_styles(table)
    repeats = dict(zip(styles, _repeats([style["color"] for style in styles.values()]), strict=True))
    for axes, key, name in zip(panels, ("train/loss", "val/nll"), ("training loss", "validation NLL"), strict=True):
        seen: set[str] = set()
        for one in (one for one in finished if one.run.variant in styles):
            points = [(line["epoch"] + 1, line[key]) for line in one.curves if key in line]
            if points:
                label = None if one.run.variant in seen else one.run.variant
                seen.add(one.run.variant)
                colour, dashes = styles[one.run.variant]["color"], _DASHES[repeats[one.run.variant] % len(_DASHES)]
                axes.plot(*zip(*points, strict=True), color=colour, ls=dashes, lw=1.3, alpha=0.9, label=label)
        axes.set(xlabel="epoch", ylabel=name, yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(_PlainLog(minor_thresholds=(1.5, 0.5)))
        tidy(axes)
    legend(figure)
    return figure


class _PlainLog(LogFormatter):
    """Labels the ticks that matplotlib would, as 0.6 instead of 6e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def reliability_figures(table: Table, finished: Sequence[Finished], part: str) -> dict[str, Figure]:
    """A reliability diagram per row, of its first seed: the clean set, or all corrupted cells pooled."""
    import torch

    from chaosgate.metrics import calibration_bins, effective_counts, reliability_figure

    figures: dict[str, Figure] = {}
    for row in table.rows:
        one = next((one for one in finished if one.run.variant == row.variant), None)
        if one is None or one.samples is None:
            continue
        cells = [cell for cell in one.samples.cells if (cell[0] == CLEAN) == (part == CLEAN)]
        if cells:
            chosen = one.samples.of(cells)
            confidence, correct = (torch.from_numpy(x.ravel()) for x in (chosen.confidence, chosen.correct))
            bins = calibration_bins(confidence.double(), correct, one.bins)
            effective = effective_counts(
                torch.from_numpy(chosen.confidence), torch.from_numpy(chosen.correct), one.bins
            )
            heading = f"{row.variant}, seed {one.run.seed}"
            figures[row.variant] = reliability_figure(bins, title=heading, effective=effective)
    return figures


def temperature_figure(table: Table) -> Figure:
    """A line per row from the metric (full marker) to the metric after temperature scaling (hollow marker).

    The dashed line is the reference after scaling: what noise has to beat to be worth more than one fitted number.
    """
    columns = [(part, metric) for part, metric in table.columns if metric in PLUS_T]
    columns = [(part, metric) for part, metric in columns if (part, scaled(metric)) in table.columns]
    figure, panels = panel_grid(len(columns))
    for axes, (part, metric) in zip(panels, columns, strict=True):
        _draw_temperature(axes, table, part, metric)
    legend(figure)
    return figure


def _draw_temperature(axes: Axes, table: Table, part: str, metric: str) -> None:
    rows = [row for row in table.rows if row.seeds]
    axes.plot([], [], "o", color=INK, ms=7, label="as trained")
    axes.plot([], [], "o", color=INK, ms=7, mfc="white", label="+T")
    for height, row in enumerate(reversed(rows)):
        before, after = row.entries[part, metric].mean, row.entries[part, scaled(metric)].mean
        colour, marker = (row_styles(table)[row.variant][key] for key in ("color", "marker"))
        axes.plot([before, after], [height, height], color=colour, lw=1.6, zorder=1)
        axes.plot(before, height, marker, color=colour, ms=7)
        axes.plot(after, height, marker, color=colour, ms=7, mfc="white")
        if row.is_reference and not isnan(after):
            axes.axvline(after, color=MUTED, lw=1, ls="--", label=f"{row.variant} +T", zorder=0)
    names = [
        row.variant + (" (collapsed)" if part in row.collapsed else "") + (f" {ON_TEST}" if row.fitted_on_test else "")
        for row in reversed(rows)
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.set(xlabel=f"{part} {title(metric)}", ylim=(-0.6, len(rows) - 0.4))
    if any(row.fitted_on_test for row in rows):
        axes.plot([], [], " ", label=f"{ON_TEST} {FITTED_ON_TEST}")
    tidy(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e4e6ea", lw=0.7)
    axes.tick_params(axis="y", colors=INK)


def _panels(table: Table, draw: Callable[[Axes, str, str], None]) -> Figure:
    """Parts (clean, corrupted) by NLL and ECE, as far as the table has them."""
    columns = [column for column in table.columns if column[1] in ("nll", "ece")]
    figure, panels = panel_grid(len(columns))
    for axes, (part, metric) in zip(panels, columns, strict=True):
        draw(axes, part, metric)
        tidy(axes)
    legend(figure)
    return figure


def _styles(table: Table) -> dict[str, dict[str, Any]]:
    return method_styles(list(table.study.methods), table.study.reference)


def row_styles(table: Table) -> dict[str, dict[str, Any]]:
    """The same for the rows of a table, of which several may be of one method."""
    variants = [row.variant for row in table.rows]
    references = [row.variant for row in table.rows if row.is_reference]
    if len({row.method for row in table.rows}) == len(variants):
        return {row.variant: _styles(table)[row.method] for row in table.rows}
    return method_styles(variants, references[0] if references else "")


def panel_grid(count: int) -> tuple[Figure, list[Axes]]:
    """Panels in rows of two."""
    rows = -(-count // 2)
    figure = _figure(9.6, 3.0 * rows)
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Quiet spines, ticks and a light horizontal grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(which="both", colors=INK, labelsize=8.5, length=3)
    axes.grid(axis="y", color="#e4e6ea", lw=0.7)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, fontsize=9)


def legend(figure: Figure) -> None:
    """One legend above all panels, made from all of them."""
    named: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    handles, labels = list(named.values()), list(named)
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=min(6, len(labels)), frameon=False, fontsize=9)


def numbers_of(figure: Figure) -> list[dict[str, Any]]:
    """What a figure shows, as plain data: for each panel its labels, the points of its lines, its bars and segments."""

    def points(values: Any) -> list[list[float | None]]:
        return [[None if isnan(one) else float(f"{one:.6g}") for one in row] for row in np.asarray(values, float)]

    return [
        {
            "x": axes.get_xlabel(),
            "y": axes.get_ylabel(),
            "title": axes.get_title(),
            "lines": [points(line.get_xydata()) for line in axes.lines],
            "bars": points([[*one.get_xy(), one.get_width(), one.get_height()] for one in _bars(axes)]),
            "segments": [points(path.vertices) for one in axes.collections for path in one.get_paths()],
        }
        for axes in figure.axes
    ]


def _bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]
