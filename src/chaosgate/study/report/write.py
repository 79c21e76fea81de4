"""Write a study's report: the same views in the terminal, Markdown, LaTeX and HTML.

Text is escaped where it is printed. The page in HTML fetches nothing: figures are inside.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaosgate.run.directory import replace_file
from chaosgate.study.execute.state import state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study
from chaosgate.study.report import figures
from chaosgate.study.report.collect import collect, load_packed
from chaosgate.study.report.frame import Results, results_of
from chaosgate.study.report.names import CLEAN, CORRUPTED, PRIMARY
from chaosgate.study.report.notes import edges, notes, verdict
from chaosgate.study.report.planned import plan_note
from chaosgate.study.report.views import Cell, View, paper_view, views

_TEX = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "±": r"$\pm$"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "✓": "$^{+}$", "✗": "$^{-}$", "≤": r"$\le$"},
    **{"†": r"$^\dagger$", "‡": r"$^\ddagger$", "§": r"$^\S$"},
}
_TEX_SYNTAX = {
    **{"block_start_string": "<%", "block_end_string": "%>"},
    **{"variable_start_string": "<<", "variable_end_string": ">>"},
    **{"comment_start_string": "<#", "comment_end_string": "#>"},
}


class Block(NamedTuple):
    """Pictures side by side below a sentence."""

    images: Mapping[str, Figure]
    text: str


def report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> Path:
    """Report on the finished runs of a study.

    Args:
        study: The study.
        runs: Its runs; the report is about those that are finished.
        root: Where reports go, each in a folder with the name of its study.
        console: Where to print.
    """
    evidence = collect(study, runs)
    used = {network.run for network in evidence.networks}
    trouble = [one for run in runs if run.name not in used for one in state_of(run).trouble]
    results = results_of(study, evidence, runs)
    _write(results, root / study.name, console, list(dict.fromkeys(trouble)))
    return root / study.name


def report_packed(folder: Path, console: Console) -> Path:
    """Report on a packed study, in its folder, with every figure as a file."""
    results = results_of(*load_packed(folder))
    drawn = _write(results, folder, console)
    (folder / "figures").mkdir(exist_ok=True)
    for name, svg in drawn.items():
        file = re.sub(r"[^a-z0-9]+", "_", name.lower())
        replace_file(folder / "figures" / f"{file}.svg", svg)
    return folder


def _write(
    results: Results, directory: Path, console: Console, trouble: Sequence[str] = ()
) -> dict[str, str]:
    """Print the tables and write the files; return the figures as SVG by name."""
    study = results.study
    directory.mkdir(parents=True, exist_ok=True)
    tables = views(results) if results.facts else []
    paper = [paper_view(name, results) for name in study.paper] if results.facts else []
    said, warnings = verdict(results), edges(results)
    below = [*filter(None, [plan_note(study, directory)]), *notes(results)]
    console.print()
    for view in (*tables, *paper):
        print_view(view, console)
    for line in (*said, *warnings):
        console.print(line, style="bold", markup=False, highlight=False)
    for note in below:
        console.print(f"- {note}", style="dim", markup=False, highlight=False)
    for sentence in trouble:
        console.print(f"{sentence}.", soft_wrap=True, markup=False, highlight=False)
    content = {"verdict": said, "warnings": warnings, "notes": below}
    page, drawn = html_page(results, views=tables, paper=paper, **content)
    replace_file(directory / "report.html", page)
    csv = results.frame.to_csv(index=False, lineterminator="\n", float_format="%.13g")
    replace_file(directory / "table.csv", str(csv))
    lines = [*said, *warnings, *below]
    for name in ("table.md", "table.tex"):
        replace_file(directory / name, render(name, views=[*tables, *paper], notes=lines))
    return drawn


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
    kind = template.rpartition(".")[2]
    environment = Environment(
        loader=PackageLoader("chaosgate.study.report", "templates"),
        autoescape=kind == "html",
        finalize={"md": escape_markdown, "tex": escape_latex}.get(kind),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **(_TEX_SYNTAX if kind == "tex" else {}),  # type: ignore[arg-type]
    )
    environment.filters["anchor"] = lambda heading: heading.lower().replace(" ", "-")
    return environment.get_template(template).render(**content)


def print_view(view: View, console: Console) -> None:
    """A view in the whole width of the terminal; columns that do not fit come below."""

    def text(cell: Cell) -> Text:
        color = {"better": "green", "worse": "red"}.get(cell.mark, "")
        shown = Text(cell.text, style=f"{'bold ' * cell.bold}{color}", justify="right")
        below = "".join(f"\n{line}" for line in cell.below)
        return shown.append(below, style=f"not bold {color or 'dim'}")

    heads = list(view.cells)
    columns = {head: [Text(head), *map(text, view.cells[head])] for head in heads}
    widths = {
        head: max(one.__rich_measure__(console, console.options).maximum for one in columns[head])
        for head in heads
    }
    while heads:
        grid = Table(title=Text(view.title), box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
        grid.title_justify, left = "left", console.width - 30
        grid.add_column(Text(view.first), max_width=28, overflow="fold")
        shown: list[str] = []
        while heads and (not shown or widths[heads[0]] + 3 <= left):
            left -= widths[heads[0]] + 3
            shown.append(heads.pop(0))
            grid.add_column(columns[shown[-1]][0], justify="right", no_wrap=True)
        for k, name in enumerate(view.cells.index):
            grid.add_row(Text(name, overflow="fold"), *(columns[head][k + 1] for head in shown))
        console.print(grid)


# -- the page --------------------------------------------------------------------------------------


def html_page(results: Results, **content: Any) -> tuple[str, dict[str, str]]:
    """The report as one file, and its figures as SVG by name.

    Args:
        results: The results.
        content: Views, tables of the paper, notes, verdict and warnings.
    """
    configuration = {"Study file": results.study.path.read_text(encoding="utf-8")}
    if results.evidence.networks:
        first = results.evidence.networks[0]
        about = {key: results.facts[key] for key in ("commit", "versions")}
        configuration["Versions"] = yaml.safe_dump(about, sort_keys=False)
        name = f"Whole configuration of {first.run}"
        configuration[name] = yaml.safe_dump(first.config, sort_keys=False)
    blocks = pictures_of(results)
    drawn = {k: figures.svg_of(v) for block in blocks.values() for k, v in block.images.items()}
    sections = ["Results", *(["Beside the paper"] if content["paper"] else []), *blocks]
    page = render(
        "report.html",
        title=results.study.name,
        sections=[*sections, "Configuration"],
        pictures=blocks,
        encoded={name: base64.b64encode(svg.encode()).decode() for name, svg in drawn.items()},
        configuration=configuration,
        **content,
    )
    return page, drawn


def pictures_of(results: Results) -> dict[str, Block]:
    """Headings with what stands below them; figures by method show the first table."""
    facts = results.facts
    if not facts or not results.metrics:
        return {}
    shown = [one for one in next(iter(results.tables.values())) if results.rows[one].seeds]
    bars = f"Bars: 95 % intervals of the difference to {results.study.reference}, around the value."
    found: dict[str, Block] = {}
    if PRIMARY in results.metrics:
        name = "ECE and NLL before and after temperature scaling"
        drawn = {name: figures.temperature_figure(results, shown)}
        found["Temperature"] = Block(drawn, bars)
    axes = dict.fromkeys(axis for row in results.rows.values() for axis in row.levels)
    for axis in ("injected energy", *axes):
        drawn = {f"ECE and NLL against {axis}": figures.axis_figure(results, axis)}
        found[axis.capitalize()] = Block(drawn, bars)
    metrics = [one for one in ("top1", PRIMARY, "nll", "ece", "gap") if one in results.metrics]
    for heading, places in figures.places_of(results).items() if facts["corruptions"] else ():
        drawn = {f"metrics by {heading}": figures.part_figure(results, shown, metrics, places)}
        found[heading] = Block(drawn, bars)
    clean = "The first seed of each method, clean test set."
    pooled = "All corrupted cells pooled: the ECE above each is not that of the tables."
    for part, text in ((CLEAN, clean), (CORRUPTED, pooled)):
        diagrams = figures.reliability_figures(results, shown, part).items()
        if diagrams:
            drawn = {f"reliability of {row}, {part}": figure for row, figure in diagrams}
            found[f"Reliability, {part}"] = Block(drawn, text)
    return found
