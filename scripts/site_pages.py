"""Hooks of mkdocs: pages made from the code, numbers from files, formulas as MathML.

Generated pages: commands (their help), configurations, the API, notebooks, results and the
changelog. In method cards ``{{ config NAME }}``, ``{{ desiderata GATE }}``, ``{{ cost GATE }}`` and
``{{ ratio ALTERNATIVE }}`` are filled in. With CHAOSGATE_EXECUTE=1 (as in ``make docs``) notebooks
are executed.
"""

import html
import io
import json
import logging
import os
import re
import unicodedata
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

REPOSITORY = Path(__file__).parents[1]
LOG = logging.getLogger("mkdocs.hooks")
PACKAGES = "field gate inject compat metrics corruptions data train".split()
REPAIRS = (  # MathML of latex2mathml that browsers show badly
    (r"<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"),  # distributed as
    (r"<mi>(log|exp|sin|cos)</mi>", r'<mo lspace="0.12em" rspace="0.12em">\1</mo>'),
    (r"<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>'),  # both bars of a norm
    (r"<mi>;</mi>", '<mo separator="true">;</mo>'),
)
STYLED = r'<(m[in]) mathvariant="(script|double-struck|fraktur|bold)">(\w)</\1>'
MEASURED = {
    "cost": (
        "gate",
        "| features | forward | forward and backward | memory (maps) |\n|---|--:|--:|--:|",
    ),
    "ratio": ("alternatives", "| time of | over plain |\n|---|--:|"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the pictures and tables of results/."""
    results = REPOSITORY / "results"
    pages = {
        "changelog.md": (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"),
        "results.md": (results / "README.md")
        .read_text(encoding="utf-8")
        .replace("](", "](results/"),
        "reference/commands.md": commands_page(),
        "reference/configs.md": configs_page(),
        "reference/api.md": api_page(),
    }
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        execute = {"enabled": bool(os.environ.get("CHAOSGATE_EXECUTE")), "timeout": 600}
        exporter = MarkdownExporter(config={"ExecutePreprocessor": execute})
        place = {"metadata": {"path": str(path.parent)}, "unique_key": path.stem}
        text, made = exporter.from_filename(str(path), place)
        pages[f"notebooks/{path.stem}.md"] = f"---\nhide: [toc]\n---\n{text}"
        for name, content in made["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    for path in sorted(results.rglob("*.*")):
        if path != results / "README.md" and path.suffix in (".md", ".svg", ".png"):
            name = path.relative_to(REPOSITORY).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Fill in what the cards take from the code and from measurements."""
    markdown = re.sub(r"\{\{ config (\S+) \}\}", lambda found: config_block(found[1]), markdown)
    markdown = re.sub(
        r"\{\{ desiderata (\w+) \}\}", lambda found: desiderata_row(found[1]), markdown
    )
    return re.sub(
        r"\{\{ (cost|ratio) ([\w ]+) \}\}", lambda found: measured(*found.groups()), markdown
    )


def on_page_content(content: str, **kwargs: Any) -> str:
    """Formulas become MathML here, so that a page needs no script for them."""

    def render(found: re.Match[str]) -> str:
        formula = html.unescape(found[2]).strip()
        display = "block" if formula.startswith("\\[") else "inline"
        made: str = convert(formula[2:-2].strip(), display=display)
        if "\\" in made:
            LOG.warning(f"a command in {formula!r} is unknown to latex2mathml")
        for pattern, better in REPAIRS:
            made = re.sub(pattern, better, made)
        return re.sub(STYLED, styled, made)

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', render, content, flags=re.DOTALL)


def styled(found: re.Match[str]) -> str:
    """Browsers ignore ``mathvariant``: the character that Unicode has for a styled letter or
    digit.
    """
    kind = re.sub("LATIN|LETTER", "", unicodedata.name(found[3])).split()
    for start in (["MATHEMATICAL"], []):  # some letters are older than that block
        with suppress(KeyError):
            name = " ".join([*start, found[2].upper(), *kind])
            return f"<{found[1]}>{unicodedata.lookup(name)}</{found[1]}>"
    return found[0]


def commands_page() -> str:
    """The help of every command, as the terminal shows it."""
    from chaosgate.__main__ import HELP, main

    os.environ["COLUMNS"] = "100"
    parts = ["---\nhide: [toc]\n---", "# Commands", f"```text\n{HELP}```"]
    names = [name for name in re.findall(r"^  (\w+) ", HELP, re.MULTILINE) if name not in TESTING]
    for words in (name.split() for name in (*names, "data check", "study run")):
        printed = io.StringIO()
        with redirect_stdout(printed), suppress(SystemExit):
            main([*words, "--help"])
        parts.append(f"## {' '.join(words)}\n\n```text\n{printed.getvalue().rstrip()}\n```")
    return "\n\n".join(
        [*parts, "`test`, `validate` and `predict` take the files and keys of `fit`."]
    )


TESTING = ("test", "validate", "predict")


def configs_page() -> str:
    """Every shipped configuration."""
    parts = [
        "---\nhide: [navigation]\n---",
        "# Configurations",
        "Every file below comes with the package and is found by its name: `-c noise/gch`, `study "
        "run "
        "quickstart`. `chaosgate configs copy NAME` writes a copy here; a local file wins over a "
        "shipped one of the same name.",
    ]
    names = (
        path.relative_to(REPOSITORY / "configs") for path in REPOSITORY.glob("configs/**/*.yaml")
    )
    for name in sorted(
        (path.with_suffix("").as_posix() for path in names), key=lambda n: ("/" in n, n)
    ):
        parts.append(f"### {name}\n\n{config_block(name)}")
    return "\n\n".join(parts)


def config_block(name: str) -> str:
    """A shipped configuration as a block of YAML."""
    text = (REPOSITORY / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    return f"```yaml\n{text.rstrip()}\n```"


def api_page() -> str:
    """The names in ``import chaosgate as cg``, in the order of the paper, from their docstrings."""
    import chaosgate

    found: dict[str, list[str]] = {package: [] for package in PACKAGES}
    for name in chaosgate.__all__:
        one = getattr(chaosgate, name)
        package = getattr(one, "__module__", "").split(".")[1:2]
        if package and package[0] in found:
            found[package[0]].append(f"::: {one.__module__}.{one.__qualname__}")
    parts = [f"## {package}\n\n" + "\n\n".join(names) for package, names in found.items() if names]
    head = (
        "# API\n\nThe names in `import chaosgate as cg`. Other names are reached through their "
        "module."
    )
    return "\n\n".join([head, *parts])


def desiderata_row(gate: str) -> str:
    """The row of a gate in the measured matrix, docs/desiderata.md."""
    lines = (REPOSITORY / "docs" / "desiderata.md").read_text(encoding="utf-8").splitlines()
    head = [line for line in lines if line.startswith("|")][:2]
    (row,) = [line for line in lines if line.startswith(f"| {gate} |")]
    return "\n".join(
        [*head, row, "", "Measured on 7x7; [all gates and the rules](../desiderata.md)."]
    )


def measured(kind: str, what: str) -> str:
    """Time and memory of a gate or an alternative from the rows of its benchmark."""
    subject, head = MEASURED[kind]
    file = f"results/bench_{subject}.json"
    rows = json.loads((REPOSITORY / file).read_text(encoding="utf-8"))
    lines = [head]
    for row in rows:
        if row.get("what") == what and kind == "ratio":
            lines.append(f"| {row['of']}, ResNet-18, {row['images']} | {row['over_plain']:.2f} |")
        elif row.get("what") == what and "shape" in row:
            figures = (row["forward_over_multiply"], row["both_over_multiply"], row["extra_maps"])
            cells = " | ".join(f"{figure:.2f}" for figure in figures)
            lines.append(f"| {row['stage']}, {row['shape']} | {cells} |")
    unit = (
        "times over a bare multiplication" if kind == "cost" else "times over the same without it"
    )
    source = f"`python -m benchmarks {subject} --json {file}`"
    return "\n".join([*lines, "", f"One CPU thread, {unit}; from {source}."])
