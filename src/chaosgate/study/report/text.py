"""A table as terminal output, Markdown and CSV."""

import csv
import io
from math import isnan

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from chaosgate.metrics.names import improvement, is_scaled, scaled, title
from chaosgate.study.report.notes import FLAG, count, has_temperature, number, on_test
from chaosgate.study.report.table import Entry, Row, Table


def terminal_table(table: Table) -> RichTable:
    """Clean and corrupted results beneath each other, each without and with +T, so that 80 columns are enough."""
    metrics = list(dict.fromkeys(metric for _, metric in table.columns if not is_scaled(metric)))
    asked = len(table.study.seeds)
    heading = f"study {table.title}, {count(asked, 'seed')}"
    grid = RichTable(title=heading, title_style="bold", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    grid.add_column("method", no_wrap=True)
    for metric in metrics:
        grid.add_column(title(metric), justify="right", no_wrap=True)
    grid.add_column("energy", justify="right", no_wrap=True)
    for part in dict.fromkeys(part for part, _ in table.columns):
        grid.add_row(Text(part, style="bold"))
        for row in table.rows:
            cells = [_cell(metric, row.entries[part, metric], row) for metric in metrics]
            fewer = "" if len(row.seeds) == asked else f" ({len(row.seeds)} of {asked})"
            flag = f" [red]{FLAG}[/]" if part in row.collapsed else ""
            grid.add_row(f" {row.variant}{fewer}{flag}", *cells, number(row.energy.mean))
        if any((part, scaled(metric)) in table.columns for metric in metrics):
            grid.add_row(Text(f"{part} +T", style="bold"))
            for row in table.rows:
                cells = [_scaled_cell(part, scaled(metric), row) for metric in metrics]
                fitted = "" if isnan(row.temperature.mean) else f"T {row.temperature.mean:.2f}{on_test(row)}"
                flag = f" [red]{FLAG}[/]" if part in row.collapsed else ""
                grid.add_row(f" {row.variant}{flag}", *cells, fitted)
        grid.add_section()
    return grid


def _scaled_cell(part: str, metric: str, row: Row) -> Text:
    """Beneath the number without temperature; empty where a temperature changes nothing, or is not shown."""
    return _cell(metric, row.entries[part, metric], row) if (part, metric) in row.entries else Text("")


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
    """Green for better, red for worse."""
    change = improvement(metric, entry.mean - entry.difference, entry.mean)
    return "dim" if change == 0 else "green" if change > 0 else "red"


def markdown_table(table: Table) -> str:
    """The same as Markdown; in parentheses the difference to the reference and its 95 % interval."""
    last = ["T", "energy"] if has_temperature(table) else ["energy"]
    head = ["method", "seeds", *(f"{part} {title(metric)}" for part, metric in table.columns), *last]
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
