"""A sheet as LaTeX (booktabs)."""

from chaosgate.study.report.sheet import ROW_TITLES, Number, Sheet, corruption_column, set_number

_COLUMNS = {
    "top1": r"Top-1$\uparrow$",
    "top1_percent": r"Top-1 (\%)$\uparrow$",
    "top5": r"Top-5$\uparrow$",
    "nll": r"NLL$\downarrow$",
    "ece": r"ECE$\downarrow$",
    "gap": "conf.$-$acc.",
    "brier": r"Brier$\downarrow$",
    "confidence": "conf.",
    "nll_T": r"NLL+T$\downarrow$",
    "ece_T": r"ECE+T$\downarrow$",
}
_COLLAPSED, _ON_TEST = r"$^\ddagger$", r"$^\dagger$"
_MISSING = "--"
_BY = {"method": "Method", "stage": "Stage", "strength": "$g$", "corruption": "Corruption"}


def latex_table(sheet: Sheet, caption: str = "") -> str:
    r"""A ``table`` environment; with the paper's numbers at hand, each column of ours has the paper's to its right.

    Columns +T have none: the paper does not scale. Footnotes below say what the marks mean.
    """
    with_g = bool(sheet.strengths)
    head = [_BY[sheet.by], *(["$g$"] if with_g else [])]
    for column in sheet.columns:
        head += [_title(sheet, column), *(["paper"] if _has_paper(sheet, column) else [])]
    lines = [
        r"\begin{table}[ht]",
        r"\centering",
        rf"\begin{{tabular}}{{l{'c' * (len(head) - 1)}}}",
        r"\toprule",
        _line(head),
        r"\midrule",
        *(_line(_cells(sheet, row, with_g)) for row in sheet.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip{{\footnotesize {note}\par}}" for note in _notes(sheet)),
    ]
    lines += [rf"\caption{{{caption or escape(sheet.name)}}}"]
    lines += [rf"\label{{{sheet.label}}}"] if sheet.label else []
    return "\n".join([*lines, r"\end{table}", ""])


def _notes(sheet: Sheet) -> list[str]:
    notes = []
    if any(sheet.is_plus_t(column) for column in sheet.columns):
        notes.append("+T: logits divided by one temperature that minimises the validation NLL.")
        if sheet.on_test:
            notes.append(f"{_ON_TEST}fitted on the test images themselves; +T looks better than it is.")
    if sheet.collapsed:
        notes.append(f"{_COLLAPSED}collapsed: accuracy and confidence were lost together; a small ECE is no success.")
    return notes


def _has_paper(sheet: Sheet, column: str) -> bool:
    return sheet.paper is not None and not sheet.is_plus_t(column)


def _title(sheet: Sheet, column: str) -> str:
    if column in _COLUMNS:
        return _COLUMNS[column]
    if sheet.by == "corruption":  # e.g. ece_gch
        metric, method = corruption_column(column)
        return f"{_COLUMNS[metric]} ({ROW_TITLES.get(method, escape(method))})"
    part, metric = column.split(" ", 1)
    return f"{part} {_COLUMNS[metric]}"


def _cells(sheet: Sheet, row: str, with_g: bool) -> list[str]:
    cells = [ROW_TITLES.get(row, escape(row)) + (_COLLAPSED if row in sheet.collapsed else "")]
    if with_g:
        cells.append(f"{sheet.strengths[row]:g}" if row in sheet.strengths else "")
    for column in sheet.columns:
        ours = _set(sheet.rows[row][column], sheet.decimals[column])
        marked = sheet.is_plus_t(column) and row in sheet.on_test and ours != _MISSING
        cells.append(ours + (_ON_TEST if marked else ""))
        if sheet.paper is not None and _has_paper(sheet, column):
            cells.append(_set(sheet.paper[row][column], sheet.decimals[column]))
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
