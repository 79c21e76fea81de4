"""The pictures of a study report, drawn without touching matplotlib's global state.

Bars are 95 % intervals of the difference to the reference, put around the value: a method whose bar
does not reach the reference's value differs from it.
"""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from typing import Any, NamedTuple

import pandas as pd
import torch
from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chaosgate.metrics import reliability_figure
from chaosgate.metrics.functional import Reliability, bin_edges
from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report.frame import Results
from chaosgate.study.report.names import CLEAN, CORRUPTED, MAIN, PRIMARY, scaled, title

ENERGY, TEMPERATURE = "injected energy", "temperature"
# Okabe and Ito's palette, safe under the common color-vision deficiencies, then Tol's dark tones.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_COLORS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#661100", "#44AA99", "#AA4499")
_MARKERS = "sD^vPXp"  # seven and twelve: 84 different pairs
INK = "#1f2430"


class Block(NamedTuple):
    """Pictures side by side below a sentence."""

    images: Mapping[str, Figure]
    text: str


def pictures_of(results: Results) -> dict[str, Block]:
    """Headings with what stands below them; figures by method show the first table."""
    if not results.metrics:
        return {}
    shown = [one for one in next(iter(results.tables.values())) if results.rows[one].seeds]
    bars = f"Bars: 95 % intervals of the difference to {results.study.reference}, around the value."
    found = {}
    axes = [*[TEMPERATURE] * (PRIMARY in results.metrics), ENERGY]
    axes += [axis for row in results.rows.values() for axis in row.levels]
    axes += ["severity", "corruption"] * bool(results.severities)
    for axis in dict.fromkeys(axes):
        about = f"against {axis}"
        if axis == TEMPERATURE:
            about = "before and after temperature scaling"
        image = {f"ECE and NLL {about}": axis_figure(results, axis, shown)}
        found[axis.capitalize()] = Block(image, bars)
    for part, text in (
        (CLEAN, "The first seed of each method, clean test set."),
        (CORRUPTED, "All corrupted cells pooled: the ECE above each is not that of the tables."),
    ):
        if diagrams := reliability_figures(results, shown, part):
            found[f"Reliability, {part}"] = Block(diagrams, text)
    return found


def axis_figure(results: Results, axis: str, variants: Sequence[str]) -> Figure:
    """NLL and ECE along an axis: of the study, injected energy, severity, corruption, temperature.

    What has no place on the axis is a horizontal line. Before and after temperature scaling (hollow
    markers) the reference has one, too: what noise has to beat to be worth more than one fitted
    number.
    """
    panels = [one for one in product(MAIN, ("nll", "ece")) if one in results.columns]
    lines, by, label, shift = _lines(results), "method", axis, 0.0
    column, ticks = axis, list[str]()
    if axis == ENERGY:
        label = "injected energy / energy of the features"
        places = lines.variant.map(lines[lines.metric == "energy"].set_index("variant").value)
    elif axis == STRENGTH:
        keys = (one.key.rpartition(".")[2] for one in results.study.strength.values())
        label, places = f"strength ({', '.join(dict.fromkeys(keys))})", lines[axis].astype(float)
    else:
        if axis in ("severity", "corruption", TEMPERATURE):
            by, lines = "variant", lines[lines.variant.isin(variants)]
        if axis == TEMPERATURE:
            column, label = "variant", "hollow: after temperature scaling (+T)"
        elif by == "variant":
            column, panels = "part", [("", "nll"), ("", "ece")]
            ticks = [CLEAN, *results.severities] if axis == "severity" else results.corruptions
            shift = 0.8 * ((lines.variant.map(variants.index) + 0.5) / len(variants) - 0.5)
        ticks = ticks or list(lines[lines.members == 1][column].dropna().unique())
        places = lines[column].map({tick: k for k, tick in enumerate(ticks)}) + shift
    lines = lines.assign(x=places.where(lines.members == 1))
    if column == "part":
        lines = lines[lines.x.notna()]
    figure, grid = _grid(len(panels))
    for axes, (part, metric) in zip(grid, panels, strict=True):
        for name in (metric, scaled(metric))[: 1 + (axis == TEMPERATURE)]:
            own = lines[(lines.metric == name) & (lines.part == (part or lines.part))]
            placed = own[own.x.notna()].sort_values("x")
            hollow = {"mfc": "white"} if name != metric else {}
            for one, series in placed.groupby(by, sort=False):
                ends = [series.difference - series.lo, series.hi - series.difference]
                look = {key: series[key].iloc[0] for key in ("color", "marker")} | hollow
                look |= {"yerr": [end.fillna(0.0) for end in ends], "elinewidth": 1, "lw": 1.4}
                look |= {"label": f"{'_' * bool(hollow)}{one}", "ls": "-" if part else "none"}
                axes.errorbar(series.x, series.value, ms=6, **look)
            lost = placed[placed.collapsed.astype(bool) & (placed.metric == "ece")]
            if len(lost):
                axes.plot(lost.x, lost.value, "x", ms=11, mew=1.6, color=INK, label="collapsed")
            alone = own[own.x.isna() | ((axis == TEMPERATURE) & own.compared_to.eq(""))]
            for line in alone.itertuples():
                look = {"lw": 1, "ls": ":" if hollow else "--", "color": line.color}
                axes.axhline(line.value, label=f"{line.variant}{'+T' * bool(hollow)}", **look)
        if ticks:
            names = [tick.replace("_", "\n") for tick in ticks]
            axes.set_xticks(range(len(ticks)), names, rotation=90 * (axis == TEMPERATURE))
        axes.set(xlabel=label, ylabel=f"{part} {title(metric)}".strip())
    return _with_legend(figure)


def _lines(results: Results) -> pd.DataFrame:
    """Numbers to draw, with the color and marker of their method; the reference is gray."""
    others = [one for one in results.study.methods if one != results.study.reference]
    looks = dict(zip(others, zip(cycle(_COLORS), cycle(_MARKERS)), strict=False))
    looks[results.study.reference] = ("#5a5f6a", "o")
    own = results.lines(variants=results.rows)
    own = own[own.value.notna()]
    color, marker = (own.method.map({m: look[k] for m, look in looks.items()}) for k in (0, 1))
    return own.assign(color=color, marker=marker)


def reliability_figures(results: Results, variants: Sequence[str], part: str) -> dict[str, Figure]:
    """A reliability diagram per row, of its first seed: clean, or all corrupted cells pooled."""
    figures = {}
    for row in [results.rows[one] for one in variants if results.rows[one].members == 1]:
        found = results.images.reliability.get(((row.variant, row.seeds[0]), part))
        if found is not None:
            count, confidence, correct, effective = map(torch.from_numpy, found)
            bins = Reliability(count, confidence, correct, bin_edges(len(effective)))
            heading = f"{row.variant}, seed {row.seeds[0]}"
            figure = reliability_figure(bins, title=heading, effective=effective)
            figures[f"reliability of {row.variant}, {part}"] = figure
    return figures


def _grid(count: int, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """Panels in rows of two, with quiet spines and a light grid."""
    rows = max(1, -(-count // 2))
    with style.context("seaborn-v0_8-whitegrid"):
        figure = Figure(figsize=(9.6, height * rows), layout="constrained")
        panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]


def _with_legend(figure: Figure) -> Figure:
    """One legend above all panels."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    named = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    look: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "fontsize": 9}
    figure.legend(list(named.values()), list(named), ncols=min(6, len(named) or 1), **look)
    return figure


def svg_of(figure: Figure) -> str:
    """The figure as SVG with two decimals: the same bytes for the same numbers."""
    out = io.StringIO()
    look: Any = {"svg.fonttype": "none", "svg.hashsalt": "chaosgate", "font.family": "sans-serif"}
    with rc_context(look):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    # not in labels, which are between tags
    return re.sub(r"(?<=\d\.\d\d)\d+(?=[^<>]*>)", "", out.getvalue())
