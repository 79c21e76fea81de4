"""The pictures of a study report, drawn without matplotlib's global state.

Bars are 95 % intervals of the difference to the reference, put around the value: a method differs
significantly from the reference if its bar does not reach the value of the reference.
"""

import io
from collections.abc import Sequence
from itertools import product
from typing import Any

from matplotlib import rc_context, style
from matplotlib.figure import Figure

from chaosgate.study.report.frame import Results
from chaosgate.study.report.names import MAIN, PRIMARY, scaled, title

ENERGY, TEMPERATURE = "injected energy", "temperature"
LABELS = {
    ENERGY: "injected energy / energy of the features",
    TEMPERATURE: "hollow: after temperature scaling (+T)",
}
GRAY = "#5a5f6a"


def pictures_of(results: Results) -> dict[str, str]:
    """Headings with figures as SVG; that of the temperature shows the first table."""
    if not {"nll", "ece"} & {*results.metrics}:
        return {}
    shown = [one for one in next(iter(results.tables.values())) if results.rows[one].seeds]
    axes = [*[TEMPERATURE] * (PRIMARY in results.metrics), ENERGY]
    axes += [axis for row in results.rows.values() for axis in row.levels]
    figures = {axis: axis_figure(results, axis, shown) for axis in dict.fromkeys(axes)}
    return {axis.capitalize(): svg_of(figure) for axis, figure in figures.items()}


def axis_figure(results: Results, axis: str, variants: Sequence[str]) -> Figure:
    """NLL and ECE along an axis of the study, the injected energy, or by method (temperature).

    The reference and ensembles are horizontal lines, also after temperature scaling: noise has to
    beat this line to be worth more than one fitted number.
    """
    lines = results.lines(variants=results.rows)
    lines, ticks = lines[lines.value.notna()], list[str]()
    if axis == ENERGY:
        places = lines.variant.map(lines[lines.metric == "energy"].set_index("variant").value)
    else:
        if axis == TEMPERATURE:
            lines = lines[lines.variant.isin(variants)]
        column = lines.variant if axis == TEMPERATURE else lines[axis]
        ticks = list(column[lines.members == 1].dropna().unique())
        places = column.map({tick: k for k, tick in enumerate(ticks)})
    lines = lines.assign(x=places.where(lines.members == 1))
    others = [one for one in results.study.methods if one != results.study.reference]
    parts = [part for part in MAIN if part in results.parts]
    metrics = [metric for metric in ("nll", "ece") if metric in results.metrics]
    with style.context("seaborn-v0_8-whitegrid"):
        figure = Figure(figsize=(9.6, 3 * len(parts)), layout="constrained")
        grid = figure.subplots(len(parts), len(metrics), squeeze=False).flat
    for axes, (part, metric) in zip(grid, product(parts, metrics), strict=True):
        for name in (metric, scaled(metric))[: 1 + (axis == TEMPERATURE)]:
            own = lines[(lines.metric == name) & (lines.part == part)]
            placed = own[own.x.notna()].sort_values("x")
            hollow = name != metric
            for method, series in placed.groupby("method", sort=False):
                ends = [series.difference - series.lo, series.hi - series.difference]
                look: dict[str, Any] = {"mfc": "white"} if hollow else {"label": method}
                look |= {"color": GRAY, "marker": "o"}
                if method in others:
                    k = others.index(method)
                    look |= {"color": f"C{k % 10}", "marker": "sD^vPXp"[k % 7]}
                look["yerr"] = [end.fillna(0.0) for end in ends]
                axes.errorbar(series.x, series.value, ms=6, lw=1.4, elinewidth=1, **look)
            alone = own[own.x.isna() | ((axis == TEMPERATURE) & own.compared_to.eq(""))]
            for line in alone.itertuples():
                look = {"lw": 1, "ls": ":" if hollow else "--", "color": GRAY}
                axes.axhline(line.value, label=f"{line.variant}{'+T' * hollow}", **look)
        if ticks:
            names = [tick.replace("_", "\n") for tick in ticks]
            axes.set_xticks(range(len(ticks)), names, rotation=90 * (axis == TEMPERATURE))
        axes.set(xlabel=LABELS.get(axis, axis), ylabel=f"{part} {title(metric)}")
    place: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "ncols": 6}
    figure.legend(*figure.axes[-1].get_legend_handles_labels(), **place)
    return figure


def svg_of(figure: Figure) -> str:
    """The figure as SVG: the same bytes for the same numbers."""
    out = io.StringIO()
    look: Any = {"svg.fonttype": "none", "svg.hashsalt": "chaosgate", "font.family": "sans-serif"}
    with rc_context(look):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    return out.getvalue()
