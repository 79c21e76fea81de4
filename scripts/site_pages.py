"""Hooks of mkdocs: pages made from the code, numbers from files, formulas as MathML.

Generated pages: commands (their help), configurations, notebooks, results and the changelog. In
method cards ``{{ config NAME }}``, ``{{ desiderata GATE }}``, ``{{ cost GATE }}`` and ``{{ ratio
ALTERNATIVE }}`` are filled in. With CHAOSGATE_EXECUTE=1 (as in ``make docs``) notebooks are
executed.
"""

import html
import io
import json
import logging
import os
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

from chaosgate.__main__ import HELP, main

REPOSITORY = Path(__file__).parents[1]
REPAIRS = (  # MathML of latex2mathml that browsers show badly
    ("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"),  # distributed as
    ("<mi>(log|exp|sin|cos)</mi>", r'<mo lspace="0.12em" rspace="0.12em">\1</mo>'),
    ('<mn mathvariant="bold">1</mn>', "<mn>&#x1D7CF;</mn>"),
)


def read(path):
    return (REPOSITORY / path).read_text(encoding="utf-8")


def on_files(files, config):
    """Add the generated pages, and the pictures and tables of results/."""
    pages = {
        "changelog.md": read("CHANGELOG.md"),
        "results.md": read("results/README.md").replace("](", "](results/"),
        "reference/commands.md": commands_page(),
        "reference/configs.md": configs_page(),
    }
    execute = {"enabled": "CHAOSGATE_EXECUTE" in os.environ, "timeout": 600}
    exporter = MarkdownExporter(config={"ExecutePreprocessor": execute})
    for path in sorted(REPOSITORY.glob("notebooks/*.ipynb")):
        place = {"metadata": {"path": str(path.parent)}, "unique_key": path.stem}
        text, made = exporter.from_filename(str(path), place)
        pages[f"notebooks/{path.stem}.md"] = f"---\nhide: [toc]\n---\n{text}"
        pages |= {f"notebooks/{name}": content for name, content in made["outputs"].items()}
    for path in sorted(REPOSITORY.glob("results/**/*.*")):
        if path.suffix in (".md", ".svg", ".png") and path.name != "README.md":
            pages[path.relative_to(REPOSITORY).as_posix()] = path.read_bytes()
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown, **kwargs):
    """Fill in what the cards take from the code and from measurements."""
    fill = {"config": config_block, "cost": cost, "ratio": ratio}
    pattern = rf"\{{\{{ ({'|'.join(fill)}) ([^}}]+) \}}\}}"
    return re.sub(pattern, lambda found: fill[found[1]](found[2]), markdown)


def on_page_content(content, **kwargs):
    """Formulas become MathML here, so that a page needs no script for them."""

    def render(found):
        formula = html.unescape(found[2]).strip()
        display = "block" if formula.startswith("\\[") else "inline"
        formula = re.sub(r"(\\math[a-z]+) (\w)", r"\1{\2}", formula[2:-2].strip())
        made = convert(formula, display=display)
        if "\\" in made:
            logging.getLogger("mkdocs.hooks").warning(f"unknown to latex2mathml: {formula}")
        for pattern, better in REPAIRS:
            made = re.sub(pattern, better, made)
        return made

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', render, content, flags=re.DOTALL)


def commands_page():
    """The help of every command, as the terminal shows it."""
    os.environ["COLUMNS"] = "100"
    names = set(re.findall(r"^  (\w+) ", HELP, re.MULTILINE)) - {"test", "validate", "predict"}
    parts = [f"---\nhide: [toc]\n---\n# Commands\n\n```text\n{HELP}```"]
    parts.append("`test`, `validate` and `predict` take the keys of `fit`.")
    for name in sorted(names | {"data check", "study run"}):
        printed = io.StringIO()
        with redirect_stdout(printed), suppress(SystemExit):
            main([*name.split(), "--help"])
        parts.append(f"## {name}\n\n```text\n{printed.getvalue().rstrip()}\n```")
    return "\n\n".join(parts)


def configs_page():
    """Every shipped configuration."""
    head = (
        "---\nhide: [navigation]\n---\n# Configurations\n\nThey are shipped and found by name, as "
    )
    head += "in `-c noise/gch`; a local file of the same name is used instead."
    folder = REPOSITORY / "configs"
    paths = sorted(path.relative_to(folder).with_suffix("") for path in folder.rglob("*.yaml"))
    return "\n\n".join([head, *(f"### {path}\n\n{config_block(path)}" for path in paths)])


def config_block(name):
    """A shipped configuration as a block of YAML."""
    return f"```yaml\n{read(f'configs/{name}.yaml').rstrip()}\n```"


def cost(gate):
    """Time and memory of a gate over a bare multiplication."""
    table = "| features | forward | forward and backward | memory (maps) |\n|---|--:|--:|--:|\n"
    row = "| {stage}, {shape} | {forward_over_multiply:.2f} | {both_over_multiply:.2f} | "
    row += "{extra_maps:.2f} |\n"
    for found in json.loads(read("results/bench_gate.json")):
        if found["what"] == gate and "shape" in found:
            table += row.format(**found)
    return f"{table}\nOne CPU thread, relative to a plain multiplication."


def ratio(what):
    """Time with an alternative to noise over the time without."""
    table = "\n\n| time of | over plain |\n|---|--:|\n"
    for found in json.loads(read("results/bench_alternatives.json")):
        if found["what"] == what:
            table += "| {of}, ResNet-18, {images} | {over_plain:.2f} |\n".format(**found)
    return f"{table}\nOne CPU thread, relative to the same without it."
