"""Tables in LaTeX: ours, and the paper's beside ours. They need booktabs and graphicx."""

from math import isnan

from chaosgate.metrics.names import is_scaled, latex_title
from chaosgate.study.report.inference import Interval
from chaosgate.study.report.notes import count
from chaosgate.study.report.paper_table import ROW_TITLES, Number, PaperTable, corruption_column, set_number
from chaosgate.study.report.table import Column, Mark, Row, Table

_COLLAPSED, _ON_TEST, _SELECTED = r"$^\ddagger$", r"$^\dagger$", r"$^\S$"
_MARKS: dict[Mark | None, str] = {"better": "$^{+}$", "worse": "$^{-}$", None: ""}
_COLLAPSED_NOTE = f"{_COLLAPSED}collapsed: accuracy and confidence were lost together; a small ECE is not a success."
_MISSING = "--"
_BY = {"method": "Method", "stage": "Stage", "strength": "$g$", "corruption": "Corruption"}


def latex_results(table: Table) -> str:
    r"""Our table, a row per variant, clean and corrupted results beneath each other, no wider than a column.

    Beneath each number stands the difference to the reference with its 95 % interval.
    """
    metrics = list(dict.fromkeys(metric for _, metric in table.columns))
    lines = [_line(["", *map(latex_title, metrics)])]
    for part in dict.fromkeys(part for part, _ in table.columns):
        lines += [r"\midrule", rf"\multicolumn{{{len(metrics) + 1}}}{{l}}{{\emph{{{part}}}}} \\"]
        for row in table.rows:
            lines += _result_lines(table, row, part, metrics)
    name = escape(table.title)
    return _environment(len(metrics), lines, _result_notes(table), name, "")


def _result_lines(table: Table, row: Row, part: str, metrics: list[str]) -> list[str]:
    name = ROW_TITLES.get(row.variant, escape(row.variant))
    name += (_SELECTED if row.selected_on_test else "") + (_COLLAPSED if part in row.collapsed else "")
    first, second = [name], [""]
    for metric in metrics:
        column = (part, metric)
        if column not in row.entries or isnan(row.entries[column].mean):
            first.append(_MISSING if column in row.entries else "")
            second.append("")
            continue
        entry = row.entries[column]
        mean = f"{entry.mean:.3f}"
        mean = rf"\textbf{{{mean}}}" if row.variant in table.best.get(column, ()) else mean
        spread = "" if isnan(entry.std) else rf"$\pm${entry.std:.3f}"
        first.append(mean + spread + (_ON_TEST if is_scaled(metric) and row.fitted_on_test else ""))
        second.append(_change(table, row, column))
    if not any(second):
        return [_line(first)]
    return [_line(first), _line([cell and rf"{{\scriptsize {cell}}}" for cell in second])]


def _change(table: Table, row: Row, column: Column) -> str:
    entry = row.entries[column]
    if isnan(entry.difference):
        return ""
    mark = _MARKS[table.marks.get((row.variant, column))]
    return f"${entry.difference:+.3f}$" + mark + ("" if entry.interval is None else _ends(entry.interval))


def _ends(interval: Interval) -> str:
    return f" [${interval.low:+.3f}$, ${interval.high:+.3f}$]"


def _result_notes(table: Table) -> list[str]:
    """What stands beneath our table: seeds, images, what the signs mean."""
    if not table.facts:
        return ["No run has finished yet."]
    study, entries = table.study, [entry for row in table.rows for entry in row.entries.values()]
    over = {entry.interval.over for entry in entries if entry.interval is not None}
    seeds = count(len(study.seeds), "seed")
    spread = r"; $\pm$: standard deviation over seeds" if len(study.seeds) > 1 else ""
    notes = [f"{seeds}, {table.facts['n']:g} test images per cell{spread}. Bold: the best mean."]
    if over:
        words = {"seeds": "other seeds on these test images", "seeds and images": "other seeds and test images"}
        about = ", or ".join(words.get(one, f"{one} on other test images") for one in sorted(over))
        notes.append(f"Small: difference to {escape(study.reference)} [95\\,\\% interval, about {about}].")
    if over - {"these two networks"}:
        notes.append(r"$^{+}$ better, $^{-}$ worse at the 5\,\% level with Holm's correction; no sign: cannot tell.")
    if any(is_scaled(metric) for _, metric in table.columns):
        notes.append("+T: logits divided by one temperature that minimises the validation NLL.")
    if any(row.fitted_on_test for row in table.rows):
        notes.append(f"{_ON_TEST}fitted on the test images themselves; +T looks better than it is.")
    if any(row.selected_on_test for row in table.rows):
        notes.append(f"{_SELECTED}checkpoint selected on the test images themselves.")
    if any(row.collapsed for row in table.rows):
        notes.append(_COLLAPSED_NOTE)
    return notes


def latex_table(table: PaperTable, caption: str = "") -> str:
    r"""A table of the paper; with ours at hand, each column of ours has the paper's to its right.

    Columns +T have none: the paper does not scale. Footnotes below say what the marks mean.
    """
    with_g = bool(table.strengths)
    head = [_BY[table.by], *(["$g$"] if with_g else [])]
    for column in table.columns:
        head += [_title(table, column), *(["paper"] if _has_paper(table, column) else [])]
    lines = [_line(head), r"\midrule", *(_line(_cells(table, row, with_g)) for row in table.rows)]
    return _environment(len(head) - 1, lines, _notes(table), caption or escape(table.name), table.label)


def _environment(columns: int, lines: list[str], notes: list[str], caption: str, label: str) -> str:
    """A ``table`` that is scaled down where it would be wider than the column."""
    whole = [
        r"\begin{table}[ht]",
        r"\centering",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * columns}}}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}}",
        *(rf"\par\smallskip{{\footnotesize {note}\par}}" for note in notes),
        rf"\caption{{{caption}}}",
        *([rf"\label{{{label}}}"] if label else []),
        r"\end{table}",
        "",
    ]
    return "\n".join(whole)


def _notes(table: PaperTable) -> list[str]:
    notes = []
    if any(table.is_plus_t(column) for column in table.columns):
        notes.append("+T: logits divided by one temperature that minimises the validation NLL.")
        if table.on_test:
            notes.append(f"{_ON_TEST}fitted on the test images themselves; +T looks better than it is.")
    if table.collapsed:
        notes.append(_COLLAPSED_NOTE)
    return notes


def _has_paper(table: PaperTable, column: str) -> bool:
    return table.paper is not None and not table.is_plus_t(column)


def _title(table: PaperTable, column: str) -> str:
    if table.by == "corruption":  # e.g. ece_gch
        metric, method = corruption_column(column)
        return f"{latex_title(metric)} ({ROW_TITLES.get(method, escape(method))})"
    if column.endswith("_percent"):
        return latex_title(column.removesuffix("_percent")).replace("$", r" (\%)$", 1)
    part, _, metric = column.rpartition(" ")
    return f"{part} {latex_title(metric)}".lstrip()


def _cells(table: PaperTable, row: str, with_g: bool) -> list[str]:
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
