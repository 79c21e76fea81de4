"""Build a study's outputs from what is finished: terminal, Markdown, CSV, LaTeX, HTML. Nothing is trained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from chaosgate.study.plan.paper import paper_data
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Size, Study
from chaosgate.study.report.collect import collect
from chaosgate.study.report.latex import latex_table
from chaosgate.study.report.render import csv_table, footnotes, markdown_table, terminal_table
from chaosgate.study.report.sheet import Sheet, plain_sheet, result_sheet
from chaosgate.study.report.strength import strength_tables
from chaosgate.study.report.table import build_table


def report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> Path:
    """Print the tables; write the files; return their directory."""
    from chaosgate.study.report.html_report import (
        html_report,  # imports matplotlib; the terminal should not wait for it
    )

    finished = collect(runs)
    table = build_table(study, runs, finished)
    tables = strength_tables(table)
    console.print()
    for one in tables if table.columns else []:
        console.print(terminal_table(one))
    for note in footnotes(table):
        console.print(f"  {note}", style="dim", highlight=False)
    directory = root / study.name
    directory.mkdir(parents=True, exist_ok=True)
    blocks = [f"# {one.title}\n\n{markdown_table(one)}" for one in tables]
    notes = "\n".join(f"- {note}" for note in footnotes(table))
    (directory / "table.md").write_text("\n".join([*blocks, notes, ""]), encoding="utf-8")
    sheets = [
        result_sheet(name, tables[0] if paper_data()[name]["by"] == "method" else table, finished)
        for name in study.paper
    ]
    if study.size is not None:
        sheets = [_sized(sheet, study.size) for sheet in sheets]
    latex = map(latex_table, [*map(plain_sheet, tables), *sheets])
    (directory / "table.tex").write_text("\n".join(latex), encoding="utf-8")
    (directory / "report.html").write_text(html_report(tables, sheets, finished), encoding="utf-8")
    (directory / "table.csv").write_text(csv_table(table), encoding="utf-8")
    return directory


def _sized(sheet: Sheet, size: Size) -> Sheet:
    """A sheet that cannot be taken for the paper's experiment: its name says the size, its label is another."""
    images = " on made-up images" if size.made_up else ""
    return replace(sheet, name=f"{sheet.name}, {size.name} size{images}", label=f"{sheet.label}_{size.name}")
