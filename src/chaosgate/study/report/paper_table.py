"""Tables as the paper lays them out: its own numbers, ours in the same columns, or both side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isnan, nan
from statistics import stdev
from typing import Any, NamedTuple

from chaosgate.metrics.aggregate import corruption_means
from chaosgate.metrics.names import PLUS_T, is_scaled, scaled, title
from chaosgate.study.plan.study import STRENGTH, paper_data
from chaosgate.study.report.collect import Finished
from chaosgate.study.report.table import Row, Table

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
class PaperTable:
    """Numbers in the rows and columns of a table of the paper.

    Args:
        name: Of the table, for captions.
        label: Of the paper's table.
        by: What a row is: method, stage, strength or corruption.
        columns: Keys of the numbers in order, e.g. ``top1``, ``top1_percent``, ``ece_gch``.
        decimals: Digits behind the point, by column.
        rows: Names of the rows with their numbers.
        strengths: The knob of each row, where the paper prints one.
        paper: The paper's numbers of the same rows and columns, if these are ours; it has none with +T.
        collapsed: Rows whose network lost accuracy and confidence together.
        on_test: Rows whose temperature has seen the test images.
    """

    name: str
    label: str
    by: str
    columns: tuple[str, ...]
    decimals: Mapping[str, int]
    rows: Mapping[str, Mapping[str, Number]]
    strengths: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, Mapping[str, Number]] | None = None
    collapsed: frozenset[str] = frozenset()
    on_test: frozenset[str] = frozenset()

    def is_plus_t(self, column: str) -> bool:
        """Whether a column is one after temperature scaling."""
        metric = corruption_column(column)[0] if self.by == "corruption" else column
        return is_scaled(metric)

    def title_of(self, column: str) -> str:
        if self.by == "corruption":  # e.g. ece_gch
            metric, method = corruption_column(column)
            return f"{title(metric)}, {ROW_TITLES.get(method, method)}"
        return f"{title(column.removesuffix('_percent'))}{' (%)' if column.endswith('_percent') else ''}"


def paper_table(name: str) -> PaperTable:
    """A table of the paper with the paper's own numbers."""
    data = paper_data()[name]
    columns = tuple(data["decimals"])
    rows = {str(row): {column: Number(*cells[column]) for column in columns} for row, cells in data["rows"].items()}
    strengths = {str(row): float(cells["g"]) for row, cells in data["rows"].items() if "g" in cells}
    return PaperTable(name, data["label"], data["by"], columns, data["decimals"], rows, strengths)


def table_beside_paper(name: str, table: Table, finished: Sequence[Finished]) -> PaperTable:
    """Our numbers in the layout of a table of the paper, the paper's beside them; what we do not have is missing."""
    data, paper = paper_data()[name], paper_table(name)
    decimals = {**paper.decimals, **_plus_t(paper)}
    ours = {row: {column: _ours(data, row, column, table, finished) for column in decimals} for row in paper.rows}
    measured = [column for column in decimals if any(not isnan(cells[column].mean) for cells in ours.values())]
    columns = tuple(column for column in decimals if column in paper.columns or column in measured)
    found = {row: _find_row(table, data, row) for row in paper.rows} if paper.by != "corruption" else {}
    return PaperTable(
        name,
        paper.label,
        paper.by,
        columns,
        decimals,
        ours,
        paper.strengths,
        paper.rows,
        frozenset(name for name, row in found.items() if row is not None and data["part"] in row.collapsed),
        _on_test(paper, found, finished),
    )


def _plus_t(paper: PaperTable) -> dict[str, int]:
    """The columns +T that belong to the paper's, with as many digits."""
    if paper.by != "corruption":
        return {scaled(column): paper.decimals[column] for column in paper.columns if column in PLUS_T}
    named = {column: corruption_column(column) for column in paper.columns}
    return {
        f"{scaled(metric)}_{method}": paper.decimals[column]
        for column, (metric, method) in named.items()
        if metric in PLUS_T
    }


def _on_test(paper: PaperTable, found: Mapping[str, Row | None], finished: Sequence[Finished]) -> frozenset[str]:
    if paper.by == "corruption":  # a row has the numbers of several methods
        return frozenset(paper.rows) if any(one.fitted_on_test for one in finished) else frozenset()
    return frozenset(name for name, row in found.items() if row is not None and row.fitted_on_test)


def corruption_column(column: str) -> tuple[str, str]:
    """Metric and method of a column in a table by corruption.

    >>> corruption_column("ece_gch"), corruption_column("ece_T_gch")
    (('ece', 'gch'), ('ece_T', 'gch'))
    """
    metric, method = column.split("_", 1)
    return (scaled(metric), method.removeprefix("T_")) if method.startswith("T_") else (metric, method)


def _ours(data: Mapping[str, Any], name: str, column: str, table: Table, finished: Sequence[Finished]) -> Number:
    part = str(data["part"])
    if data["by"] == "corruption":
        metric, method = corruption_column(column)
        return _corruption_number(name, metric, method, finished)
    row = _find_row(table, data, name)
    metric = column.removesuffix("_percent")
    if row is None or (part, metric) not in row.entries:
        return Number()
    entry, scale = row.entries[part, metric], 100.0 if column.endswith("_percent") else 1.0
    return Number(scale * entry.mean, scale * entry.std)


def _find_row(table: Table, data: Mapping[str, Any], name: str) -> Row | None:
    """The row of a method, or of the paper's method at a stage or strength; None unless there is exactly one.

    A table of the paper that names a checkpoint takes rows of that one, where a study tests several.
    """
    by, wanted = str(data["by"]), data.get("checkpoint")
    rows = [row for row in table.rows if wanted in (None, row.checkpoint) and row.members == 1]
    if by == "method":
        found = [row for row in rows if row.method == name]
    elif by == STRENGTH:
        mine = [row for row in rows if row.method == _OWN_METHOD and STRENGTH in row.levels]
        found = [row for row in mine if float(row.levels[STRENGTH]) == float(name)]
    else:
        found = [row for row in rows if row.method == _OWN_METHOD and row.levels.get(by) == name]
    return found[0] if len(found) == 1 else None


def _corruption_number(corruption: str, metric: str, method: str, finished: Sequence[Finished]) -> Number:
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
