"""One self-contained HTML file: tables, pictures, configuration. Nothing is fetched when it is opened."""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from math import isnan
from string import Template

import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

from chaosgate.study.plan.study import STRENGTH
from chaosgate.study.report import figures
from chaosgate.study.report.collect import Finished
from chaosgate.study.report.render import COLLAPSED, ON_TEST, TITLES, footnotes, has_temperature, number, on_test
from chaosgate.study.report.sheet import ROW_TITLES, Sheet, set_number
from chaosgate.study.report.table import CLEAN, CORRUPTED, Entry, Row, Table
from chaosgate.study.report.temperature import is_scaled
from chaosgate.study.report.temperature_figure import temperature_figure


def html_report(tables: Sequence[Table], sheets: Sequence[Sheet], finished: Sequence[Finished]) -> str:
    """The report of a study.

    Args:
        tables: The first is the one that pictures by method are drawn from, the last has every row.
        sheets: Tables of the paper with our numbers beside.
        finished: The finished runs.
    """
    main, whole = tables[0], tables[-1]
    sections: list[tuple[str, str]] = [("Results", _results(tables))]
    if sheets:
        sections.append(("Beside the paper", "".join(map(_sheet, sheets))))
    if finished:
        sections += _pictures(main, whole, finished)
        sections.append(("Runs", _runs(finished)))
        sections.append(("Configuration", _configuration(whole, finished)))
    body = "".join(f'<section id="{_anchor(title)}"><h2>{title}</h2>{content}</section>' for title, content in sections)
    links = "".join(f'<a href="#{_anchor(title)}">{title}</a>' for title, _ in sections)
    template = Template((files("chaosgate.study.report") / "report.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(main.study.name), lead=escape(_lead(main)), links=links, body=body)


def _lead(table: Table) -> str:
    facts = table.facts
    if not facts:
        return "No run has finished yet."
    subset = " (subset)" if facts["subset"] else ""
    images = ", ".join(f"{count:,} {part}" for part, count in facts["images"].items())
    seeds = len(table.study.seeds)
    lead = f"{facts['backbone']} on {facts['data']}{subset}: {images} images; {seeds} seed{'s' if seeds > 1 else ''}."
    return lead if table.study.size is None else f"{table.study.size.warning} {lead}"


def _results(tables: Sequence[Table]) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in footnotes(tables[-1], mark="Blue"))
    titled = len(tables) > 1
    parts = [(f"<h3>{escape(table.title)}</h3>" if titled else "") + _table(table) for table in tables if table.columns]
    return "".join(parts) + f'<ul class="notes">{notes}</ul>'


def _table(table: Table) -> str:
    """Clean and corrupted results beneath each other: side by side they do not fit into a window."""
    metrics = list(dict.fromkeys(metric for _, metric in table.columns))
    last = ["T", "energy"] if has_temperature(table) else ["energy"]
    heads = "".join(f"<th{_tint(metric)}>{TITLES[metric]}</th>" for metric in metrics)
    heads = f'<th class="name">method</th><th>seeds</th>{heads}{"".join(f"<th>{name}</th>" for name in last)}'
    rows = ""
    for part in dict.fromkeys(part for part, _ in table.columns):
        rows += f'<tr class="part"><th colspan="{2 + len(metrics) + len(last)}">{part}</th></tr>'
        rows += "".join(_row(table, row, part, metrics) for row in table.rows)
    return _grid([heads], rows)


def _grid(heads: Sequence[str], rows: str) -> str:
    """A table that scrolls sideways where the window is narrow."""
    head = "".join(f"<tr>{cells}</tr>" for cells in heads)
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _row(table: Table, row: Row, part: str, metrics: Sequence[str]) -> str:
    flag = '<span class="flag">collapsed</span>' if part in row.collapsed else ""
    cells = "".join(
        f"<td{_tint(metric)}>{_entry(metric, row.entries[part, metric], row)}</td>"
        if (part, metric) in row.entries
        else f"<td{_tint(metric)}></td>"
        for metric in metrics
    )
    cells += f"<td>{number(row.temperature.mean)}{on_test(row)}</td>" if has_temperature(table) else ""
    kind = ' class="reference"' if row.is_reference else ""
    name = f'<td class="name">{escape(row.variant)}{flag}</td><td>{len(row.seeds)}</td>'
    return f"<tr{kind}>{name}{cells}<td>{number(row.energy.mean)}</td></tr>"


def _tint(metric: str) -> str:
    return ' class="plus-t"' if is_scaled(metric) else ""


def _entry(metric: str, entry: Entry, row: Row) -> str:
    mark = on_test(row) if is_scaled(metric) else ""
    text = f"<b>{number(entry.mean)}{mark}</b>" if not isnan(entry.mean) else '<i class="missing">missing</i>'
    if not isnan(entry.std):
        text += f'<span class="std">± {entry.std:.3f}</span>'
    if not row.is_reference and not isnan(entry.difference):
        settled = entry.interval is not None and entry.interval.excludes_zero
        text += f'<span class="{"settled" if settled else "open"}">{entry.difference:+.3f}</span>'
        if entry.interval is not None:
            text += f'<span class="interval">{entry.interval.low:+.3f} … {entry.interval.high:+.3f}</span>'
    return text


def _sheet(sheet: Sheet) -> str:
    heads = "".join(
        f'<th class="plus-t">{escape(column.replace("_T", "+T"))}</th>'
        if sheet.is_plus_t(column)
        else f'<th>{escape(column)}</th><th class="paper">paper</th>'
        for column in sheet.columns
    )
    lines = []
    for row, numbers in sheet.rows.items():
        cells = ""
        for column in sheet.columns:
            ours = set_number(numbers[column], sheet.decimals[column])
            if sheet.is_plus_t(column):
                cells += f'<td class="plus-t">{ours + (ON_TEST if row in sheet.on_test else "") if ours else "–"}</td>'
                continue
            theirs = set_number(sheet.paper[row][column], sheet.decimals[column]) if sheet.paper else ""
            cells += f'<td>{ours or "–"}</td><td class="paper">{theirs}</td>'
        flag = '<span class="flag">collapsed</span>' if row in sheet.collapsed else ""
        lines.append(f'<tr><td class="name">{escape(ROW_TITLES.get(row, row))}{flag}</td>{cells}</tr>')
    head = f'<th class="name">{sheet.by}</th>{heads}'
    note = f'<ul class="notes"><li>{COLLAPSED}</li></ul>' if sheet.collapsed else ""
    return f"<h3>{escape(sheet.name)}</h3>{_grid([head], ''.join(lines))}{note}"


def _pictures(main: Table, whole: Table, finished: Sequence[Finished]) -> list[tuple[str, str]]:
    corrupted = bool(whole.facts["corruptions"])
    sections: list[tuple[str, str]] = []
    diagrams = ""
    for part, words in (
        (CLEAN, "Clean test set."),
        (CORRUPTED, "All corrupted cells pooled (the tables average cells)."),
    ):
        pictures = figures.reliability_figures(main, finished, part)
        if pictures:
            grid = "".join(_image(picture, f"reliability of {name}, {part}") for name, picture in pictures.items())
            diagrams += f'<p>{words}</p><div class="grid">{grid}</div>'
    if diagrams:
        sections.append(("Reliability", diagrams))
    if has_temperature(main):
        picture = _image(temperature_figure(main), "ECE before and after temperature scaling")
        sections.append(("Temperature", "<p>What one temperature does, beside what noise does.</p>" + picture))
    sections.append(("Energy", _image(figures.energy_figure(whole), "ECE and NLL against injected energy")))
    for axis in dict.fromkeys(axis for row in whole.rows for axis in row.levels):
        title = "Strength" if axis == STRENGTH else axis.capitalize()
        sections.append((title, _image(figures.axis_figure(whole, axis), f"ECE and NLL against {axis}")))
    if corrupted:
        metrics = [metric for metric in ("top1", "nll", "ece", "gap") if metric in whole.study.metrics]
        bars = (
            _image(figures.corruption_figure(main, finished, metric), f"{metric} by corruption") for metric in metrics
        )
        sections.append(("Corruptions", "".join(bars)))
        curves = figures.severity_figure(main, finished, metrics)
        sections.append(("Severity", _image(curves, "metrics against severity")))
    if any(one.curves for one in finished):
        sections.append(("Training", _image(figures.curves_figure(main, finished), "training curves")))
    return sections


def _image(figure: Figure, words: str) -> str:
    """An SVG inside the page; as an image, so that its names cannot clash with those of the next."""
    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "chaosgate", "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    data = base64.b64encode(out.getvalue().encode()).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{data}">'


def _runs(finished: Iterable[Finished]) -> str:
    rows = ""
    for one in finished:
        seconds, cpu = one.record["seconds"], one.record["cpu_seconds"]
        spent = (f"{value:.0f}" for value in (seconds["fit"], seconds["test"], cpu["fit"] + cpu["test"]))
        cells = (*spent, str(one.record["threads"]), one.record["checkpoint"][:12])
        rows += f'<tr><td class="name">{escape(one.run.name)}</td>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    head = "<th>fit, s</th><th>test, s</th><th>CPU, s</th><th>threads</th><th>checkpoint</th>"
    return _grid([f'<th class="name">run</th>{head}'], rows)


def _configuration(table: Table, finished: Sequence[Finished]) -> str:
    facts = table.facts
    about = {"commit": facts["commits"], "versions": facts["versions"]}
    shared = finished[0].config
    blocks = {
        "Study file": table.study.path.read_text(encoding="utf-8"),
        "Versions": yaml.safe_dump(about, sort_keys=False),
        f"Whole configuration of {finished[0].run.name}": yaml.safe_dump(shared, sort_keys=False),
    }
    return "".join(_details(title, text) for title, text in blocks.items())


def _details(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
