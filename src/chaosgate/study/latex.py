"""A sheet as LaTeX (booktabs)."""

from chaosgate.study.sheet import ROW_TITLES, Number, Sheet, set_number

_COLUMNS = {
    "top1": r"Top-1$\uparrow$",
    "top1_percent": r"Top-1 (\%)$\uparrow$",
    "top5": r"Top-5$\uparrow$",
    "nll": r"NLL$\downarrow$",
    "ece": r"ECE$\downarrow$",
    "gap": "conf.$-$acc.",
    "brier": r"Brier$\downarrow$",
    "confidence": "conf.",
}
_BY = {"method": "Method", "stage": "Stage", "strength": "$g$", "corruption": "Corruption"}


def latex_table(sheet: Sheet, caption: str = "") -> str:
    r"""A ``table`` environment; with the paper's numbers at hand, each column of ours has the paper's to its right."""
    with_g = bool(sheet.strengths)
    head = [_BY[sheet.by], *(["$g$"] if with_g else []), *(_title(sheet, column) for column in sheet.columns)]
    if sheet.paper is not None:
        fixed = 1 + with_g
        head = head[:fixed] + [name for title in head[fixed:] for name in (title, "paper")]
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
    ]
    lines += [rf"\caption{{{caption or escape(sheet.name)}}}"]
    lines += [rf"\label{{{sheet.label}}}"] if sheet.label else []
    return "\n".join([*lines, r"\end{table}", ""])


def _title(sheet: Sheet, column: str) -> str:
    if column in _COLUMNS:
        return _COLUMNS[column]
    if sheet.by == "corruption":  # e.g. ece_gch
        metric, method = column.split("_", 1)
        return f"{_COLUMNS[metric]} ({ROW_TITLES.get(method, escape(method))})"
    part, metric = column.split(" ", 1)
    return f"{part} {_COLUMNS[metric]}"


def _cells(sheet: Sheet, row: str, with_g: bool) -> list[str]:
    cells = [ROW_TITLES.get(row, escape(row))]
    if with_g:
        cells.append(f"{sheet.strengths[row]:g}" if row in sheet.strengths else "")
    for column in sheet.columns:
        numbers = [sheet.rows[row][column]] + ([sheet.paper[row][column]] if sheet.paper is not None else [])
        cells += [_set(number, sheet.decimals[column]) for number in numbers]
    return cells


def _set(number: Number, decimals: int) -> str:
    return set_number(number, decimals, r"$\pm$") or "--"


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
