"""Tables as the paper lays them out: its own numbers, ours in the same columns, or both side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isnan, nan
from statistics import stdev
from typing import Any, NamedTuple

from chaosgate.study.collect import Finished
from chaosgate.study.paper import paper_data
from chaosgate.study.specification import STRENGTH
from chaosgate.study.table import Row, Table

ROW_TITLES = {
    "none": "None",
    "dropout": "Dropout",
    "dropblock": "DropBlock",
    "iid_gaussian": "IID Gaussian",
    "correlated_gaussian": "Corr. Gaussian",
    "gch": "GCh",
}
_OWN_METHOD = "gch"  # the method of the paper's tables over stages and strengths


class Number(NamedTuple):
    """A mean and its standard deviation over seeds, nan where there is one seed or nothing."""

    mean: float = nan
    std: float = nan


@dataclass(frozen=True)
class Sheet:
    """A table ready to be set.

    Args:
        name: Of the table, for files and captions.
        label: Of the paper's table, or empty.
        by: What a row is: method, stage, strength or corruption.
        columns: Keys of the numbers in order, e.g. ``top1``, ``top1_percent``, ``ece_gch``.
        decimals: Digits behind the point, by column.
        rows: Names of the rows with their numbers.
        strengths: The knob of each row, where the paper prints one.
        paper: The paper's numbers of the same rows and columns, if these are ours.
    """

    name: str
    label: str
    by: str
    columns: tuple[str, ...]
    decimals: Mapping[str, int]
    rows: Mapping[str, Mapping[str, Number]]
    strengths: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, Mapping[str, Number]] | None = None


def paper_sheet(name: str) -> Sheet:
    """A table of the paper with the paper's own numbers."""
    data = paper_data()[name]
    columns = tuple(data["decimals"])
    rows = {str(row): {column: Number(*cells[column]) for column in columns} for row, cells in data["rows"].items()}
    strengths = {str(row): float(cells["g"]) for row, cells in data["rows"].items() if "g" in cells}
    return Sheet(name, data["label"], data["by"], columns, data["decimals"], rows, strengths)


def result_sheet(name: str, table: Table, finished: Sequence[Finished]) -> Sheet:
    """Our numbers in the layout of a table of the paper, the paper's beside them; what we do not have is missing."""
    data, paper = paper_data()[name], paper_sheet(name)
    ours = {row: {column: _ours(data, row, column, table, finished) for column in paper.columns} for row in paper.rows}
    return Sheet(name, paper.label, paper.by, paper.columns, paper.decimals, ours, paper.strengths, paper.rows)


def plain_sheet(table: Table) -> Sheet:
    """Our numbers in our own layout: a row per variant, clean and corrupted columns."""
    columns = tuple(f"{part} {metric}" for part, metric in table.columns)
    rows = {
        row.variant: {
            f"{part} {metric}": Number(row.entries[part, metric].mean, row.entries[part, metric].std)
            for part, metric in table.columns
        }
        for row in table.rows
    }
    return Sheet(table.study.name, "", "method", columns, dict.fromkeys(columns, 3), rows)


def _ours(data: Mapping[str, Any], name: str, column: str, table: Table, finished: Sequence[Finished]) -> Number:
    part = str(data["part"])
    if data["by"] == "corruption":
        metric, method = column.split("_")
        return _corruption_number(name, metric, method, finished)
    row = _find_row(table, str(data["by"]), name)
    metric = column.removesuffix("_percent")
    if row is None or (part, metric) not in row.entries:
        return Number()
    entry, scale = row.entries[part, metric], 100.0 if column.endswith("_percent") else 1.0
    return Number(scale * entry.mean, scale * entry.std)


def _find_row(table: Table, by: str, name: str) -> Row | None:
    """The row of a method, or of the paper's method at a stage or strength; None unless there is exactly one."""
    if by == "method":
        found = [row for row in table.rows if row.method == name]
    elif by == STRENGTH:
        mine = [row for row in table.rows if row.method == _OWN_METHOD and STRENGTH in row.levels]
        found = [row for row in mine if float(row.levels[STRENGTH]) == float(name)]
    else:
        found = [row for row in table.rows if row.method == _OWN_METHOD and row.levels.get(by) == name]
    return found[0] if len(found) == 1 else None


def _corruption_number(corruption: str, metric: str, method: str, finished: Sequence[Finished]) -> Number:
    from chaosgate.metrics import corruption_means

    means = [corruption_means(one.by_cell(metric)) for one in finished if one.run.method == method]
    values = [mean[corruption] for mean in means if corruption in mean]
    if not values:
        return Number()
    return Number(fsum(values) / len(values), stdev(values) if len(values) > 1 else nan)


def set_number(number: Number, decimals: int, plus_minus: str = " ± ") -> str:
    """Digits as the paper prints them; empty if there is nothing.

    >>> set_number(Number(0.03, 0.001), 3)
    '0.030 ± 0.001'
    """
    if isnan(number.mean):
        return ""
    spread = "" if isnan(number.std) else f"{plus_minus}{number.std:.{decimals}f}"
    return f"{number.mean:.{decimals}f}{spread}"
