"""Views in every format: terminal, Markdown, LaTeX, HTML. Text is escaped where it is printed."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaosgate.study.report.views import Cell, View

_TEX = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "±": r"$\pm$"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "✓": "$^{+}$", "✗": "$^{-}$", "≤": r"$\le$"},
    **{"†": r"$^\dagger$", "‡": r"$^\ddagger$", "§": r"$^\S$"},
}
ROWS_OF_A_PAGE = 16  # with three lines each they fill a page


def escape_latex(text: object) -> str:
    r"""Plain text for LaTeX.

    >>> escape_latex("defocus_blur, 5 %: -.020 ± 0.001 ✓")
    'defocus\\_blur, 5 \\%: $-$.020$\\pm$0.001$^{+}$'
    """
    if isinstance(text, Markup):  # marked as safe in the template
        return str(text)
    plain = re.sub(r" ?(±) ?| ([✓✗↑↓])", lambda found: found[1] or found[2], str(text))
    escaped = "".join(_TEX.get(character, character) for character in plain)
    return re.sub(r"(?<![\w\\-])-(?=[.\d])", "$-$", escaped)


def escape_markdown(text: object) -> str:
    r"""Plain text for Markdown, also inside a table.

    >>> escape_markdown("a_b | *c*")
    'a\\_b \\| \\*c\\*'
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~&$])", r"\\\1", " ".join(str(text).split()))


def render(template: str, **content: Any) -> str:
    """Fill one of the templates beside this file; every text is escaped for its format."""
    escape: Callable[[object], str] | None = {"md": escape_markdown, "tex": escape_latex}.get(
        template.rpartition(".")[2]
    )
    loader = PackageLoader("chaosgate.study.report", "templates")
    environment = Environment(
        loader=loader,
        autoescape=template.endswith(".html"),
        finalize=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **({} if escape is not escape_latex else _TEX_SYNTAX),
    )
    environment.filters["anchor"] = lambda heading: heading.lower().replace(" ", "-")
    return environment.get_template(template).render(**content)


_TEX_SYNTAX: Any = {
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}


def pages(views: Iterable[View]) -> list[View]:
    """The same views, long ones in portions that fill a page."""
    found = []
    for view in views:
        many = -(-len(view.cells) // ROWS_OF_A_PAGE)
        for k in range(many):
            rows = view.cells.iloc[k * ROWS_OF_A_PAGE : (k + 1) * ROWS_OF_A_PAGE]
            part = f" ({k + 1} of {many})" if many > 1 else ""
            found.append(view._replace(title=view.title + part, cells=rows))
    return found


def print_view(view: View, console: Console) -> None:
    """A view in the whole width of the terminal; columns that do not fit come below."""
    names = [Text(name, overflow="fold") for name in view.cells.index]
    name_width = min(28, max(map(len, [view.first, *view.cells.index])))
    heads, columns = (
        list(view.cells),
        [[_text(cell) for cell in view.cells[head]] for head in view.cells],
    )
    widths = [
        max(len(line) for text in [head, *map(str, column)] for line in text.splitlines() or [""])
        for head, column in zip(heads, columns, strict=True)
    ]
    at = 0
    while at < len(heads):
        end, width = at + 1, name_width + widths[at] + 8
        while end < len(heads) and width + widths[end] + 3 <= console.width:
            width += widths[end] + 3
            end += 1
        if end < len(heads) and heads[end].endswith(" paper") and end > at + 1:
            end -= 1  # our number and the paper's stay together
        grid = Table(
            title=Text(view.title) if at == 0 else None,
            title_style="bold",
            title_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 2, 0, 0),
            pad_edge=False,
        )
        grid.add_column(Text(view.first), max_width=name_width, overflow="fold")
        for head in heads[at:end]:
            grid.add_column(Text(head), justify="right", no_wrap=True)
        for name, row in zip(names, zip(*columns[at:end], strict=True), strict=True):
            grid.add_row(name, *row)
        console.print(grid)
        at = end


def _text(cell: Cell) -> Text:
    """A cell in lines; a mark colors the whole of it."""
    color = {"better": "green", "worse": "red"}.get(cell.mark, "")
    text = Text(cell.text, style=f"{'bold ' * cell.bold}{color}", justify="right")
    return text.append(
        "".join(f"\n{line}" for line in cell.below), style=f"not bold {color or 'dim'}"
    )
