"""The tables of a report: pivots of the frame, a cell for every number. Every format has them."""

import re
from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

import pandas as pd

from chaosgate.study.plan.study import STRENGTH, paper_data
from chaosgate.study.report.frame import Results, Row
from chaosgate.study.report.names import MAIN, ON_TEST, better, is_scaled, title

MARKS = {"better": "✓", "worse": "✗"}
COLLAPSED, SELECTED, MISSING = "‡", "§", "–"
ROW_TITLES = {
    "none": "None",
    "dropout": "Dropout",
    "dropblock": "DropBlock",
    "iid_gaussian": "IID Gaussian",
    "correlated_gaussian": "Corr. Gaussian",
    "gch": "GCh",
}
_PAPER_METHOD = "gch"  # the method of the paper's tables over stages and strengths


class Cell(NamedTuple):
    """A number as it is shown: the text, and smaller lines below it."""

    text: str = ""
    below: tuple[str, ...] = ()
    bold: bool = False
    mark: str = ""


class View(NamedTuple):
    """A table to show.

    Args:
        title: What it shows.
        first: Head of the column of names.
        cells: A :class:`Cell` for every name of a row and head of a column.
        label: Of the paper's table, for LaTeX.
    """

    title: str
    first: str
    cells: pd.DataFrame
    label: str = ""


def head(metric: str) -> str:
    """The head of a column, with an arrow in the direction of improvement.

    >>> head("ece_T"), head("gap")
    ('ECE+T ↓', 'conf-acc')
    """
    return title(metric) + {"higher": " ↑", "lower": " ↓"}.get(better(metric), "")


def number(value: float, sd: float = nan, *, decimals: int = 3) -> str:
    """A mean with its standard deviation; a dash if it is missing.

    >>> number(0.03, 0.001), number(nan)
    ('0.030 ± 0.001', '–')
    """
    if isnan(value):
        return MISSING
    return f"{value:.{decimals}f}" + ("" if isnan(sd) else f" ± {sd:.{decimals}f}")


def change(line: Any) -> tuple[str, ...]:
    """A difference with its mark, then its interval; nothing if there is none."""
    if isnan(line.difference):
        return ()
    numbers = [f"{one:+.3f}" for one in (line.difference, line.lo, line.hi)]
    middle, low, high = (re.sub(r"\b0\.", ".", one) for one in numbers)
    ends = () if isnan(line.lo) else (f"{low} to {high}",)
    return (f"{middle} {MARKS.get(line.mark, '')}".strip(), *ends)


def _table(
    lines: pd.DataFrame, name: Callable[[Any], str], cell: Callable[[Any], Cell], missing: str = ""
) -> pd.DataFrame:
    """Cells by name of the row and head of the column, in the order in which they first appear."""
    found: dict[str, dict[str, Cell]] = {}
    for line in lines.itertuples():
        column = f"{line.part} " * (line.kind != "mean") + head(line.metric)
        found.setdefault(column, {})[name(line)] = cell(line)
    table = pd.DataFrame(found, dict.fromkeys(map(name, lines.itertuples())), dtype=object)
    return table.map(lambda one: one if isinstance(one, Cell) else Cell(missing))


def views(results: Results) -> list[View]:
    """All tables of a report, without those of the paper."""
    found, asked = [], len(results.study.seeds)

    def differences(name: str, lines: pd.DataFrame) -> View:
        """Differences between rows: with every ECE, the Top-1 and the NLL."""

        def row_name(line: Any) -> str:
            fewer = f" ({line.seeds} of {asked})" * (line.seeds < asked)
            return f"{line.variant}{ON_TEST * bool(line.on_test)}{fewer}"

        def cell(line: Any) -> Cell:
            text, *below = change(line) or (MISSING,)
            return Cell(text, tuple(below), mark=line.mark)

        return View(name, "difference", _table(lines, row_name, cell))

    for name, variants in results.tables.items():
        parts = [part for part in MAIN if part in results.parts]
        found += [result_view(results, f"{name}, {part}", variants, part) for part in parts]
        inside = [
            f"{a} - {b}" for a, b in results.contrasts if {a, b.removesuffix("+T")} <= {*variants}
        ]
        found.append(differences(f"{name}: contrasts", results.lines("contrast", inside)))
    found.append(differences("planned contrasts", results.lines("planned")))
    return [view for view in found if len(view.cells)]


def result_view(results: Results, name: str, variants: Sequence[str], part: str) -> View:
    """A row per method, a column per metric: mean, difference to the reference, its interval."""
    own, asked = results.lines(variants=variants, part=part), len(results.study.seeds)
    best = {metric: best_of(results, variants, part, metric) for metric in own.metric.unique()}

    def row_name(line: Any) -> str:
        row = results.rows[line.variant]
        fewer = f" ({len(row.seeds)} of {asked})" * (row.members == 1 and len(row.seeds) < asked)
        tested = row.on_test and row.checkpoint != "last"  # the checkpoint was selected on the test
        lost = (row.variant, part) in results.collapsed
        return row.variant + fewer + SELECTED * tested + COLLAPSED * lost

    def cell(line: Any) -> Cell:
        flag = ON_TEST * (is_scaled(line.metric) and line.on_test and line.seeds > 0)
        bold = best.get(line.metric) == line.variant
        return Cell(number(line.value, line.sd) + flag, change(line), bold, line.mark)

    more = [results.lines(variants=variants, metric=one) for one in ("temperature", "energy")]
    lines = pd.concat([own, *(one[one.value.notna()] for one in more)])
    table = _table(lines, row_name, cell, MISSING)
    if len(known := own[own.floor.notna()]):
        table.loc["noise floor"] = [Cell()] * len(table.columns)
        for metric, floors in known.groupby("metric").floor:
            ends = dict.fromkeys(map(number, (floors.min(), floors.max())))
            table.at["noise floor", head(metric)] = Cell("–".join(ends))
    return View(name, part, table)


def best_of(results: Results, variants: Sequence[str], part: str, metric: str) -> str | None:
    """The row with the best mean, if it is above the noise.

    The 95 % interval of its difference to the second best must exclude zero, and an ECE must be
    larger than what a perfectly calibrated network would show. Ensembles, collapsed networks and
    rows with fewer seeds than others do not count.
    """
    own = results.lines(variants=variants, part=part, metric=metric)
    own = own[own.value.notna() & (own.members == 1) & ~own.collapsed.astype(bool)]
    own = own[own.seeds == own.seeds.max()]
    own = own.sort_values("value", ascending=better(metric) == "lower", kind="stable")
    if not better(metric) or len(own) < 2 or own.seeds.max() < 2:
        return None
    first, second = own.iloc[0], own.iloc[1]
    found = results.difference(first.variant, second.variant, part, metric)
    above = "lo" in found and found["lo"] * found["hi"] > 0
    return str(first.variant) if above and not first.value <= first.floor95 else None


# -- tables of the paper ---------------------------------------------------------------------------


def paper_view(name: str, results: Results | None = None) -> View:
    """A table of the paper in its rows, columns and digits; with results, our numbers come first.

    A dash means that we have no number.
    """
    data = paper_data()[name]
    rows, by = data["rows"], data["by"]
    names = [ROW_TITLES.get(str(row), str(row)) for row in rows]
    table: dict[str, list[Cell]] = {}
    if any("g" in cells for cells in rows.values()):
        table["g"] = [Cell(f"{cells['g']:g}" if "g" in cells else "") for cells in rows.values()]
    for column, decimals in data["decimals"].items():
        metric, _, suffix = column.partition("_")
        method, percent = suffix * (by == "corruption"), suffix == "percent"
        of_method = f" ({ROW_TITLES[method]})" if method else ""
        shown = head(metric).replace(" ", " (%) " if percent else " ") + of_method
        paper = [Cell(number(*cells[column], decimals=decimals)) for cells in rows.values()]
        if results is None:
            table[shown] = paper
            continue
        table[shown], table[f"{shown} paper"] = [], paper
        for row, variant in zip(rows, _variants(results, data, method), strict=True):
            part = row if method else data["part"]
            own = results.lines(variants=[variant], part=part, metric=metric)
            mean, sd = own[["value", "sd"]].mean() * (100 if percent else 1)
            table[shown].append(Cell(number(mean, sd, decimals=decimals)))
    if results is not None:
        for k, variant in enumerate(_variants(results, data)):
            names[k] += COLLAPSED * ((variant, data["part"]) in results.collapsed)
        if size := results.study.size:  # must not be mistaken for the paper's numbers
            name += f", {size} size{' on synthetic images' * results.study.synthetic}"
    first = "g" if by == STRENGTH else by.capitalize()
    return View(name, first, pd.DataFrame(table, names), data["label"])


def _variants(results: Results, data: Mapping[str, Any], method: str = "") -> list[str]:
    """Our row for each of the paper's; empty unless there is exactly one.

    It is a method at the strength of the paper, or the paper's method at a stage or strength.
    """

    def fits(row: Row, name: str) -> bool:
        if row.members > 1 or data.get("checkpoint") not in (None, row.checkpoint):
            return False
        if data["by"] in ("method", "corruption"):
            return row.method == (method or name) and results.at_paper(row)
        return row.method == _PAPER_METHOD and row.levels.get(data["by"]) == name

    found = [[v for v, row in results.rows.items() if fits(row, str(n))] for n in data["rows"]]
    return [variants[0] if len(variants) == 1 else "" for variants in found]
