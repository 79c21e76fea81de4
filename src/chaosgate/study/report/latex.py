"""A printed table in LaTeX (booktabs)."""

from chaosgate.metrics.names import latex_title
from chaosgate.study.report.printed_table import ROW_TITLES, Number, PrintedTable, corruption_column, set_number

_COLLAPSED, _ON_TEST = r"$^\ddagger$", r"$^\dagger$"
_MISSING = "--"
_BY = {"method": "Method", "stage": "Stage", "strength": "$g$", "corruption": "Corruption"}


def latex_table(table: PrintedTable, caption: str = "") -> str:
    r"""A ``table`` environment; with the paper's numbers at hand, each column of ours has the paper's to its right.

    Columns +T have none: the paper does not scale. Footnotes below say what the marks mean.
    """
    with_g = bool(table.strengths)
    head = [_BY[table.by], *(["$g$"] if with_g else [])]
    for column in table.columns:
        head += [_title(table, column), *(["paper"] if _has_paper(table, column) else [])]
    lines = [
        r"\begin{table}[ht]",
        r"\centering",
        rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
        r"\toprule",
        _line(head),
        r"\midrule",
        *(_line(_cells(table, row, with_g)) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip{{\footnotesize {note}\par}}" for note in _notes(table)),
    ]
    lines += [rf"\caption{{{caption or escape(table.name)}}}"]
    lines += [rf"\label{{{table.label}}}"] if table.label else []
    return "\n".join([*lines, r"\end{table}", ""])


def _notes(table: PrintedTable) -> list[str]:
    notes = []
    if any(table.is_plus_t(column) for column in table.columns):
        notes.append("+T: logits divided by one temperature that minimises the validation NLL.")
        if table.on_test:
            notes.append(f"{_ON_TEST}fitted on the test images themselves; +T looks better than it is.")
    if table.collapsed:
        notes.append(f"{_COLLAPSED}collapsed: accuracy and confidence were lost together; a small ECE is no success.")
    return notes


def _has_paper(table: PrintedTable, column: str) -> bool:
    return table.paper is not None and not table.is_plus_t(column)


def _title(table: PrintedTable, column: str) -> str:
    if table.by == "corruption":  # e.g. ece_gch
        metric, method = corruption_column(column)
        return f"{latex_title(metric)} ({ROW_TITLES.get(method, escape(method))})"
    if column.endswith("_percent"):
        return latex_title(column.removesuffix("_percent")).replace("$", r" (\%)$", 1)
    part, _, metric = column.rpartition(" ")
    return f"{part} {latex_title(metric)}".lstrip()


def _cells(table: PrintedTable, row: str, with_g: bool) -> list[str]:
    cells = [ROW_TITLES.get(row, escape(row)) + (_COLLAPSED if row in table.collapsed else "")]
    if with_g:
        cells.append(f"{table.strengths[row]:g}" if row in table.strengths else "")
    for column in table.columns:
        ours = _set(table.rows[row][column], table.decimals[column])
        marked = table.is_plus_t(column) and row in table.on_test and ours != _MISSING
        cells.append(ours + (_ON_TEST if marked else ""))
        if table.paper is not None and _has_paper(table, column):
            cells.append(_set(table.paper[row][column], table.decimals[column]))
    return cells


def _set(number: Number, decimals: int) -> str:
    return set_number(number, decimals, r"$\pm$") or _MISSING


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def escape(text: str) -> str:
    r"""Plain text for LaTeX.

    >>> escape("defocus_blur, 5 %")
    'defocus\\_blur, 5 \\%'
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: rf"\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
