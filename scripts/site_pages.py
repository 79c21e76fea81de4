"""What mkdocs does beside rendering docs/: pages made from the code, numbers from files, formulas as MathML.

Pages that are generated: commands (their help), configurations, one page of API per package, the notebooks, results and
the changelog. In method cards ``{{ config NAME }}``, ``{{ desiderata GATE }}``, ``{{ cost GATE }}`` and ``{{ ratio
ALTERNATIVE }}`` stand for what the code says. With CHAOSGATE_EXECUTE=1 (as in ``make docs``) notebooks are executed, so
that their pages have outputs.
"""

import base64
import html
import io
import json
import logging
import os
import re
import sys
import time
import unicodedata
import warnings
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))
from site_docstrings import as_markdown  # noqa: E402 - beside this file

REPOSITORY = Path(__file__).parents[1]
LOG = logging.getLogger("mkdocs.hooks")
PACKAGES = ("field", "gate", "inject", "compat", "metrics", "corruptions", "data", "train")
REPAIRS = (  # what browsers show badly in the MathML of latex2mathml
    (
        r'<mover><mrow>((?:(?!<mover>).)*?)</mrow><mo accent="true">&#x02015;</mo></mover>',
        r'<mrow class="overline">\1</mrow>',
    ),
    (r"<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"),  # distributed as
    (r"<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>"),  # infinity is not an operator
    (r"<mi>(log|exp|sin|cos)</mi>", r'<mo lspace="0.12em" rspace="0.12em">\1</mo>'),
    (
        r"<mo>&#x02016;</mo>",
        '<mo stretchy="false">&#x02016;</mo>',
    ),  # both bars of a norm equally high
    (
        r'<mo stretchy="false">&#x0007C;</mo>',
        '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>',
    ),
    (
        r"<mo[^>]*( minsize=[^>]*)>\|",
        r'<mo stretchy="true" symmetric="true" lspace="0.1em" rspace="0.1em"\1>|',
    ),
    (r"<mi>;</mi>", '<mo separator="true">;</mo>'),
)
_STYLED = re.compile(
    r'<(m[in]) mathvariant="(script|double-struck|fraktur|bold)">(\w)</\1>'
)  # ignored by browsers
COST = REPOSITORY / "results" / "bench_gate.json"
RATIOS = REPOSITORY / "results" / "bench_alternatives.json"
FIRST = {  # on the page of their package; then the other names of 'import chaosgate', classes, functions
    "field": ("Operator", "DirichletLaplacian", "MaxEntLaw"),
    "gate": ("GaussianChaos", "Gate", "design"),
    "inject": ("attach", "NoiseInjection", "sites"),
    "compat": ("Probe", "matched_gates"),
    "metrics": ("CalibrationError", "NegativeLogLikelihood", "temperature_scaling"),
    "corruptions": ("corrupt",),
    "data": ("ImageFolder", "ImageData"),
}
COMMANDS = (
    "fit",
    "study",
    "verify",
    "design",
    "probe",
    "sites",
    "data",
    "data check",
    "data download",
)
COMMANDS += ("data corrupt", "configs", "export", "explore")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "changelog.md": (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"),
        "results.md": results_page(),
        "reference/commands.md": commands_page(),
        "reference/configs.md": configs_page(),
        **{f"reference/{name}.md": api_page(name) for name in PACKAGES},
    }
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path, execute=bool(os.environ.get("CHAOSGATE_EXECUTE")))
        pages[f"notebooks/{path.stem}.md"] = text
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    for path in sorted((REPOSITORY / "results").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            name = path.relative_to(REPOSITORY).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Fill in what the cards leave to the code."""
    markdown = re.sub(r"\{\{ config (\S+) \}\}", lambda match: config_block(match[1]), markdown)
    markdown = re.sub(
        r"\{\{ desiderata (\w+) \}\}", lambda match: desiderata_row(match[1]), markdown
    )
    markdown = re.sub(r"\{\{ ratio (\w+) \}\}", lambda match: alternative_ratio(match[1]), markdown)
    markdown = re.sub(r"\{\{ cost ([\w ]+) \}\}", lambda match: cost_table(match[1]), markdown)
    rows = re.compile(r"^\|.*$", re.MULTILINE)  # a mark, a number and its error stay on one line
    return rows.sub(
        lambda match: re.sub(r"(?<=[✓✗]) (?=\d)| (?=± )|(?<=±) ", "\u00a0", match[0]), markdown
    )


def on_page_content(content: str, **kwargs: Any) -> str:
    """Formulas become MathML here, so that a page needs no script for them."""

    def render(match: re.Match[str]) -> str:
        formula = html.unescape(match[2]).strip()
        display = formula.startswith("\\[")
        made: str = convert(formula[2:-2].strip(), display="block" if display else "inline")
        if "\\" in made:
            LOG.warning(f"a command in {formula!r} is unknown to latex2mathml")
        for pattern, better in REPAIRS:
            made = re.sub(pattern, better, made)
        return _STYLED.sub(styled, made)

    content = re.sub(r"<code>[^<\n]*</code>", lambda match: whole_flags(match[0]), content)
    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', render, content, flags=re.DOTALL)


def styled(match: re.Match[str]) -> str:
    """A letter or digit of another alphabet as the character that Unicode has for it."""
    kind = re.sub(
        "LATIN|LETTER", "", unicodedata.name(match[3])
    ).split()  # such as CAPITAL N, DIGIT ONE
    for start in (["MATHEMATICAL"], []):  # some letters are older than that block
        try:
            return f"<{match[1]}>{unicodedata.lookup(' '.join([*start, match[2].upper(), *kind]))}</{match[1]}>"
        except KeyError:
            continue
    return match[0]


def whole_flags(code: str) -> str:
    """No line breaks inside the flags of a command.

    >>> whole_flags("<code>chaosgate verify --format json</code>")
    '<code>chaosgate verify <span class="flag">--format</span> json</code>'
    """
    return re.sub(r"(?<=[\s>])--?[a-z][\w.-]*", r'<span class="flag">\g<0></span>', code)


# -- pages ------------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """The help of every command, as the terminal shows it."""
    from chaosgate.__main__ import HELP, main

    jumps = " · ".join(f"[{command}](#{command.replace(' ', '-')})" for command in COMMANDS)
    parts = [
        "---\nhide: [toc]\n---",
        "# Commands",
        jumps,
        f"```text\n{HELP}```",
    ]  # long lines need the whole width
    os.environ["COLUMNS"] = "110"
    for command in COMMANDS:
        printed = io.StringIO()
        with redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                main([*command.split(), "--help"])
            except SystemExit:  # argparse
                pass
        parts.append(f"## {command}\n\n```text\n{printed.getvalue().rstrip()}\n```")
        if command == "fit":
            parts.append("`test`, `validate` and `predict` take the same files and keys.")
    return "\n\n".join(parts)


def configs_page() -> str:
    """Every shipped configuration."""
    from chaosgate.run.config_files import shipped_configs

    head = "---\nhide: [navigation]\n---"  # room for lines of 120 characters
    intro = "Every file below comes with the package and is found by its name: `-c noise/gch`, `study run quickstart`. "
    intro += "`chaosgate configs copy NAME` puts a copy here; a local file wins over a shipped one of the same name."
    parts, room = [head, "# Configurations", intro], ""
    for name in sorted(
        shipped_configs(), key=lambda name: ("/" in name, name)
    ):  # base first, then folder by folder
        if name.partition("/")[0] != room and "/" in name:
            room = name.partition("/")[0]
            parts.append(f"## {room}/")
        parts.append(f"### {name}\n\n{config_block(name)}")
    return "\n\n".join(parts)


def config_block(name: str) -> str:
    """A shipped configuration as a block of YAML."""
    from chaosgate.run.config_files import shipped_configs

    return f"```yaml\n{shipped_configs()[name].read_text(encoding='utf-8').rstrip()}\n```"


def api_page(package: str) -> str:
    """Every public name of a package, from its docstring, what people use most first."""
    import chaosgate

    def place(one: Any) -> tuple[Any, ...]:
        name = one.__qualname__
        first = FIRST[package].index(name) if name in FIRST[package] else len(FIRST[package])
        return first, name not in chaosgate.__all__, not isinstance(one, type), name

    module = import_module(f"chaosgate.{package}")
    doc = (module.__doc__ or "").strip()
    if package == "train":
        names = ["chaosgate.train.task.ImageClassifier", "chaosgate.train.schedules.WarmupCosine"]
    else:
        found = [
            one
            for one in (getattr(module, name) for name in module.__all__)
            if hasattr(one, "__qualname__")
        ]
        found = [
            one for one in found if one.__module__.startswith("chaosgate.")
        ]  # an alias has the name of its target
        names = list(
            dict.fromkeys(
                f"{one.__module__}.{one.__qualname__}" for one in sorted(found, key=place)
            )
        )
    if package == "corruptions":  # what names there are
        names += [f"chaosgate.corruptions.tables.{name}" for name in ("COMMON", "EXTRA", "PAPER")]
    blocks = "\n\n".join(f"::: {name}" for name in names)
    return f"# chaosgate.{package}\n\n{as_markdown(doc)}\n\n{blocks}\n"


def results_page() -> str:
    """results/README.md with the other tables of results/ behind it; where there are none, a sentence that says so."""
    folder = REPOSITORY / "results"
    tables = sorted(folder.rglob("*.md"), key=lambda path: (path != folder / "README.md", path))
    if not tables:
        return "# Results\n\n" + (
            '!!! note "No study with several seeds is in the repository yet"\n    The README has the table of the '
            "quickstart (one seed). The studies under `configs/study/evidence` and the paper's tables under "
            "`configs/study/paper` are ready to run; their reports will stand here.\n"
        )
    return "---\nhide: [navigation]\n---\n\n" + "\n\n".join(
        _part(path, folder) for path in tables
    )  # tables are wide


def _anchor(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def _part(path: Path, folder: Path) -> str:
    """A file of results/ as a part of the page: links and pictures from where they are, tables below the README."""
    text = path.read_text(encoding="utf-8")
    if path != folder / "README.md":
        text = re.sub(r"^(#{1,5}) ", r"#\1 ", text, flags=re.MULTILINE)
        text = re.sub(r"\A## (.*)", rf"## \1: all numbers {{: #{_anchor(path)} }}", stacked(text))

    def moved(match: re.Match[str]) -> str:
        target = (path.parent / match[3]).resolve()
        if not target.is_file() or not target.is_relative_to(folder):
            return match[0]
        name = target.relative_to(folder).as_posix()
        return f"{match[1]}{'results/' + name if match[2] or target.suffix != '.md' else '#' + _anchor(target)})"

    return re.sub(r"((!?)\[[^\]]*\]\()(?!https?:|#)([^)#\s]+)\)", moved, text)


def stacked(text: str) -> str:
    """Differences, intervals and floors in the cells of a study's table, each on a line below the number.

    >>> stacked("| 0.5 ± 0.1 (+.1, -.2 to +.4; floor 0.3) |")
    '| 0.5&nbsp;±&nbsp;0.1<br><small>+.1<br>-.2 to +.4<br>floor 0.3</small> |'
    """

    def cell(match: re.Match[str]) -> str:
        return "<br><small>" + re.sub("[,;] ", "<br>", match[1]) + "</small>"

    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("|"):
            lines[i] = re.sub(r" \(((?:[+-]|floor)[^()|]*)\)", cell, line).replace(
                " ± ", "&nbsp;±&nbsp;"
            )
    return "\n".join(lines)


def notebook_page(path: Path, execute: bool) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    notebook = nbformat.read(path, as_version=4)
    if execute:
        from nbclient import NotebookClient

        start = time.monotonic()
        where = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, timeout=600, coalesce_streams=True, resources=where).execute()
        LOG.info(f"{path.name} executed in {time.monotonic() - start:.0f} s")
    parts: list[str] = ["---\nhide: [toc]\n---"]  # room for lines of code
    pictures: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for out in cell.outputs:
            data = out.get("data", {})
            if out.get("name") == "stdout" and out.text.strip():
                parts.append(f"```text\n{out.text.rstrip()}\n```")
            elif "image/png" in data:
                name = f"{path.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![output]({name})")
            elif "text/markdown" in data:
                parts.append(stacked(data["text/markdown"]))
            elif "text/plain" in data:
                parts.append(f"```text\n{data['text/plain']}\n```")
    where = f"notebooks/{path.name}"
    return "\n\n".join([*parts, f"*This page is `{where}`.*"]), pictures


# -- parts of method cards --------------------------------------------------------------------------------------------


def desiderata_row(gate: str) -> str:
    """The row of a gate in the measured matrix, docs/desiderata.md."""
    lines = (REPOSITORY / "docs" / "desiderata.md").read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("|")][:2]
    (row,) = [line for line in lines if line.startswith(f"| {gate} |")]
    return "\n".join(
        [*head, row, "", "Measured on 7x7; [all gates and the rules](../desiderata.md)."]
    )


def cost_table(gate: str) -> str:
    """Time and memory of a gate from the rows of ``make bench``; a sentence where they are not there."""
    command = "`python -m benchmarks gate --json results/bench_gate.json`"
    if not COST.is_file():
        return f"Not measured yet: {command} writes the table that will stand here."
    rows = [
        row
        for row in json.loads(COST.read_text(encoding="utf-8"))
        if row.get("what") == gate and "shape" in row
    ]
    if not rows:
        return f"{command} has no row for this gate."
    lines = [
        "| features | forward | forward and backward | memory, in maps of this size |",
        "|---|--:|--:|--:|",
        *(
            f"| {row['stage']}, {row['shape']} | {row['forward_over_multiply']:.2f} | {row['both_over_multiply']:.2f} "
            f"| {row['extra_maps']:.2f} |"
            for row in rows
        ),
    ]
    return "\n".join(
        [
            *lines,
            "",
            f"Times over those of a bare multiply in the same run, one CPU thread; from {command}.",
        ]
    )


def alternative_ratio(name: str) -> str:
    """Time of an alternative from the rows of the benchmark; a sentence where they are not there."""
    command = "`python -m benchmarks alternatives --json results/bench_alternatives.json`"
    if not RATIOS.is_file():
        return f"Not measured yet: {command} writes the numbers that will stand here."
    rows = [row for row in json.loads(RATIOS.read_text(encoding="utf-8")) if row["what"] == name]
    if not rows:
        return f"{command} has no row for {name}."
    said = " and ".join(f"{row['over_plain']:.2f} times the {row['of']} without it" for row in rows)
    return f"{said} (ResNet-18, {rows[0]['images']}, one CPU thread; from {command})."
