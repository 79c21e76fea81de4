"""The pictures of a study report, drawn without touching matplotlib's global state.

Bars are 95 % intervals of the difference to the reference, put around the value: a method whose bar
does not reach the reference's value differs from it.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report.frame import CLEAN, MAIN, Results
from chaosgate.study.report.names import ON_TEST, scaled, title

# Okabe and Ito's palette, safe under the common color-vision deficiencies, then Tol's dark tones.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_COLORS = (*_OKABE_ITO, "#332288", "#882255", "#999933", "#661100", "#44AA99", "#AA4499")
_MARKERS = ("s", "D", "^", "v", "P", "X", "p")  # seven and twelve: 84 different pairs
INK, MUTED, _REFERENCE = "#1f2430", "#8a8f99", "#5a5f6a"


def styles_of(results: Results) -> dict[str, dict[str, Any]]:
    """A color and a marker for every row; rows of one method share them, the reference is gray."""
    others = [method for method in results.study.methods if method != results.study.reference]
    of_method: dict[str, dict[str, Any]] = {
        results.study.reference: {"color": _REFERENCE, "marker": "o"}
    }
    for k, method in enumerate(others):
        of_method[method] = {
            "color": _COLORS[k % len(_COLORS)],
            "marker": _MARKERS[k % len(_MARKERS)],
        }
    return {row.variant: of_method[row.method] for row in results.rows.values()}


def _lines(results: Results, part: str, metric: str, variants: Sequence[str]) -> pd.DataFrame:
    """Values of a column with the ends of their bars, by row."""
    own = results.lines(variants=variants, part=part, metric=metric)
    own = own[own.value.notna()].set_index("variant")
    return own.reindex([one for one in variants if one in own.index])


def _bars(lines: pd.DataFrame) -> list[list[float]]:
    """How far the bars reach down and up."""
    ends = (lines.difference - lines.lo, lines.hi - lines.difference)
    return [one.fillna(0.0).tolist() for one in ends]


def _columns(results: Results) -> list[tuple[str, str]]:
    """NLL and ECE of the clean and the corrupted images, as far as there are any."""
    known = {key[1:] for key in results.measured}
    return [(part, metric) for part in MAIN for metric in ("nll", "ece") if (part, metric) in known]


def axis_figure(results: Results, axis: str) -> Figure:
    """NLL and ECE against the injected energy, which all methods have, or along an axis."""
    if axis == "injected energy":
        energy = results.lines(metric="energy").set_index("variant").value
        return _along(
            results, energy.dropna().to_dict(), "injected energy / energy of the features"
        )
    levels = {row.variant: row.levels[axis] for row in results.rows.values() if axis in row.levels}
    if axis == STRENGTH:
        keys = dict.fromkeys(one.key.rpartition(".")[2] for one in results.study.strength.values())
        at = {variant: float(level) for variant, level in levels.items()}
        return _along(results, at, f"strength ({', '.join(keys)})")
    names = list(dict.fromkeys(levels.values()))
    at = {variant: float(names.index(level)) for variant, level in levels.items()}
    return _along(results, at, axis, names)


def _along(
    results: Results, at: Mapping[str, float], label: str, ticks: Sequence[str] = ()
) -> Figure:
    """Values against a number of each row; rows without one are horizontal lines."""
    columns, styles = _columns(results), styles_of(results)
    figure, panels = panel_grid(len(columns))
    for axes, (part, metric) in zip(panels, columns, strict=True):
        lines = _lines(results, part, metric, list(results.rows))
        for method in dict.fromkeys(lines.method):
            own = lines[
                (lines.method == method) & lines.index.isin(list(at)) & (lines.members == 1)
            ]
            own = own.assign(x=[at[variant] for variant in own.index]).sort_values("x")
            if len(own):
                style = styles[own.index[0]]
                axes.errorbar(
                    own.x.tolist(),
                    own.value.tolist(),
                    yerr=_bars(own),
                    label=method,
                    lw=1.4,
                    ms=6,
                    elinewidth=1,
                    **style,
                )
            lost = own[own.collapsed.astype(bool)] if metric == "ece" else own[:0]
            axes.plot(
                lost.x.tolist(),
                lost.value.tolist(),
                "x",
                ms=11,
                mew=1.6,
                color=INK,
                label="collapsed" if len(lost) else None,
            )
        for variant, line in lines.iterrows():
            color = styles[str(variant)]["color"]
            if line.members > 1 and variant in at:
                axes.plot(
                    at[str(variant)],
                    line.value,
                    "*",
                    color=color,
                    mfc="white",
                    ms=10,
                    zorder=4,
                    label=variant,
                )
            elif line.members == 1 and variant not in at:
                axes.axhline(line.value, color=color, lw=1, ls="--", label=variant)
        if ticks:
            axes.set_xticks(range(len(ticks)), ticks)
        axes.set(xlabel=label, ylabel=f"{part} {title(metric)}")
        tidy(axes)
    legend(figure)
    return figure


def temperature_figure(results: Results, variants: Sequence[str]) -> Figure:
    """Every row as trained (full marker) and after temperature scaling (hollow marker).

    The dashed line is the reference after scaling: what noise has to beat to be worth more than one
    fitted number.
    """
    known = {key[1:] for key in results.measured}
    columns = [
        (part, metric) for part, metric in _columns(results) if (part, scaled(metric)) in known
    ]
    styles = styles_of(results)
    rows = [results.rows[variant] for variant in variants if results.rows[variant].seeds]
    figure, panels = panel_grid(len(columns), 0.42 * len(rows) + 1.2)
    for axes, (part, metric) in zip(panels, columns, strict=True):
        axes.plot([], [], "o", color=INK, ms=6, label="as trained")
        axes.plot([], [], "o", color=INK, ms=6, mfc="white", label="+T")
        for name, lift, fill in ((metric, -0.16, None), (scaled(metric), 0.16, "white")):
            lines = _lines(results, part, name, variants)
            for place, row in enumerate(rows):
                if row.variant in lines.index:
                    line, look = lines.loc[[row.variant]], styles[row.variant]
                    axes.errorbar(
                        line.value.tolist(),
                        [place + lift],
                        xerr=_bars(line),
                        ms=6,
                        elinewidth=1.2,
                        mfc=fill,
                        **look,
                    )
                    if (
                        not row.reference
                    ):  # the bars of the others are about their distance to this line
                        dashes, name = ("--", f"{row.variant} +T") if fill else (":", row.variant)
                        axes.axvline(
                            line.value.iloc[0], color=MUTED, lw=1, ls=dashes, zorder=0, label=name
                        )
        flags = [
            " (collapsed)" * ((r.variant, part) in results.collapsed) + f" {ON_TEST}" * r.on_test
            for r in rows
        ]
        axes.set_yticks(
            range(len(rows)), [row.variant + flag for row, flag in zip(rows, flags, strict=True)]
        )
        axes.set(xlabel=f"{part} {title(metric)}", ylim=(len(rows) - 0.5, -0.5))
        tidy(axes, "x")
    legend(figure)
    return figure


def places_of(results: Results) -> dict[str, dict[str, float]]:
    """Where parts stand in a figure by corruption, and in one by severity; severity 0 is clean."""
    levels = {f"severity {level}": float(level) for level in results.facts["severities"]}
    names = {name: float(k) for k, name in enumerate(results.facts["corruptions"])}
    return {"Corruption": names, "Severity": {CLEAN: 0.0} | levels}


def part_figure(
    results: Results,
    variants: Sequence[str],
    metrics: Sequence[str],
    places: Mapping[str, float],
) -> Figure:
    """Metrics of several parts, each at its place, rows side by side."""
    figure, panels = panel_grid(len(metrics), columns=1)
    rows = [variant for variant in variants if results.rows[variant].members == 1]
    styles = styles_of(results)
    for axes, metric in zip(panels, metrics, strict=True):
        own = results.lines(variants=rows, metric=metric)
        for variant, lines in own[own.part.isin(list(places))].groupby("variant", sort=False):
            shift = 0.8 * ((rows.index(str(variant)) + 0.5) / len(rows) - 0.5)
            look = {**styles[str(variant)], "ls": "none", "ms": 4.5, "elinewidth": 1}
            x = lines.part.map(places) + shift
            axes.errorbar(
                x.tolist(), lines.value.tolist(), yerr=_bars(lines), label=variant, **look
            )
        names = [name.replace("_", "\n") for name in places]
        axes.set_xticks(list(places.values()), names)
        axes.set_ylabel(title(metric))
        tidy(axes)
    legend(figure)
    return figure


def reliability_figures(results: Results, variants: Sequence[str], part: str) -> dict[str, Figure]:
    """A reliability diagram per row, of its first seed: clean, or all corrupted cells pooled."""
    import torch

    from chaosgate.metrics import reliability_figure
    from chaosgate.metrics.functional import Reliability, bin_edges

    figures: dict[str, Figure] = {}
    for (variant, its_part), sums in results.evidence.images.reliability.items():
        if variant in variants and its_part == part:
            *own, effective = map(torch.from_numpy, sums)
            seed = results.rows[variant].seeds[0]
            figures[variant] = reliability_figure(
                Reliability(*own, bin_edges(sums.shape[1])),
                title=f"{variant}, seed {seed}",
                effective=effective,
            )
    return figures


def panel_grid(count: int, height: float = 3.0, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Panels in rows."""
    rows = max(1, -(-count // columns))
    figure = Figure(figsize=(9.6, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]


def tidy(axes: Axes, grid: str = "y") -> None:
    """Quiet spines and ticks, and a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(which="both", colors=INK, labelsize=8.5, length=3)
    axes.grid(axis=grid, color="#e4e6ea", lw=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, fontsize=9)


def legend(figure: Figure) -> None:
    """One legend above all panels."""
    named: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        look: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "fontsize": 9}
        figure.legend(list(named.values()), list(named), ncols=min(6, len(named)), **look)


def svg_of(figure: Figure) -> str:
    """The figure as SVG, the same bytes for the same numbers."""
    out = io.StringIO()
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "chaosgate", "font.family": "sans-serif"}
    ):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    return out.getvalue()
