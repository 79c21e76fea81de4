"""What a report shows: pivots of the frame, one cell for every number. Every format prints these."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

import pandas as pd

from chaosgate.metrics.names import NAMES, ON_TEST, PLUS_T, is_scaled, scaled, title
from chaosgate.study.plan.study import STRENGTH, paper_data
from chaosgate.study.report.frame import MAIN, Results, has_direction

MARKS = {"better": "✓", "worse": "✗"}
COLLAPSED, SELECTED = "‡", "§"
ROW_TITLES = {
    "none": "None",
    "dropout": "Dropout",
    "dropblock": "DropBlock",
    "iid_gaussian": "IID Gaussian",
    "correlated_gaussian": "Corr. Gaussian",
    "gch": "GCh",
}
_PAPER_METHOD = "gch"  # the method of the paper's tables over stages and strengths
_BY = {"method": "Method", "stage": "Stage", "strength": "g", "corruption": "Corruption"}


class Cell(NamedTuple):
    """A number as it is shown: the text, and smaller lines below it."""

    text: str = ""
    below: tuple[str, ...] = ()
    bold: bool = False
    mark: str = ""


class View(NamedTuple):
    """A table to show: cells by name of the row and head of the column.

    Args:
        title: What it shows.
        first: Head of the column of names.
        cells: A :class:`Cell` everywhere.
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
    arrow = {"higher": " ↑", "lower": " ↓"}.get(NAMES[metric.removesuffix("_T")].better or "", "")
    return title(metric) + arrow


def signed(value: float) -> str:
    """A difference with three decimals and without a zero in front.

    >>> signed(-0.0204), signed(1.25)
    ('-.020', '+1.250')
    """
    return f"{value:+.3f}".replace("+0.", "+.").replace("-0.", "-.")


def number(value: float, sd: float = float("nan"), decimals: int = 3) -> str:
    """A mean with its standard deviation; what is missing is a dash.

    >>> number(0.03, 0.001), number(float("nan"))
    ('0.030 ± 0.001', '–')
    """
    if isnan(value):
        return "–"
    return f"{value:.{decimals}f}" + ("" if isnan(sd) else f" ± {sd:.{decimals}f}")


def _change(line: Mapping[str, Any]) -> tuple[str, ...]:
    """A difference with its mark, then its interval."""
    if isnan(line["difference"]):
        return ()
    mark = MARKS.get(line["mark"], "")
    ends = () if isnan(line["lo"]) else (f"{signed(line['lo'])} to {signed(line['hi'])}",)
    return (f"{signed(line['difference'])} {mark}".strip(), *ends)


def views(results: Results) -> list[View]:
    """All tables of a report, without those of the paper."""
    found = []
    for name, variants in results.tables.items():
        parts = [part for part in MAIN if part in results.parts]
        found += [result_view(results, f"{name}, {part}", variants, part) for part in parts]
        found.append(contrast_view(results, f"{name}: contrasts", variants))
    found.append(planned_view(results))
    return [view for view in found if len(view.cells)]


def result_view(results: Results, name: str, variants: Sequence[str], part: str) -> View:
    """A row per method, a column per metric: mean, difference to the reference, its interval."""
    frame = results.frame
    own = frame[(frame.kind == "mean") & frame.variant.isin(variants) & (frame.part == part)]
    best = {metric: best_of(results, variants, part, metric) for metric in own.metric.unique()}
    cells = []
    for line in own.to_dict("records"):
        text = number(line["value"], line["sd"])
        if is_scaled(line["metric"]) and line["on_test"] and not isnan(line["value"]):
            text += ON_TEST
        mark = "" if isinstance(line["mark"], float) else line["mark"]
        cells.append(Cell(text, _change(line), best[line["metric"]] == line["variant"], mark))
    table = own.assign(cell=cells).pivot(index="variant", columns="metric", values="cell")
    metrics = [metric for metric in results.metrics if metric in table]
    table = table.reindex(index=variants, columns=metrics)
    table.columns = pd.Index([head(metric) for metric in metrics])
    for metric, short in (("temperature", "T"), ("energy", "energy")):
        values = frame[(frame.kind == "mean") & (frame.metric == metric)].set_index("variant").value
        if metric == "energy" or len(values):
            table[short] = [Cell(number(values.get(variant, float("nan")))) for variant in variants]
    table.index = pd.Index([row_name(results, variant, part) for variant in variants])
    table = table.map(lambda cell: cell if isinstance(cell, Cell) else Cell("–"))
    floors = {head(metric): own.floor[own.metric == metric].dropna() for metric in metrics}
    if any(len(values) for values in floors.values()):
        ends = {shown: (f"{f.min():.3f}", f"{f.max():.3f}") for shown, f in floors.items() if len(f)}
        texts = {shown: "–".join(dict.fromkeys(pair)) for shown, pair in ends.items()}
        table.loc["noise floor"] = [Cell(texts.get(shown, "")) for shown in table]
    return View(name, part, table)


def row_name(results: Results, variant: str, part: str) -> str:
    """The name of a row with its flags, and how many seeds it rests on where some are missing."""
    row, asked = results.rows[variant], len(results.study.seeds)
    fewer = f" ({len(row.seeds)} of {asked})" if row.members == 1 and len(row.seeds) < asked else ""
    flags = SELECTED * row.selected_on_test + COLLAPSED * ((variant, part) in results.collapsed)
    return variant + fewer + flags


def best_of(results: Results, variants: Sequence[str], part: str, metric: str) -> str | None:
    """The row with the best mean, if it is above the noise.

    The 95 % interval of its difference to the second best must exclude zero, and an ECE must be
    larger than what a perfectly calibrated network would show. Ensembles, collapsed networks and rows
    with fewer seeds than others do not count.
    """
    if not has_direction(metric):
        return None
    lower = NAMES[metric.removesuffix("_T")].better == "lower"
    frame = results.frame
    most = max((len(results.rows[variant].seeds) for variant in variants), default=0)
    own = frame[(frame.kind == "mean") & (frame.part == part) & (frame.metric == metric)]
    own = own[own.variant.isin(variants) & (own.members == 1) & (own.seeds == most)]
    own = own[own.value.notna() & ~own.collapsed.astype(bool)].sort_values("value", ascending=lower, kind="stable")
    if len(own) < 2 or most < 2:
        return None
    first, second = own.iloc[0], own.iloc[1]
    interval = results.compare((first.variant, part, metric), (second.variant, part, metric)).interval
    above = interval is not None and interval.low * interval.high > 0
    return str(first.variant) if above and not first.value <= first.floor95 else None


def contrast_view(results: Results, name: str, variants: Sequence[str]) -> View:
    """Differences between methods: with every ECE stand Top-1 and NLL."""
    frame = results.frame
    own = frame[frame.kind == "contrast"]
    pairs = [f"{a} - {b}" for a, b in results.contrasts if a in variants and b.removesuffix("+T") in variants]
    return _difference_view(results, name, own[own.variant.isin(pairs)])


def planned_view(results: Results) -> View:
    return _difference_view(results, "planned contrasts", results.frame[results.frame.kind == "planned"])


def _difference_view(results: Results, name: str, own: pd.DataFrame) -> View:
    asked = len(results.study.seeds)
    cells, names, heads = [], [], []
    for line in own.to_dict("records"):
        change = _change(line)
        mark = "" if isinstance(line["mark"], float) else line["mark"]
        cells.append(Cell(change[0] if change else "–", change[1:], mark=mark))
        fewer = f" ({line['seeds']} of {asked})" if line["seeds"] < asked else ""
        names.append(line["variant"] + ON_TEST * (line["on_test"] is True) + fewer)
        heads.append(f"{line['part']} {head(line['metric'])}")
    table = own.assign(cell=cells, name=names, head=heads)
    table = table.drop_duplicates(["name", "head"]).pivot(index="name", columns="head", values="cell")
    table = table.reindex(index=dict.fromkeys(names), columns=dict.fromkeys(heads))
    return View(name, "difference", table.map(lambda cell: cell if isinstance(cell, Cell) else Cell()))


# -- tables of the paper ---------------------------------------------------------------------------


def paper_view(name: str, results: Results | None = None) -> View:
    """A table of the paper: its rows, columns and digits, with our numbers first if there are any.

    Our columns +T come last; the paper has none. What we do not have is a dash.
    """
    data = paper_data()[name]
    paper, by = data["rows"], data["by"]
    table: dict[str, list[Cell]] = {}
    if any("g" in cells for cells in paper.values()):
        table["g"] = [Cell(f"{cells['g']:g}" if "g" in cells else "") for cells in paper.values()]
    asked = dict(data["decimals"])
    if results is not None:
        asked |= {_plus_t(column, by): k for column, k in asked.items() if _metric(column, by)[0] in PLUS_T}
    for column, decimals in asked.items():
        metric, method = _metric(column, by)
        percent = " (%)" if column.endswith("_percent") else ""
        shown = head(metric).replace(" ", f"{percent} ") if percent else head(metric)
        shown += f" ({ROW_TITLES.get(method, method)})" if method else ""
        if results is not None:
            ours = [_ours(results, data, str(row), column) for row in paper]
            texts = [number(100 * v if percent else v, 100 * s if percent else s, decimals) for v, s, _ in ours]
            flags = [ON_TEST if is_scaled(metric) and line[2] else "" for line in ours]
            if column in data["decimals"] or any(text != "–" for text in texts):
                table[shown] = [Cell(text + flag * (text != "–")) for text, flag in zip(texts, flags, strict=True)]
        if column in data["decimals"]:
            theirs = [number(*cells[column], decimals=decimals) for cells in paper.values()]
            table[shown if results is None else f"{shown} paper"] = [Cell(text) for text in theirs]
    names = [ROW_TITLES.get(str(row), str(row)) for row in paper]
    if results is not None and by != "corruption":
        lost = [_row(results, data, str(row)) for row in paper]
        names = [
            shown + COLLAPSED * ((variant, data["part"]) in results.collapsed)
            for shown, variant in zip(names, lost, strict=True)
        ]
    size = results.study.size if results is not None else None
    title, label = name, str(data["label"])
    if size is not None:  # nobody should take it for the paper's experiment
        title = f"{name}, {size.name} size{' on made-up images' if size.made_up else ''}"
        label = f"{label}_{size.name}"
    return View(title, _BY[by], pd.DataFrame(table, index=names), label)


def _metric(column: str, by: str) -> tuple[str, str]:
    """Metric of a column, and its method in a table by corruption (``ece_gch``, ``ece_T_gch``)."""
    if by != "corruption":
        return column.removesuffix("_percent"), ""
    metric, _, method = column.partition("_")
    return (scaled(metric), method[2:]) if method.startswith("T_") else (metric, method)


def _plus_t(column: str, by: str) -> str:
    metric, method = _metric(column, by)
    return f"{scaled(metric)}_{method}" if method else scaled(metric)


def _row(results: Results, data: Mapping[str, Any], name: str, method: str = "") -> str | None:
    """Our row for a row of the paper; None unless there is exactly one.

    A method at the strength of the paper, or the paper's method at a stage or strength.
    """
    by, wanted = data["by"], data.get("checkpoint")
    found = []
    for row in results.rows.values():
        if row.members > 1 or wanted not in (None, row.checkpoint):
            continue
        if by in ("method", "corruption"):
            fits = row.method == (method or name) and results.at_paper(row)
        elif by == STRENGTH:
            fits = row.method == _PAPER_METHOD and float(row.levels.get(STRENGTH, "nan")) == float(name)
        else:
            fits = row.method == _PAPER_METHOD and row.levels.get(by) == name
        found += [row.variant] if fits else []
    return found[0] if len(found) == 1 else None


def _ours(results: Results, data: Mapping[str, Any], name: str, column: str) -> tuple[float, float, bool]:
    """Mean, standard deviation, and whether the temperature was fitted on the test images."""
    metric, method = _metric(column, data["by"])
    variant = _row(results, data, name, method)
    part = name if data["by"] == "corruption" else data["part"]
    frame = results.frame
    own = frame[(frame.kind == "mean") & (frame.variant == variant) & (frame.part == part) & (frame.metric == metric)]
    if not len(own):
        return float("nan"), float("nan"), False
    line = own.iloc[0]
    return float(line.value), float(line.sd), bool(line.on_test)
