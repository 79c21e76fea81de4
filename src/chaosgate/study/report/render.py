"""A table as terminal output, Markdown and CSV."""

import csv
import io
from math import isnan

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from chaosgate.study.report.table import Entry, Row, Table
from chaosgate.study.report.temperature import is_scaled, scaled

TITLES = {
    "top1": "Top-1",
    "nll": "NLL",
    "ece": "ECE",
    "gap": "conf-acc",
    "brier": "Brier",
    "confidence": "conf",
    "top5": "Top-5",
    "nll_T": "NLL+T",
    "ece_T": "ECE+T",
}
ON_TEST = "†"  # beside a number whose temperature has seen the test images
_FLAG = "‡"  # beside a collapsed network, where there is no room for the word
_HIGHER_IS_BETTER = {"top1", "top5"}


def terminal_table(table: Table) -> RichTable:
    """Clean and corrupted results beneath each other, each without and with +T, so that 80 columns are enough."""
    metrics = list(dict.fromkeys(metric for _, metric in table.columns if not is_scaled(metric)))
    asked = len(table.study.seeds)
    title = f"study {table.title}, {_count(asked, 'seed')}"
    grid = RichTable(title=title, title_style="bold", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    grid.add_column("method", no_wrap=True)
    for metric in metrics:
        grid.add_column(TITLES[metric], justify="right", no_wrap=True)
    grid.add_column("energy", justify="right", no_wrap=True)
    for part in dict.fromkeys(part for part, _ in table.columns):
        grid.add_row(Text(part, style="bold"))
        for row in table.rows:
            cells = [_cell(metric, row.entries[part, metric], row) for metric in metrics]
            fewer = "" if len(row.seeds) == asked else f" ({len(row.seeds)} of {asked})"
            flag = f" [red]{_FLAG}[/]" if part in row.collapsed else ""
            grid.add_row(f" {row.variant}{fewer}{flag}", *cells, number(row.energy.mean))
        if any((part, scaled(metric)) in table.columns for metric in metrics):
            grid.add_row(Text(f"{part} +T", style="bold"))
            for row in table.rows:
                cells = [_scaled_cell(part, scaled(metric), row) for metric in metrics]
                fitted = "" if isnan(row.temperature.mean) else f"T {row.temperature.mean:.2f}{on_test(row)}"
                flag = f" [red]{_FLAG}[/]" if part in row.collapsed else ""
                grid.add_row(f" {row.variant}{flag}", *cells, fitted)
        grid.add_section()
    return grid


def _scaled_cell(part: str, metric: str, row: Row) -> Text:
    """Beneath the number without temperature; empty where a temperature changes nothing, or is not shown."""
    return _cell(metric, row.entries[part, metric], row) if (part, metric) in row.entries else Text("")


def on_test(row: Row) -> str:
    """The mark of numbers whose temperature has seen the test images; empty for others."""
    return ON_TEST if row.fitted_on_test else ""


def has_temperature(table: Table) -> bool:
    """Whether the table has columns +T."""
    return any(is_scaled(metric) for _, metric in table.columns)


def _cell(metric: str, entry: Entry, row: Row) -> Text:
    """Mean and difference to the reference; the standard deviation over seeds below."""
    text = Text(number(entry.mean))
    if not isnan(entry.difference):
        change = " " * 8 if row.is_reference else f" {entry.difference:+.3f}{_star(entry)}"
        text.append(change, style=_colour(metric, entry))
    if not isnan(entry.std):
        text.append(f"\n±{entry.std:.3f}" + " " * 8, style="dim")
    return text


def _star(entry: Entry) -> str:
    return "*" if entry.interval is not None and entry.interval.excludes_zero else " "


def _colour(metric: str, entry: Entry) -> str:
    """Green for better, red for worse; a gap is better the closer it is to zero."""
    if metric in ("gap", "confidence"):
        reference = entry.mean - entry.difference
        change = abs(entry.mean) - abs(reference) if metric == "gap" else 0.0
    else:
        change = -entry.difference if metric in _HIGHER_IS_BETTER else entry.difference
    return "dim" if change == 0 else "green" if change < 0 else "red"


def markdown_table(table: Table) -> str:
    """The same as Markdown; in parentheses the difference to the reference and its 95 % interval."""
    last = ["T", "energy"] if has_temperature(table) else ["energy"]
    head = ["method", "seeds", *(f"{part} {TITLES[metric]}" for part, metric in table.columns), *last]
    lines = [_line(head), _line(["---", *("--:" for _ in head[1:])])]
    for row in table.rows:
        cells = [_markdown_cell(column[1], row.entries[column], row) for column in table.columns]
        cells += [number(row.temperature.mean)] if has_temperature(table) else []
        flag = f" (collapsed: {', '.join(sorted(row.collapsed))})" if row.collapsed else ""
        lines.append(_line([row.variant + flag, str(len(row.seeds)), *cells, number(row.energy.mean)]))
    return "\n".join(lines) + "\n"


def _markdown_cell(metric: str, entry: Entry, row: Row) -> str:
    spread = "" if isnan(entry.std) else f" ± {entry.std:.3f}"
    change = ""
    if not row.is_reference and not isnan(entry.difference):
        interval = f", {entry.interval.low:+.3f} to {entry.interval.high:+.3f}" if entry.interval is not None else ""
        change = f" ({entry.difference:+.3f}{interval})"
    mark = on_test(row) if is_scaled(metric) and not isnan(entry.mean) else ""
    return f"{number(entry.mean)}{mark}{spread}{change}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    """Three decimals; missing numbers are said to be missing."""
    return "missing" if isnan(value) else f"{value:.3f}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def csv_table(table: Table) -> str:
    """One line per row and column of the table, every digit kept; empty where a number is missing.

    The part of a temperature is the images it was fitted on: ``validation`` or ``test``.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    difference = f"difference_to_{table.study.reference}"
    head = ["method", "part", "metric", "seeds", "mean", "std_ddof1", difference, "low95", "high95", "interval_over"]
    writer.writerow([*head, "collapsed"])
    for row in table.rows:
        for part, metric in table.columns:
            entry = row.entries[part, metric]
            numbers = map(_plain, (entry.mean, entry.std, entry.difference))
            interval = entry.interval
            ends = [repr(interval.low), repr(interval.high), interval.over] if interval is not None else ["", "", ""]
            flag = "collapsed" if part in row.collapsed else ""
            writer.writerow([row.variant, part, metric, len(entry.by_seed), *numbers, *ends, flag])
        others = [("train", "energy", row.energy), ("train", "validation_nll", row.validation_nll)]
        if has_temperature(table):
            others.append(("test" if row.fitted_on_test else "validation", "temperature", row.temperature))
        for part, name, entry in others:
            numbers = map(_plain, (entry.mean, entry.std))
            writer.writerow([row.variant, part, name, len(entry.by_seed), *numbers, "", "", "", "", ""])
    return out.getvalue()


def _plain(value: float) -> str:
    return "" if isnan(value) else repr(value)


COLLAPSED = (
    f"{_FLAG} collapsed: accuracy and confidence were lost together, half of the reference's lead over chance or more; "
    "a small ECE is no success there."
)


def temperature_notes(table: Table) -> list[str]:
    """What +T is, on which images it was fitted, and which rows do without."""
    if not has_temperature(table):
        return ["+T is missing: no run was tested with temperature scaling."]
    notes = ["+T: the same network, its logits divided by one temperature T that minimises the validation NLL."]
    if any(row.fitted_on_test for row in table.rows):
        notes.append(
            f"{ON_TEST}: T was fitted on the test images themselves, which are this protocol's validation images; "
            "+T looks better than it is."
        )
    if absent := [row.variant for row in table.rows if row.seeds and len(row.temperature.by_seed) < len(row.seeds)]:
        notes.append(f"No temperature for every seed of {', '.join(absent)}: the result rows say why, or are older.")
    return notes


def footnotes(table: Table, mark: str = "*") -> list[str]:
    """What the numbers are, in sentences; ``mark`` is how a difference looks whose interval excludes zero."""
    facts = table.facts
    if not facts:
        return ["No run has finished yet."]
    data = f"{facts['data']}{' (subset)' if facts['subset'] else ''}"
    notes = [] if table.study.size is None else [table.study.size.warning]
    notes += [
        f"{facts['backbone']} on {data}: {table.study.checkpoint} checkpoint, {facts['n']:g} test images per cell. "
        f"Signed: difference to {table.study.reference}."
    ]
    if any(metric == "gap" for _, metric in table.columns):
        notes.append("conf-acc: mean confidence minus accuracy; above 0 is over-confident.")
    if facts["corruptions"]:
        made = "generated" if facts["generated"] else "released"
        notes.append(
            f"corrupted: mean over {_count(len(facts['corruptions']), made + ' corruption')} of the mean over "
            f"severities {', '.join(map(str, facts['severities']))} of each cell's metric."
        )
    over = {entry.interval.over for row in table.rows for entry in row.entries.values() if entry.interval is not None}
    if any(len(row.seeds) > 1 for row in table.rows):
        notes.append("±: sample standard deviation over seeds (n - 1). Differences are paired by seed.")
    if "seeds" in over:
        notes.append(f"{mark}: the 95 % t interval of the paired differences over seeds excludes 0.")
    if "images" in over:
        notes.append(
            f"{mark}: the 95 % bootstrap interval over test images excludes 0. One seed: training varies beyond it."
        )
    notes += temperature_notes(table)
    if any(row.collapsed for row in table.rows):
        notes.append(COLLAPSED)
    notes.append("energy: E|h~ - h|^2 / E|h|^2 at the gate, measured at the end of training.")
    if absent := [row.variant for row in table.rows if len(row.seeds) < len(table.study.seeds)]:
        notes.append(f"Not finished: {', '.join(absent)}; their numbers are missing or rest on fewer seeds.")
    return notes
