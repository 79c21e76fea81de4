"""What a test found, on the terminal: clean, each corruption, and their mean."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from chaosgate.metrics import aggregate_cells
from chaosgate.metrics.names import title

_COLUMNS = ("top1", "nll", "ece", "gap", "brier", "nll_T", "ece_T")


def print_results(rows: Sequence[dict[str, Any]], checkpoint: str | None, where: str) -> None:
    """A line for the clean images, one for each corruption (mean over severities), one for their mean."""
    shown = [name for name in _COLUMNS if all(name in row for row in rows)]
    table = Table(title=f"{checkpoint or 'given weights'}, {rows[0]['n']:g} images a cell", title_justify="left")
    table.add_column("images", no_wrap=True)
    for name in shown:
        table.add_column(title(name), justify="right")
    corruptions = list(dict.fromkeys(row["corruption"] for row in rows))
    for corruption in corruptions:
        own = [row for row in rows if row["corruption"] == corruption]
        table.add_row(_label(own), *(f"{sum(row[name] for row in own) / len(own):.4f}" for name in shown))
    corrupted = [row for row in rows if row["severity"] > 0]
    if len({row["corruption"] for row in corrupted}) > 1:
        table.add_section()
        cells = {name: {(row["corruption"], row["severity"]): row[name] for row in corrupted} for name in shown}
        table.add_row("mean of corruptions", *(f"{float(aggregate_cells(cells[name])):.4f}" for name in shown))
    console = Console(width=max(Console().width, 100))  # a log is no terminal, and a cut name no name
    console.print(table)
    if missing := rows[0].get("temperature_missing"):
        console.print(f"no +T: {missing}", soft_wrap=True, highlight=False)
    console.print(f"{len(rows)} rows in {where}", soft_wrap=True, highlight=False)


def _label(rows: Sequence[dict[str, Any]]) -> str:
    severities = sorted(row["severity"] for row in rows)
    name = str(rows[0]["corruption"])
    return name if severities == [0] else f"{name} {','.join(map(str, severities))}"
