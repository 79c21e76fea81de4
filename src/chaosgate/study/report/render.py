"""The formats of a report: terminal, Markdown, LaTeX, HTML. Text is escaped where it is printed."""

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaosgate.study.report.views import Cell, View

_TEX = str.maketrans(
    {
        **{character: rf"\{character}" for character in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--"},
        **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "✓": "$^{+}$", "✗": "$^{-}$", "±": r"$\pm$"},
        **{"†": r"$^\dagger$", "‡": r"$^\ddagger$", "§": r"$^\S$", "≤": r"$\le$"},
    }
)


def escape_latex(text: object) -> str:
    r"""Plain text for LaTeX.

    >>> escape_latex("defocus_blur, 5 %: -.020 ± 0.001 ✓")
    'defocus\\_blur, 5 \\%: $-$.020 $\\pm$ 0.001 $^{+}$'
    """
    if isinstance(text, Markup):  # marked as safe in the template
        return str(text)
    return re.sub(r"(?<![\w\\-])-(?=[.\d])", "$-$", str(text).translate(_TEX))


def escape_markdown(text: object) -> str:
    r"""Plain text for Markdown, also inside a table.

    >>> escape_markdown("a_b | *c*")
    'a\\_b \\| \\*c\\*'
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~&$])", r"\\\1", " ".join(str(text).split()))


def render(template: str, **content: Any) -> str:
    """Fill one of the templates beside this file; every text is escaped for its format."""
    kind = template.rpartition(".")[2]
    environment = Environment(
        loader=PackageLoader("chaosgate.study.report", "templates"),
        autoescape=kind == "html",
        finalize={"md": escape_markdown, "tex": escape_latex}.get(kind),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**content)


def print_view(view: View, console: Console) -> None:
    """A view in the whole width of the terminal; columns that do not fit come below."""

    def text(cell: Cell) -> Text:
        color = {"better": "green", "worse": "red"}.get(cell.mark, "")
        shown = Text(cell.text, style=f"{'bold ' * cell.bold}{color}", justify="right")
        below = "".join(f"\n{line}" for line in cell.below)
        return shown.append(below, style=f"not bold {color or 'dim'}")

    fitting = max(1, (console.width - 28) // (3 + max([16, *map(len, view.cells)])))
    for start in range(0, len(view.cells.columns), fitting):
        shown = view.cells.iloc[:, start : start + fitting]
        grid = Table(title=Text(view.title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        grid.add_column(Text(view.first), max_width=28, overflow="fold")
        for head in shown:
            grid.add_column(Text(head), justify="right", no_wrap=True)
        for name, row in shown.iterrows():
            grid.add_row(Text(str(name), overflow="fold"), *map(text, row))
        console.print(grid)
