"""The pictures of a study report, drawn without touching matplotlib's global state.

Bars are 95 % intervals of the difference to the reference, put around the value: a method whose bar
does not reach the reference's value differs from it.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
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
from chaosgate.study.report.names import CLEAN, CORRUPTED, MAIN, ON_TEST, PRIMARY, scaled, title

ENERGY = "injected energy"
# Okabe and Ito's palette, safe under the common color-vision deficiencies, then Tol's dark tones.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_COLORS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#661100", "#44AA99", "#AA4499")
_MARKERS = "sD^vPXp"  # seven and twelve: 84 different pairs
INK, MUTED = "#1f2430", "#8a8f99"
_LOOK = "seaborn-v0_8-whitegrid"


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
    for axis in dict.fromkeys(
        [ENERGY, *(axis for row in results.rows.values() for axis in row.levels)]
    ):
        drawn[axis.capitalize()] = {f"ECE and NLL against {axis}": axis_figure(results, axis)}
    if results.severities:
        for heading, parts in (
            ("Severity", [CLEAN, *results.severities]),
            ("Corruption", results.corruptions),
        ):
            drawn[heading] = {f"metrics by {heading}": part_figure(results, shown, parts)}
    bars = f"Bars: 95 % intervals of the difference to {results.study.reference}, around the value."
    found = {heading: Block(images, bars) for heading, images in drawn.items()}
    for part, text in (
        (CLEAN, "The first seed of each method, clean test set."),
        (CORRUPTED, "All corrupted cells pooled: the ECE above each is not that of the tables."),
    ):
        if diagrams := reliability_figures(results, shown, part):
            found[f"Reliability, {part}"] = Block(diagrams, text)
    return found


def _styles_of(results: Results) -> dict[str, dict[str, str]]:
    """A color and a marker for every row; rows of one method share them, the reference is gray."""
    reference = results.study.reference
    others = [one for one in results.study.methods if one != reference]
    looks = dict(zip(others, zip(cycle(_COLORS), cycle(_MARKERS)), strict=False))
    looks[reference] = ("#5a5f6a", "o")
    pairs = {row.variant: looks[row.method] for row in results.rows.values()}
    return {variant: {"color": pair[0], "marker": pair[1]} for variant, pair in pairs.items()}


def _lines(results: Results, part: str, metric: str, variants: Iterable[str]) -> pd.DataFrame:
    """Values of a column, with how far their bars reach down and up."""
    own = results.lines(variants=variants, part=part, metric=metric)
    own = own[own.value.notna()]
    down, up = (own.difference - own.lo).fillna(0.0), (own.hi - own.difference).fillna(0.0)
    return own.assign(y=own.value, down=down, up=up)


def _draw(axes: Axes, lines: pd.DataFrame, look: Mapping[str, Any], bars: str = "yerr") -> None:
    """Points at x and y with their bars."""
    x, y, *ends = (lines[column].tolist() for column in ("x", "y", "down", "up"))
    axes.errorbar(x, y, **{bars: ends, "elinewidth": 1, "ms": 6, "lw": 1.4, **look})


def _figure(
    results: Results,
    panels: Mapping[str, pd.DataFrame],
    by: str,
    label: str,
    ticks: Sequence[str] = (),
    columns: int = 2,
    **look: Any,
) -> Figure:
    """A series for every method or row; what has no place x is a horizontal line."""
    styles, (figure, grid) = _styles_of(results), _grid(len(panels), columns=columns)
    for axes, (name, lines) in zip(grid, panels.items(), strict=True):
        placed = lines[lines.x.notna()].sort_values("x")
        for series, own in placed.groupby(by, sort=False):
            _draw(axes, own, {"label": series, **styles[own.variant.iloc[0]], **look})
        lost = placed[placed.collapsed.astype(bool) & (placed.metric == "ece")]
        if len(lost):
            cross: Any = {"ms": 11, "mew": 1.6, "color": INK, "label": "collapsed"}
            axes.plot(lost.x.tolist(), lost.y.tolist(), "x", **cross)
        for line in lines[lines.x.isna()].itertuples():
            color = styles[line.variant]["color"]
            axes.axhline(line.y, lw=1, ls="--", color=color, label=line.variant)
        if ticks:
            axes.set_xticks(range(len(ticks)), [tick.replace("_", "\n") for tick in ticks])
        axes.set(xlabel=label, ylabel=name)
    return _with_legend(figure)


def axis_figure(results: Results, axis: str) -> Figure:
    """NLL and ECE against the injected energy, which all methods have, or along an axis."""
    levels = {row.variant: row.levels[axis] for row in results.rows.values() if axis in row.levels}
    label, ticks = axis, list(dict.fromkeys(levels.values()))
    at = {variant: float(ticks.index(level)) for variant, level in levels.items()}
    if axis == ENERGY:
        at = results.lines(metric="energy").set_index("variant").value.to_dict()
        label = "injected energy / energy of the features"
    elif axis == STRENGTH:
        keys = dict.fromkeys(one.key.rpartition(".")[2] for one in results.study.strength.values())
        at, label = {one: float(x) for one, x in levels.items()}, f"strength ({', '.join(keys)})"
    panels = {}
    for part, metric in _columns(results):
        lines = _lines(results, part, metric, results.rows)
        x = lines.variant.map(at).where(lines.members == 1)
        panels[f"{part} {title(metric)}"] = lines.assign(x=x)
    return _figure(results, panels, "method", label, ticks if label == axis else ())


def part_figure(results: Results, variants: Sequence[str], parts: Sequence[str]) -> Figure:
    """Metrics of several parts, rows side by side."""
    rows, panels = [one for one in variants if results.rows[one].members == 1], {}
    for metric in [one for one in ("top1", PRIMARY, "nll", "ece", "gap") if one in results.metrics]:
        lines = pd.concat([_lines(results, part, metric, rows) for part in parts])
        shift = 0.8 * ((lines.variant.map(rows.index) + 0.5) / len(rows) - 0.5)
        panels[title(metric)] = lines.assign(x=lines.part.map(parts.index) + shift)
    return _figure(results, panels, "variant", "", parts, columns=1, ls="none")


def temperature_figure(results: Results, variants: Sequence[str]) -> Figure:
    """Every row as trained (full marker) and after temperature scaling (hollow marker).

    The dashed line is the reference after scaling: what noise has to beat to be worth more than one
    fitted number.
    """
    styles, columns = _styles_of(results), _columns(results)
    figure, panels = _grid(len(columns), 0.42 * len(variants) + 1.2)
    for axes, (part, metric) in zip(panels, columns, strict=True):
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
                    look: Any = {"color": MUTED, "lw": 1, "ls": "--" if fill else ":", "zorder": 0}
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


def _columns(results: Results) -> list[tuple[str, str]]:
    """NLL and ECE of the clean and the corrupted images, as far as there are any."""
    return [one for one in product(MAIN, ("nll", "ece")) if one in results.columns]


def _grid(count: int, height: float = 3.0, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Panels in rows, with quiet spines and a light grid."""
    rows = max(1, -(-count // columns))
    with style.context(_LOOK):
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
    short = partial(re.sub, r"(?<=\d\.\d\d)\d+", "")
    return re.sub(r'"[^"]*"', lambda found: short(found[0]), out.getvalue())  # not in labels
