"""The pictures of a study report, drawn without touching matplotlib's global state.

Bars are 95 % intervals of the difference to the reference, put around the value: a method whose bar
does not reach the reference's value differs from it.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import pandas as pd
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chaosgate.metrics import reliability_figure
from chaosgate.metrics.functional import Reliability, bin_edges
from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report.frame import Results
from chaosgate.study.report.names import CLEAN, CORRUPTED, MAIN, ON_TEST, PRIMARY, scaled, title

ENERGY = "injected energy"
# Okabe and Ito's palette, safe under the common color-vision deficiencies, then Tol's dark tones.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_COLORS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#661100", "#44AA99", "#AA4499")
_MARKERS = "sD^vPXp"  # seven and twelve: 84 different pairs
INK, MUTED = "#1f2430", "#8a8f99"
_LOOK: Any = {
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e6ea", "grid.linewidth": 0.7},
    **{"xtick.color": INK, "ytick.color": INK, "axes.labelcolor": INK, "axes.labelsize": 9},
    **{"xtick.labelsize": 8.5, "ytick.labelsize": 8.5},
}


class Block(NamedTuple):
    """Pictures side by side below a sentence."""

    images: Mapping[str, Figure]
    text: str


def pictures_of(results: Results) -> dict[str, Block]:
    """Headings with what stands below them; figures by method show the first table."""
    if not results.metrics:
        return {}
    shown = [one for one in next(iter(results.tables.values())) if results.rows[one].seeds]
    drawn: dict[str, dict[str, Figure]] = {}
    if PRIMARY in results.metrics:
        figure = temperature_figure(results, shown)
        drawn["Temperature"] = {"ECE and NLL before and after temperature scaling": figure}
    axes = dict.fromkeys(axis for row in results.rows.values() for axis in row.levels)
    for axis in (ENERGY, *axes):
        drawn[axis.capitalize()] = {f"ECE and NLL against {axis}": axis_figure(results, axis)}
    for heading, places in places_of(results).items():
        drawn[heading] = {f"metrics by {heading}": part_figure(results, shown, places)}
    bars = f"Bars: 95 % intervals of the difference to {results.study.reference}, around the value."
    found = {heading: Block(images, bars) for heading, images in drawn.items()}
    for part, text in (
        (CLEAN, "The first seed of each method, clean test set."),
        (CORRUPTED, "All corrupted cells pooled: the ECE above each is not that of the tables."),
    ):
        if diagrams := reliability_figures(results, shown, part):
            found[f"Reliability, {part}"] = Block(diagrams, text)
    return found


def _styles_of(results: Results) -> dict[str, dict[str, Any]]:
    """A color and a marker for every row; rows of one method share them, the reference is gray."""
    looks = {results.study.reference: {"color": "#5a5f6a", "marker": "o"}}
    for k, method in enumerate(one for one in results.study.methods if one not in looks):
        marker = _MARKERS[k % len(_MARKERS)]
        looks[method] = {"color": _COLORS[k % len(_COLORS)], "marker": marker}
    return {row.variant: looks[row.method] for row in results.rows.values()}


def _lines(results: Results, part: str, metric: str, variants: Iterable[str]) -> pd.DataFrame:
    """Values of a column, with how far their bars reach down and up."""
    own = results.lines(variants=variants, part=part, metric=metric)
    own = own[own.value.notna()]
    down, up = (own.difference - own.lo).fillna(0.0), (own.hi - own.difference).fillna(0.0)
    return own.assign(down=down, up=up)


def _draw(axes: Axes, lines: pd.DataFrame, look: Mapping[str, Any], bars: str = "yerr") -> None:
    """Points at x and y with their bars."""
    x, y, *ends = (lines[column].tolist() for column in ("x", "y", "down", "up"))
    axes.errorbar(x, y, **{bars: ends, "elinewidth": 1, "ms": 6, **look})


def axis_figure(results: Results, axis: str) -> Figure:
    """NLL and ECE against the injected energy, which all methods have, or along an axis.

    Rows without a place on it, and ensembles, are horizontal lines.
    """
    levels = {row.variant: row.levels[axis] for row in results.rows.values() if axis in row.levels}
    label, names = axis, list(dict.fromkeys(levels.values()))
    at = {variant: float(names.index(level)) for variant, level in levels.items()}
    if axis == ENERGY:
        at = results.lines(metric="energy").set_index("variant").value.to_dict()
        label = "injected energy / energy of the features"
    elif axis == STRENGTH:
        keys = dict.fromkeys(one.key.rpartition(".")[2] for one in results.study.strength.values())
        at, label = {one: float(x) for one, x in levels.items()}, f"strength ({', '.join(keys)})"
    styles, (figure, panels) = _styles_of(results), _panels(results)
    for axes, part, metric in panels:
        lines = _lines(results, part, metric, results.rows)
        lines = lines.assign(x=lines.variant.map(at), y=lines.value).sort_values("x")
        placed = lines[lines.x.notna() & (lines.members == 1)]
        for method, own in placed.groupby("method", sort=False):
            _draw(axes, own, {"lw": 1.4, "label": method, **styles[own.variant.iloc[0]]})
        lost = placed[placed.collapsed.astype(bool) & (metric == "ece")].assign(down=0.0, up=0.0)
        if len(lost):
            look = {"ls": "", "marker": "x", "ms": 11, "mew": 1.6, "color": INK}
            _draw(axes, lost, {**look, "label": "collapsed"})
        for line in lines.drop(placed.index).itertuples():
            color = styles[line.variant]["color"]
            axes.axhline(line.y, lw=1, ls="--", color=color, label=line.variant)
        if label == axis:
            axes.set_xticks(range(len(names)), names)
        axes.set(xlabel=label, ylabel=f"{part} {title(metric)}")
    return _with_legend(figure)


def temperature_figure(results: Results, variants: Sequence[str]) -> Figure:
    """Every row as trained (full marker) and after temperature scaling (hollow marker).

    The dashed line is the reference after scaling: what noise has to beat to be worth more than one
    fitted number.
    """
    styles, (figure, panels) = _styles_of(results), _panels(results, 0.42 * len(variants) + 1.2)
    for axes, part, metric in panels:
        for name, lift, fill, label in (
            (metric, -0.16, None, "as trained"),
            (scaled(metric), 0.16, "white", "+T"),
        ):
            axes.plot([], [], "o", color=INK, ms=6, mfc=fill, label=label)
            lines = _lines(results, part, name, variants)
            places = lines.variant.map(variants.index) + lift
            for variant, own in lines.assign(x=lines.value, y=places).groupby("variant"):
                _draw(axes, own, {"mfc": fill, **styles[variant]}, bars="xerr")
                if not results.rows[variant].reference:  # bars are about the distance to it
                    look = {"color": MUTED, "lw": 1, "ls": "--" if fill else ":", "zorder": 0}
                    axes.axvline(own.x.iloc[0], label=f"{variant}{' +T' if fill else ''}", **look)
        names = [
            one
            + " (collapsed)" * ((one, part) in results.collapsed)
            + f" {ON_TEST}" * results.rows[one].on_test
            for one in variants
        ]
        axes.set_yticks(range(len(variants)), names)
        axes.set(xlabel=f"{part} {title(metric)}", ylim=(len(variants) - 0.5, -0.5))
    return _with_legend(figure)


def places_of(results: Results) -> dict[str, dict[str, float]]:
    """Where parts stand in a figure by corruption, and in one by severity; severity 0 is clean."""
    by_name = {name: float(k) for k, name in enumerate(results.corruptions)}
    by_level = {CLEAN: 0.0} | {name: float(k) for name, k in results.severities.items()}
    return {"Corruption": by_name, "Severity": by_level} if by_name else {}


def part_figure(results: Results, variants: Sequence[str], places: Mapping[str, float]) -> Figure:
    """Metrics of several parts, each at its place, rows side by side."""
    metrics = [one for one in ("top1", PRIMARY, "nll", "ece", "gap") if one in results.metrics]
    figure, panels = _grid(len(metrics), columns=1)
    rows, styles = [one for one in variants if results.rows[one].members == 1], _styles_of(results)
    for axes, metric in zip(panels, metrics, strict=True):
        for k, variant in enumerate(rows):
            own = pd.concat([_lines(results, part, metric, [variant]) for part in places])
            own["x"] = own.part.map(places) + 0.8 * ((k + 0.5) / len(rows) - 0.5)
            look = {"ls": "none", "ms": 4.5, "label": variant, **styles[variant]}
            _draw(axes, own.assign(y=own.value), look)
        axes.set_xticks(list(places.values()), [name.replace("_", "\n") for name in places])
        axes.set_ylabel(title(metric))
    return _with_legend(figure)


def reliability_figures(results: Results, variants: Sequence[str], part: str) -> dict[str, Figure]:
    """A reliability diagram per row, of its first seed: clean, or all corrupted cells pooled."""
    figures, errors = {}, results.images
    for variant in variants:
        found = errors.of_row(errors.reliability[MAIN.index(part)], variant)
        if len(found) and results.rows[variant].members == 1:
            count, confidence, correct, effective = map(torch.from_numpy, found[0])
            bins = Reliability(count, confidence, correct, bin_edges(len(effective)))
            heading = f"{variant}, seed {results.rows[variant].seeds[0]}"
            figure = reliability_figure(bins, title=heading, effective=effective)
            figures[f"reliability of {variant}, {part}"] = figure
    return figures


def _panels(results: Results, height: float = 3.0) -> tuple[Figure, list[tuple[Axes, str, str]]]:
    """Panels for NLL and ECE of the clean and the corrupted images, as far as there are any."""
    columns = [one for one in product(MAIN, ("nll", "ece")) if one in results.columns]
    figure, panels = _grid(len(columns), height)
    return figure, [(axes, *column) for axes, column in zip(panels, columns, strict=True)]


def _grid(count: int, height: float = 3.0, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Panels in rows, with quiet spines and a light grid."""
    rows = max(1, -(-count // columns))
    with rc_context(_LOOK):
        figure = Figure(figsize=(9.6, height * rows), layout="constrained")
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]


def _with_legend(figure: Figure) -> Figure:
    """One legend above all panels."""
    named: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    look: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "fontsize": 9}
    figure.legend(list(named.values()), list(named), ncols=min(6, len(named) or 1), **look)
    return figure


def svg_of(figure: Figure) -> str:
    """The figure as SVG with two decimals: the same bytes for the same numbers."""
    out = io.StringIO()
    look: Any = {"svg.fonttype": "none", "svg.hashsalt": "chaosgate", "font.family": "sans-serif"}
    with rc_context(look):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    return re.sub(r"(?<=\d\.\d\d)\d+", "", out.getvalue())
