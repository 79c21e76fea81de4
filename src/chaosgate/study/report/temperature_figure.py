"""A picture of the baseline +T: what one temperature does to each network, beside what the noise does."""

from math import isnan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chaosgate.study.report.figures import INK, MUTED, legend, panel_grid, row_styles, tidy
from chaosgate.study.report.render import TITLES
from chaosgate.study.report.table import Table
from chaosgate.study.report.temperature import PLUS_T, scaled


def temperature_figure(table: Table) -> Figure:
    """A line per row from the metric (full marker) to the metric after temperature scaling (hollow marker).

    The dashed line is the reference after scaling: what noise has to beat to be worth more than one fitted number.
    """
    columns = [(part, metric) for part, metric in table.columns if metric in PLUS_T]
    columns = [(part, metric) for part, metric in columns if (part, scaled(metric)) in table.columns]
    figure, panels = panel_grid(len(columns))
    for axes, (part, metric) in zip(panels, columns, strict=True):
        _draw(axes, table, part, metric)
    legend(figure)
    return figure


def _draw(axes: Axes, table: Table, part: str, metric: str) -> None:
    rows = [row for row in table.rows if row.seeds]
    for height, row in enumerate(reversed(rows)):
        before, after = row.entries[part, metric].mean, row.entries[part, scaled(metric)].mean
        colour, marker = (row_styles(table)[row.variant][key] for key in ("color", "marker"))
        axes.plot([before, after], [height, height], color=colour, lw=1.6, zorder=1)
        first = height == 0
        axes.plot(before, height, marker, color=colour, ms=7, label="as trained" if first else None)
        axes.plot(after, height, marker, color=colour, ms=7, mfc="white", label="+T" if first else None)
        if row.is_reference and not isnan(after):
            axes.axvline(after, color=MUTED, lw=1, ls="--", label=f"{row.variant} +T", zorder=0)
    names = [f"{row.variant}{' (collapsed)' if part in row.collapsed else ''}" for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), names)
    axes.set(xlabel=f"{part} {TITLES[metric]}", ylim=(-0.6, len(rows) - 0.4))
    tidy(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#e4e6ea", lw=0.7)
    axes.tick_params(axis="y", colors=INK)
