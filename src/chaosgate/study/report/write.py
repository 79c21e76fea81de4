"""Build a study's outputs from what is finished: terminal, Markdown, CSV, LaTeX, HTML. Nothing is trained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Size, Study, paper_data
from chaosgate.study.report.build import build_table
from chaosgate.study.report.collect import collect
from chaosgate.study.report.latex import latex_results, latex_table
from chaosgate.study.report.notes import footnotes
from chaosgate.study.report.paper_table import PaperTable, table_beside_paper
from chaosgate.study.report.selection import strength_tables
from chaosgate.study.report.text import csv_table, markdown_table, terminal_tables


def report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> Path:
    """Print the tables; write the files; return their directory."""
    from chaosgate.study.report.page import html_report  # imports matplotlib; the terminal should not wait for it

    finished = collect(runs)
    table = build_table(study, runs, finished)
    tables = strength_tables(table)
    console.print()
    for one in tables if table.columns else []:
        for grid in terminal_tables(one):
            console.print(grid)
    for note in footnotes(table):
        console.print(f"  {note}", style="dim", highlight=False)
    directory = root / study.name
    directory.mkdir(parents=True, exist_ok=True)
    blocks = [f"# {one.title}\n\n{markdown_table(one)}" for one in tables]
    notes = "\n".join(f"- {note}" for note in footnotes(table))
    (directory / "table.md").write_text("\n".join([*blocks, notes, ""]), encoding="utf-8")
    beside = [
        table_beside_paper(name, tables[0] if paper_data()[name]["by"] == "method" else table, finished)
        for name in study.paper
    ]
    if study.size is not None:
        beside = [_sized(one, study.size) for one in beside]
    latex = [*map(latex_results, tables), *map(latex_table, beside)]
    (directory / "table.tex").write_text("\n".join(latex), encoding="utf-8")
    (directory / "report.html").write_text(html_report(tables, beside, finished), encoding="utf-8")
    (directory / "table.csv").write_text(csv_table(table), encoding="utf-8")
    return directory


def _sized(table: PaperTable, size: Size) -> PaperTable:
    """A table that cannot be taken for the paper's experiment: its name says the size, its label is another."""
    images = " on made-up images" if size.made_up else ""
    return replace(table, name=f"{table.name}, {size.name} size{images}", label=f"{table.label}_{size.name}")
