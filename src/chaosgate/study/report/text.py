"""A table as terminal output, Markdown and CSV."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from math import isnan, nan

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from chaosgate.metrics.names import is_scaled, scaled, title
from chaosgate.study.report.inference import Interval
from chaosgate.study.report.notes import (
    FLAG,
    MARKS,
    SELECTED,
    count,
    has_temperature,
    mark_of,
    number,
    on_test,
    seeds_of,
    signed,
)
from chaosgate.study.report.table import Column, Entry, Row, Table, reference_variant

_COLOURS = {MARKS["better"]: "green", MARKS["worse"]: "red", "": "dim"}


def terminal_tables(table: Table) -> list[RichTable]:
    """Results in blocks of four metrics, then the contrasts; none is wider than 80 columns, long names are folded."""
    return [*(_results(table, block) for block in table.blocks), *([_contrasts(table)] if table.contrasts else [])]


def _grid(heading: str, first: str, columns: Sequence[str]) -> RichTable:
    grid = RichTable(title=heading, title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(first, overflow="fold")
    for name in columns:
        grid.add_column(name.replace(", ", ",\n"), no_wrap=True)
    return grid


def _results(table: Table, metrics: Sequence[str]) -> RichTable:
    """Clean and corrupted results beneath each other, each without and with +T."""
    asked = len(table.study.seeds)
    grid = _grid(f"study {table.title}, {count(asked, 'seed')}", "method", [*map(title, metrics), "energy"])
    for part in dict.fromkeys(part for part, _ in table.columns):
        grid.add_row(Text(part, style="bold"))
        for row in table.rows:
            fewer = "" if row.members > 1 or len(row.seeds) == asked else f" ({len(row.seeds)} of {asked})"
            cells = [_cell(table, row, (part, metric)) for metric in metrics]
            grid.add_row(_name(row, part, fewer), *cells, number(row.energy.mean))
        if any((part, scaled(metric)) in table.columns for metric in metrics):
            grid.add_row(Text(f"{part} +T", style="bold"))
            for row in table.rows:
                cells = [_cell(table, row, (part, scaled(metric))) for metric in metrics]
                fitted = "" if isnan(row.temperature.mean) else f"T {row.temperature.mean:.2f}{on_test(row)}"
                grid.add_row(_name(row, part), *cells, fitted)
        grid.add_section()
    return grid


def _name(row: Row, part: str, more: str = "") -> Text:
    text = Text(folded(f"{row.variant}{more}{SELECTED if row.selected_on_test else ''}", 11))
    return text.append(f" {FLAG}", style="red") if part in row.collapsed else text


def folded(name: str, width: int = 12) -> str:
    """A name in lines of a width where it allows that: behind blanks outside parentheses, hyphens and underscores.

    >>> folded("gch_label_smoothing").splitlines()
    [' gch_label_', ' smoothing']
    >>> folded("dropblock_03 (1 of 3)", 11).splitlines()
    [' dropblock_', ' 03 (1 of 3)']
    """
    lines = [""]
    for word in re.split(r"(?<=[-_ ])(?![^(]*\))", name):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(f" {line.rstrip()}" for line in lines)


def _cell(table: Table, row: Row, column: Column) -> Text:
    """Mean and difference to the reference; beneath the mean its standard deviation, then the floor of an ECE."""
    if column not in row.entries:  # a temperature changes nothing there
        return Text("")
    entry = row.entries[column]
    text = Text(f"{number(entry.mean):>6}", style="bold" if row.variant in table.best.get(column, ()) else "")
    if not isnan(entry.difference):
        mark = mark_of(table, row, column)
        text.append(f" {signed(entry.difference)}{mark}", style=f"not bold {_COLOURS[mark]}")
    spread = "" if isnan(entry.std) else f"±{entry.std:.3f}"
    floor = "" if isnan(entry.floor) else f" ({entry.floor:.3f})".replace("(0.", "(.")
    if spread or floor:
        text.append(f"\n{spread:>6}{floor}", style="not bold dim")
    return text


def _contrasts(table: Table) -> RichTable:
    """Differences between methods, and to the reference +T; beneath each its interval."""
    columns = list(table.contrasts[0].entries)
    grid = _grid(f"{table.title}: contrasts", "difference", [f"{part} {title(metric)}" for part, metric in columns])
    for contrast in table.contrasts:
        cells = []
        for column in columns:
            entry = contrast.entries.get(column)
            text = Text("")
            if entry is not None and not isnan(entry.difference):
                mark = MARKS[table.contrast_marks.get((contrast.name, column))]
                text = Text(f"{signed(entry.difference)}{mark}", style=_COLOURS[mark].replace("dim", ""))
                text.append(f"\n{ends(entry.interval)}", style="dim") if entry.interval is not None else None
            cells.append(text)
        grid.add_row(folded(contrast.label(len(table.study.seeds))), *cells)
    return grid


def ends(interval: Interval) -> str:
    """The interval in words."""
    return f"{signed(interval.low)} to {signed(interval.high)}"


def markdown_table(table: Table) -> str:
    """The same as Markdown, a table for each part; in parentheses the difference to the reference and its interval."""
    last = ["T", "energy"] if has_temperature(table) else ["energy"]
    lines: list[str] = []
    for part in dict.fromkeys(part for part, _ in table.columns):
        columns = [column for column in table.columns if column[0] == part]
        lines += _head([part, "seeds", *(title(metric) for _, metric in columns), *last])
        for row in table.rows:
            cells = [_markdown_cell(table, row, column) for column in columns]
            cells += [number(row.temperature.mean) + on_test(row)] if has_temperature(table) else []
            name = row.variant + (SELECTED if row.selected_on_test else "")
            name += " (collapsed)" if part in row.collapsed else ""
            lines.append(_line([name, seeds_of(row), *cells, number(row.energy.mean)]))
        lines.append("")
    if table.contrasts:
        columns = list(table.contrasts[0].entries)
        lines += _head(["difference", *(f"{part} {title(metric)}" for part, metric in columns)])
        for one in table.contrasts:
            marks = (MARKS[table.contrast_marks.get((one.name, column))] for column in columns)
            cells = [_change(one.entries.get(column), mark) for column, mark in zip(columns, marks, strict=True)]
            lines.append(_line([one.label(len(table.study.seeds)), *cells]))
        lines.append("")
    return "\n".join(lines)


def _head(cells: list[str]) -> list[str]:
    return [_line(cells), _line(["---", *("--:" for _ in cells[1:])])]


def _markdown_cell(table: Table, row: Row, column: Column) -> str:
    entry = row.entries[column]
    mean = number(entry.mean) + (on_test(row) if is_scaled(column[1]) and not isnan(entry.mean) else "")
    mean = f"**{mean}**" if row.variant in table.best.get(column, ()) else mean
    spread = "" if isnan(entry.std) else f" ± {entry.std:.3f}"
    inside = [_change(entry, mark_of(table, row, column)), "" if isnan(entry.floor) else f"floor {entry.floor:.3f}"]
    return f"{mean}{spread}" + (f" ({'; '.join(filter(None, inside))})" if any(inside) else "")


def _change(entry: Entry | None, mark: str) -> str:
    if entry is None or isnan(entry.difference):
        return ""
    interval = f", {ends(entry.interval)}" if entry.interval is not None else ""
    return f"{signed(entry.difference)}{' ' if mark else ''}{mark}{interval}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def csv_table(*tables: Table) -> str:
    """One line per row and column of each table, every digit kept; empty where a number is missing.

    The part of a temperature is the images it was fitted on: ``validation`` or ``test``. A contrast has the difference
    of its two rows and no mean.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = [
        "table",
        "method",
        "part",
        "metric",
        "seeds",
        "mean",
        "std_ddof1",
        "compared_to",
        "difference",
        "low95",
        "high95",
        "interval_over",
    ]
    writer.writerow([*head, "p_value", "mark", "floor_mean", "floor_95th", "collapsed"])
    for table in tables:
        writer.writerows([table.title, *line] for line in _csv_lines(table))
    return out.getvalue()


def _csv_lines(table: Table) -> Iterator[list[object]]:
    for row in table.rows:
        for column in table.columns:
            entry = row.entries[column]
            floors = [sum(values) / len(values) for values in zip(*entry.floors.values(), strict=True)] or [nan, nan]
            flag = "collapsed" if column[0] in row.collapsed else ""
            about = [row.variant, *column, len(entry.by_seed), _plain(entry.mean), _plain(entry.std)]
            mark = table.marks.get((row.variant, column), "")
            against = "" if isnan(entry.difference) else reference_variant(table.study, row.levels)
            yield [*about, against, *_difference(entry), mark, *map(_plain, floors), flag]
        others = [("train", "energy", row.energy), ("train", "validation_nll", row.validation_nll)]
        if has_temperature(table):
            others.append(("test" if row.fitted_on_test else "validation", "temperature", row.temperature))
        for part, name, entry in others:
            about = [row.variant, part, name, len(entry.by_seed), _plain(entry.mean), _plain(entry.std)]
            yield [*about, *10 * [""]]
    for one in table.contrasts:
        for column, entry in one.entries.items():
            mark = table.contrast_marks.get((one.name, column), "")
            about = [one.name, *column, len(entry.differences), "", "", one.theirs]
            yield [*about, *_difference(entry), mark, "", "", ""]


def _difference(entry: Entry) -> list[str]:
    """Difference, ends, what the interval is about, and its p-value; no p-value from one seed."""
    interval = entry.interval
    if interval is None:
        return [_plain(entry.difference), "", "", "", ""]
    p_value = repr(interval.p_value) if interval.seeds > 1 else ""
    return [repr(entry.difference), repr(interval.low), repr(interval.high), interval.over, p_value]


def _plain(value: float) -> str:
    return "" if isnan(value) else repr(value)
