"""Tables in LaTeX: ours, and the paper's beside ours. They need booktabs and graphicx."""

from collections.abc import Sequence
from itertools import product
from math import isnan
from typing import NamedTuple

from chaosgate.metrics.names import FITTED_ON_TEST, ON_TEST, is_scaled, latex_title, scaled
from chaosgate.study.report.inference import Interval, Over
from chaosgate.study.report.notes import bins_note, bold_note, corrupted_note, count, signed
from chaosgate.study.report.paper_table import ROW_TITLES, Number, PaperTable, corruption_column, set_number
from chaosgate.study.report.table import CORRUPTED, Column, Contrast, Entry, Mark, Row, Table

_COLLAPSED, _ON_TEST, _SELECTED = r"$^\ddagger$", r"$^\dagger$", r"$^\S$"
_MARKS: dict[Mark | None, str] = {"better": "$^{+}$", "worse": "$^{-}$", None: ""}
_COLLAPSED_NOTE = f"{_COLLAPSED}collapsed: accuracy and confidence were lost together; a small ECE is not a success."
_MISSING = "--"
PAGE_LINES = 45  # what a page of the article class holds, with six lines of notes and a caption
_BY = {"method": "Method", "stage": "Stage", "strength": "$g$", "corruption": "Corruption"}


class _Section(NamedTuple):
    """Rows of one part beneath a head of metrics, as trained or with +T."""

    part: str
    metrics: tuple[str, ...]
    plus_t: bool
    rows: tuple[Row, ...]

    @property
    def columns(self) -> list[Column]:
        return [(self.part, scaled(metric) if self.plus_t else metric) for metric in self.metrics]


def latex_results(table: Table) -> str:
    r"""Our table, no wider than a column: blocks of four metrics, in each clean and corrupted, without and with +T.

    Beneath each number stands the 95 % interval of its difference to the reference. What would be longer than a page
    becomes several tables.
    """
    groups: list[list[_Section]] = []
    for block, part in product(table.blocks, dict.fromkeys(part for part, _ in table.columns)):
        shown = tuple(metric for metric in block if (part, metric) in table.columns)
        both = [_Section(part, shown, plus_t, table.rows) for plus_t in (False, True)]
        groups.append([one for one in both if set(one.columns) & set(table.columns)])
    pages = [[section for group in groups for section in group]]
    if len(_section_lines(table, pages[0])) > PAGE_LINES:
        pages = [page for group in groups for page in _pages(table, group)]
    tables = []
    for k, page in enumerate(pages, start=1):
        caption = escape(table.title) + (f" ({k} of {len(pages)})" if len(pages) > 1 else "")
        notes = _result_notes(table, [column for section in page for column in section.columns])
        tables.append(_environment(_width(page), _section_lines(table, page), notes, caption, ""))
    return "\n".join(tables)


def _pages(table: Table, group: list[_Section]) -> list[list[_Section]]:
    """Sections that stand in one table: all of them if they fit a page, else each for itself, its rows in portions."""
    if len(_section_lines(table, group)) <= PAGE_LINES:
        return [group] if group else []
    size = max(1, (PAGE_LINES - 4) // 2)  # a row has two lines; the head, its rule, the name of the part, the floor
    pages = []
    for section in group:
        kept = zip(section.metrics, section.columns, strict=True)
        alone = section._replace(metrics=tuple(metric for metric, column in kept if column in table.columns))
        pages += [[alone._replace(rows=section.rows[k : k + size])] for k in range(0, len(section.rows), size)]
    return pages


def _width(sections: Sequence[_Section]) -> int:
    return max((len(section.metrics) for section in sections), default=0)


def _section_lines(table: Table, sections: Sequence[_Section]) -> list[str]:
    """The lines of a table; a head of columns is not repeated."""
    width = _width(sections)
    lines: list[str] = []
    for section in sections:
        head = _line(["", *map(latex_title, section.metrics), *[""] * (width - len(section.metrics))])
        if head not in lines:
            lines += [*([r"\midrule"] if lines else []), head]
        lines += _part_lines(table, section, width)
    return lines


def latex_contrasts(table: Table) -> str:
    """Differences between methods, and to the reference +T; beneath each its 95 % interval.

    The two names stand above each other, so that the numbers have room in a narrow column.
    """
    columns = list(table.contrasts[0].entries)
    head = [_line(["", *(f"{part} {latex_title(metric)}" for part, metric in columns)]), r"\midrule"]
    entries = [entry for one in table.contrasts for entry in one.entries.values()]
    notes = [f"{_rests_on(table)}. {bins_note(table)} +T: after temperature scaling."]
    notes += [corrupted_note(table)] if any(part == CORRUPTED for part, _ in columns) else []
    notes += [_ON_TEST + FITTED_ON_TEST] if any(one.on_test for one in table.contrasts) else []
    lead = "The second method is subtracted. [~]: 95\\,\\% interval, paired by seed and image, about "
    notes += _interval_notes(entries, lead, entries, " the first method is")
    size = max(1, PAGE_LINES // 2)
    parts = [table.contrasts[k : k + size] for k in range(0, len(table.contrasts), size)]
    captions = [f" ({k} of {len(parts)})" if len(parts) > 1 else "" for k in range(1, len(parts) + 1)]
    return "\n".join(
        _environment(
            len(columns),
            [*head, *(line for one in part for line in _contrast_lines(table, one, columns))],
            notes,
            f"{escape(table.title)}: contrasts{caption}",
            "",
        )
        for part, caption in zip(parts, captions, strict=True)
    )


def _contrast_lines(table: Table, one: Contrast, columns: Sequence[Column]) -> list[str]:
    names = {row.variant + t: _name(row) + t for row in table.rows for t in ("", "+T")}
    more = one.label(len(table.study.seeds)).removeprefix(one.name).replace(ON_TEST, _ON_TEST)
    first, second = [names[one.mine]], [f"$-$ {names[one.theirs]}{more}"]
    for column in columns:
        entry = one.entries.get(column)
        if entry is None or isnan(entry.difference):
            first.append(_MISSING)
            second.append("")
            continue
        first.append(f"${signed(entry.difference)}${_MARKS[table.contrast_marks.get((one.name, column))]}")
        second.append("" if entry.interval is None else rf"{{\scriptsize {_ends(entry.interval)}}}")
    return [_line(first), _line(second), r"\addlinespace[2pt]"]


def _part_lines(table: Table, section: _Section, width: int) -> list[str]:
    heading = f"{section.part}, +T" if section.plus_t else section.part
    lines = [r"\midrule", rf"\multicolumn{{{width + 1}}}{{l}}{{\emph{{{heading}}}}} \\"]
    for row in section.rows:
        lines += _result_lines(table, row, section.columns, width)
    floors = [[row.entries[one].floor for row in section.rows if one in row.entries] for one in section.columns]
    known = [sorted({f"{floor:.3f}" for floor in column if not isnan(floor)}) for column in floors]
    if any(known):
        cells = [rf"{{\scriptsize {'--'.join(dict.fromkeys((one[0], one[-1])))}}}" if one else "" for one in known]
        lines.append(_line([r"{\scriptsize noise floor}", *cells, *[""] * (width - len(cells))]))
    return lines


def _result_lines(table: Table, row: Row, columns: Sequence[Column], width: int) -> list[str]:
    name, asked = _name(row), len(table.study.seeds)
    collapsed = any(part in row.collapsed for part, _ in columns)
    if row.members > 1:
        name += rf" ensemble $\times${row.members}"
    elif len(row.seeds) < asked:
        name += f" ({len(row.seeds)} of {asked})"
    name += (_SELECTED if row.selected_on_test else "") + (_COLLAPSED if collapsed else "")
    first, second = [name], [""]
    for column in columns:
        if column not in row.entries or isnan(row.entries[column].mean):
            first.append(_MISSING if column in row.entries else "")
            second.append("")
            continue
        entry = row.entries[column]
        mean = f"{entry.mean:.3f}".replace("-", "$-$")
        mean = rf"\textbf{{{mean}}}" if row.variant in table.best.get(column, ()) else mean
        spread = "" if isnan(entry.std) else rf"$\pm${entry.std:.3f}"
        first.append(mean + spread + (_ON_TEST if is_scaled(column[1]) and row.fitted_on_test else ""))
        ends = "" if entry.interval is None else _ends(entry.interval)
        second.append(ends + _MARKS[table.marks.get((row.variant, column))])
    padding = [""] * (width - len(columns))
    if not any(second):
        return [_line([*first, *padding])]
    return [_line([*first, *padding]), _line([*(cell and rf"{{\scriptsize {cell}}}" for cell in second), *padding])]


def _name(row: Row) -> str:
    return "-".join([ROW_TITLES.get(row.method, escape(row.method)), *map(escape, row.levels.values())])


def _ends(interval: Interval) -> str:
    return f"[${signed(interval.low)}$, ${signed(interval.high)}$]"


def _result_notes(table: Table, columns: Sequence[Column]) -> list[str]:
    """What stands beneath these columns of our table: seeds, images, what the signs mean."""
    if not table.facts:
        return ["No run has finished yet."]
    study, family = table.study, [entry for row in table.rows for entry in row.entries.values()]
    entries = [entry for row in table.rows for column, entry in row.entries.items() if column in columns]
    spread = r"; $\pm$: standard deviation over seeds" if len(study.seeds) > 1 else ""
    notes = [f"{_rests_on(table)}{spread}. {bold_note(table)}"]
    shown = {metric for _, metric in columns}
    notes += [f"{latex_title('gap')}: above 0 is over-confident."] if "gap" in shown else []
    notes += [bins_note(table)] if shown & {"ece", "ece_T"} else []
    reference = ROW_TITLES.get(table.reference, escape(table.reference))
    notes += _interval_notes(
        entries, f"[~]: 95\\,\\% interval of the difference to {reference}, paired by seed and image, about ", family
    )
    if any(part == CORRUPTED for part, _ in columns):
        notes.append(corrupted_note(table))
    if any(entry.floors for entry in entries):
        notes.append("Noise floor: the ECE of a perfectly calibrated network with these confidences.")
    with_t = any(is_scaled(entry.metric) for entry in entries)
    if with_t:
        notes.append("+T: logits divided by one temperature that minimises the validation NLL.")
    if with_t and any(row.fitted_on_test for row in table.rows):
        notes.append(_ON_TEST + FITTED_ON_TEST)
    if any(row.selected_on_test for row in table.rows):
        notes.append(f"{_SELECTED}checkpoint selected on the test images themselves.")
    if any(row.members > 1 for row in table.rows):
        notes.append("Ensemble: mean probability of its members, at as many times the cost.")
    if any(part in row.collapsed for row in table.rows for part, _ in columns):
        notes.append(_COLLAPSED_NOTE)
    return notes


def _rests_on(table: Table) -> str:
    what = escape(f"{table.facts['backbone']} on {table.data_name}")
    seeds = count(len(table.study.seeds), "seed")
    return f"{what}: {table.study.checkpoint} checkpoint, {seeds}, {table.facts['n']:g} test images per cell"


def _interval_notes(entries: Sequence[Entry], lead: str, family: Sequence[Entry], who: str = "") -> list[str]:
    """What the intervals are about, and what the signs mean where there are any; Holm corrects for the whole family."""
    kinds: dict[Over, dict[str, None]] = {}
    for entry in entries:
        if entry.interval is not None:
            name = latex_title(entry.metric).replace(r"$\uparrow$", "").replace(r"$\downarrow$", "")
            kinds.setdefault(entry.interval.over, {})[name] = None
    if not kinds:
        return []
    words: dict[Over, str] = {
        "seeds and images": "other seeds and other test images",
        "seeds": "other seeds on these test images",
        "these two networks": "these two networks on other test images: another training run would differ by more",
    }
    first, *others = [over for over in words if over in kinds]
    which = {"these two networks": "where there is one seed"}
    about = [
        words[first],
        *(f"{which.get(one) or 'for ' + ', '.join(kinds[one])} about {words[one]}" for one in others),
    ]
    notes = [f"{lead}{'; '.join(about)}."]
    if any(entry.interval is not None and entry.interval.bias for entry in entries):
        notes.append("Intervals of an ECE are corrected for bias and widened by as much.")
    if any(entry.can_be_marked for entry in entries):
        tried = sum(entry.can_be_marked for entry in family)
        notes.append(
            rf"$^{{+}}${who} better, $^{{-}}${who} worse at the 5\,\% level with Holm's correction for "
            f"{count(tried, 'difference')}; no sign: not distinguishable. Intervals are without this correction."
        )
    return notes


def latex_table(table: PaperTable) -> str:
    r"""A table of the paper; with ours at hand, each column of ours has the paper's to its right.

    Columns +T have none: the paper does not scale. Footnotes below say what the marks mean.
    """
    with_g = bool(table.strengths)
    head = [_BY[table.by], *(["$g$"] if with_g else [])]
    for column in table.columns:
        head += [_title(table, column), *(["paper"] if _has_paper(table, column) else [])]
    lines = [_line(head), r"\midrule", *(_line(_cells(table, row, with_g)) for row in table.rows)]
    return _environment(len(head) - 1, lines, _notes(table), escape(table.name), table.label)


def _environment(columns: int, lines: list[str], notes: list[str], caption: str, label: str) -> str:
    """A ``table`` that is scaled down where it would be wider than the column."""
    whole = [
        r"\begin{table}[ht]",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}%",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'c' * columns}}}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}}",
        *([rf"\par\smallskip\raggedright{{\scriptsize {' '.join(notes)}\par}}"] if notes else []),
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
            notes.append(_ON_TEST + FITTED_ON_TEST)
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
