"""Build a study's outputs from what is finished: terminal, Markdown, CSV. Nothing is trained."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from chaosgate.study.render import csv_table, footnotes, markdown_table, terminal_table
from chaosgate.study.runs import Run
from chaosgate.study.specification import Study
from chaosgate.study.table import build_table


def report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> Path:
    """Print the table; write the files; return their directory."""
    table = build_table(study, runs)
    console.print()
    if table.columns:
        console.print(terminal_table(table))
    for note in footnotes(table):
        console.print(f"  {note}", style="dim", highlight=False)
    directory = root / study.name
    directory.mkdir(parents=True, exist_ok=True)
    notes = "\n".join(f"- {note}" for note in footnotes(table))
    (directory / "table.md").write_text(f"# {study.name}\n\n{markdown_table(table)}\n{notes}\n", encoding="utf-8")
    (directory / "table.csv").write_text(csv_table(table), encoding="utf-8")
    return directory
