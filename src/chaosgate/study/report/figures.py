"""The pictures of a study report, drawn without touching matplotlib's global state.

Bars are 95 % intervals of the difference to the reference, put around the value: a method whose bar
does not reach the reference's value differs from it.
"""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report.frame import Results
from chaosgate.study.report.names import CLEAN, MAIN, ON_TEST, scaled, title

# Okabe and Ito's palette, safe under the common color-vision deficiencies, then Tol's dark tones.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_COLORS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#661100", "#44AA99", "#AA4499")
_MARKERS = ("s", "D", "^", "v", "P", "X", "p")  # seven and twelve: 84 different pairs
INK, MUTED = "#1f2430", "#8a8f99"
_LOOK: Any = {
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e6ea", "grid.linewidth": 0.7},
    **{"xtick.color": INK, "ytick.color": INK, "axes.labelcolor": INK, "axes.labelsize": 9},
    **{"xtick.labelsize": 8.5, "ytick.labelsize": 8.5},
}


def styles_of(results: Results) -> dict[str, dict[str, Any]]:
    """A color and a marker for every row; rows of one method share them, the reference is gray."""
    reference = results.study.reference
    looks: dict[str, dict[str, Any]] = {reference: {"color": "#5a5f6a", "marker": "o"}}
    others = (method for method in results.study.methods if method != reference)
    for k, method in enumerate(others):
        marker = _MARKERS[k % len(_MARKERS)]
        looks[method] = {"color": _COLORS[k % len(_COLORS)], "marker": marker}
    return {row.variant: looks[row.method] for row in results.rows.values()}


def _lines(results: Results, part: str, metric: str, variants: Sequence[str]) -> pd.DataFrame:
    """Values of a column by row, with how far their bars reach down and up."""
    own = results.lines(variants=variants, part=part, metric=metric)
    own = own[own.value.notna()].set_index("variant")
    down, up = (own.difference - own.lo).fillna(0.0), (own.hi - own.difference).fillna(0.0)
    return own.assign(down=down, up=up).reindex([one for one in variants if one in own.index])


def _panels(results: Results, needed: Sequence[str] = ("nll", "ece")) -> list[tuple[str, str]]:
    """NLL and ECE of the clean and the corrupted images, as far as there are any."""
    known = {key[1:] for key in results.by_seed}
    return [
        (part, metric)
        for part in MAIN
        for metric, need in zip(("nll", "ece"), needed, strict=True)
        if (part, need) in known
    ]


def axis_figure(results: Results, axis: str) -> Figure:
    """NLL and ECE against the injected energy, which all methods have, or along an axis.

    Rows without a place on it are horizontal lines; ensembles are stars.
    """
    levels = {row.variant: row.levels[axis] for row in results.rows.values() if axis in row.levels}
    label, names = axis, list(dict.fromkeys(levels.values()))
    if axis == "injected energy":
        energy = results.lines(metric="energy").set_index("variant").value.dropna()
        at, label = energy.to_dict(), "injected energy / energy of the features"
    elif axis == STRENGTH:
        keys = dict.fromkeys(one.key.rpartition(".")[2] for one in results.study.strength.values())
        at, label = {one: float(x) for one, x in levels.items()}, f"strength ({', '.join(keys)})"
    else:
        at = {variant: float(names.index(level)) for variant, level in levels.items()}
    columns, styles = _panels(results), styles_of(results)
    figure, panels = _grid(len(columns))
    for axes, (part, metric) in zip(panels, columns, strict=True):
        lines = _lines(results, part, metric, list(results.rows))
        lines = lines.assign(x=[at.get(variant, np.nan) for variant in lines.index])
        placed = lines[lines.x.notna() & (lines.members == 1)].sort_values("x")
        for method, own in placed.groupby("method", sort=False):
            bars = [own.down.tolist(), own.up.tolist()]
            look = {"lw": 1.4, "ms": 6, "elinewidth": 1, **styles[own.index[0]]}
            axes.errorbar(own.x.tolist(), own.value.tolist(), bars, label=str(method), **look)
        lost = placed[placed.collapsed.astype(bool)] if metric == "ece" else placed[:0]
        cross: dict[str, Any] = {
            "ms": 11,
            "mew": 1.6,
            "color": INK,
            "label": "collapsed" if len(lost) else None,
        }
        axes.plot(lost.x.tolist(), lost.value.tolist(), "x", **cross)
        for variant, line in lines.drop(placed.index).iterrows():
            look = {"color": styles[str(variant)]["color"], "label": variant}
            if variant in at:
                axes.plot(line.x, line.value, "*", mfc="white", ms=10, zorder=4, **look)
            elif line.members == 1:
                axes.axhline(line.value, lw=1, ls="--", **look)
        if label == axis:
            axes.set_xticks(range(len(names)), names)
        axes.set(xlabel=label, ylabel=f"{part} {title(metric)}")
    return _with_legend(figure)


def temperature_figure(results: Results, variants: Sequence[str]) -> Figure:
    """Every row as trained (full marker) and after temperature scaling (hollow marker).

    The dashed line is the reference after scaling: what noise has to beat to be worth more than one
    fitted number.
    """
    columns, styles = _panels(results, (scaled("nll"), scaled("ece"))), styles_of(results)
    rows = [results.rows[variant] for variant in variants if results.rows[variant].seeds]
    figure, panels = _grid(len(columns), 0.42 * len(rows) + 1.2)
    for axes, (part, metric) in zip(panels, columns, strict=True):
        for name, lift, fill, label in (
            (metric, -0.16, None, ""),
            (scaled(metric), 0.16, "white", " +T"),
        ):
            axes.plot([], [], "o", color=INK, ms=6, mfc=fill, label=label.strip() or "as trained")
            lines = _lines(results, part, name, variants)
            for place, row in enumerate(rows):
                if row.variant not in lines.index:
                    continue
                line = lines.loc[row.variant]
                look = {"ms": 6, "elinewidth": 1.2, "mfc": fill, **styles[row.variant]}
                bars = [[line.down], [line.up]]
                axes.errorbar([line.value], [place + lift], xerr=bars, **look)
                if not row.reference:  # the bars of the others are about the distance to this line
                    look = {"color": MUTED, "lw": 1, "ls": "--" if fill else ":", "zorder": 0}
                    axes.axvline(line.value, label=row.variant + label, **look)
        flags = [" (collapsed)" * ((row.variant, part) in results.collapsed) for row in rows]
        names = [
            f"{row.variant}{flag}{f' {ON_TEST}' * row.on_test}"
            for row, flag in zip(rows, flags, strict=True)
        ]
        axes.set_yticks(range(len(rows)), names)
        axes.set(xlabel=f"{part} {title(metric)}", ylim=(len(rows) - 0.5, -0.5))
    return _with_legend(figure)


def places_of(results: Results) -> dict[str, dict[str, float]]:
    """Where parts stand in a figure by corruption, and in one by severity; severity 0 is clean."""
    levels = {f"severity {level}": float(level) for level in results.facts["severities"]}
    names = {name: float(k) for k, name in enumerate(results.facts["corruptions"])}
    return {"Corruption": names, "Severity": {CLEAN: 0.0} | levels}


def part_figure(
    results: Results, variants: Sequence[str], metrics: Sequence[str], places: Mapping[str, float]
) -> Figure:
    """Metrics of several parts, each at its place, rows side by side."""
    figure, panels = _grid(len(metrics), columns=1)
    rows = [variant for variant in variants if results.rows[variant].members == 1]
    styles = styles_of(results)
    for axes, metric in zip(panels, metrics, strict=True):
        for k, variant in enumerate(rows):
            lines = [_lines(results, part, metric, [variant]) for part in places]
            own = pd.concat(lines)
            shift = 0.8 * ((k + 0.5) / len(rows) - 0.5)
            x, bars = (own.part.map(places) + shift).tolist(), [own.down.tolist(), own.up.tolist()]
            look = {"ls": "none", "ms": 4.5, "elinewidth": 1, **styles[variant]}
            axes.errorbar(x, own.value.tolist(), bars, label=variant, **look)
        axes.set_xticks(list(places.values()), [name.replace("_", "\n") for name in places])
        axes.set_ylabel(title(metric))
    return _with_legend(figure)


def reliability_figures(results: Results, variants: Sequence[str], part: str) -> dict[str, Figure]:
    """A reliability diagram per row, of its first seed: clean, or all corrupted cells pooled."""
    import torch

    from chaosgate.metrics import reliability_figure
    from chaosgate.metrics.functional import Reliability, bin_edges

    figures, errors = {}, results.evidence.images
    for variant in variants:
        found = errors.of_row(errors.reliability[MAIN.index(part)], variant)
        if len(found) and results.rows[variant].members == 1:
            count, confidence, correct, effective = map(torch.from_numpy, found[0])
            bins = Reliability(count, confidence, correct, bin_edges(len(effective)))
            heading = f"{variant}, seed {results.rows[variant].seeds[0]}"
            figures[variant] = reliability_figure(bins, title=heading, effective=effective)
    return figures


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
    if named:
        look: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "fontsize": 9}
        figure.legend(list(named.values()), list(named), ncols=min(6, len(named)), **look)
    return figure


def svg_of(figure: Figure) -> str:
    """The figure as SVG with two decimals: the same bytes for the same numbers."""
    out = io.StringIO()
    look: Any = {"svg.fonttype": "none", "svg.hashsalt": "chaosgate", "font.family": "sans-serif"}
    with rc_context(look):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    return re.sub(r"(?<=\d\.\d\d)\d+", "", out.getvalue())
