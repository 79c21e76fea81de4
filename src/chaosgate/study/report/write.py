"""Write a study's report: the same tables and notes in the terminal, Markdown, LaTeX and HTML.

The page in HTML fetches nothing: figures are inside.
"""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from chaosgate.run.files import replace_file
from chaosgate.study.execute.state import state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study
from chaosgate.study.report.collect import Evidence, collect
from chaosgate.study.report.figures import pictures_of, svg_of
from chaosgate.study.report.frame import Results, results_of
from chaosgate.study.report.notes import edges, notes, verdict
from chaosgate.study.report.packed import load_packed
from chaosgate.study.report.planned import plan_note
from chaosgate.study.report.render import print_view, render
from chaosgate.study.report.views import paper_view, views


def report(
    study: Study, runs: Sequence[Run], root: Path, console: Console, parts: Sequence[Evidence] = ()
) -> Path:
    """Report on the finished runs of a study.

    Args:
        study: The study.
        runs: Its runs; the report is about those that are finished.
        root: Where reports go, each in a folder with the name of its study.
        console: Where to print.
        parts: Packed parts of the study.
    """
    evidence = collect(study, runs, parts)
    write_report(results_of(study, evidence, runs), root / study.name, console)
    for line in dict.fromkeys(line for run in runs for line in state_of(run).trouble):
        console.print(Text(f"{line}."))
    return root / study.name


def report_packed(folder: Path, console: Console) -> Path:
    """Report on a packed study, in its folder, with every figure as a file."""
    drawn = write_report(results_of(*load_packed(folder)), folder, console)
    (folder / "figures").mkdir(exist_ok=True)
    for name, svg in drawn.items():
        file = re.sub(r"[^a-z0-9]+", "_", name.lower())
        replace_file(folder / "figures" / f"{file}.svg", svg)
    return folder


def write_report(results: Results, directory: Path, console: Console) -> dict[str, str]:
    """Print the tables and write the files; return the figures as SVG by name."""
    directory.mkdir(parents=True, exist_ok=True)
    study = results.study
    content: dict[str, Any] = {
        "verdict": verdict(results),
        "warnings": edges(results),
        "notes": [*filter(None, [plan_note(study, directory)]), *notes(results)],
        "views": views(results) if results.networks else [],
        "paper": [paper_view(one, results) for one in study.paper if results.networks],
    }
    console.print()
    for view in content["views"] + content["paper"]:
        print_view(view, console)
    for line in content["verdict"] + content["warnings"]:
        console.print(Text(line, style="bold"))
    for line in content["notes"]:
        console.print(Text(f"- {line}", style="dim"))
    configuration = {"Study file": study.path.read_text(encoding="utf-8")}
    for first in results.networks[:1]:
        about = {key: first.rows[0].get(key) for key in ("commit", "versions")} | first.config
        configuration[f"Configuration of {first.run}"] = yaml.safe_dump(about, sort_keys=False)
    pictures = pictures_of(results)
    drawn = {name: svg_of(one) for block in pictures.values() for name, one in block.images.items()}
    encoded = {name: base64.b64encode(svg.encode()).decode() for name, svg in drawn.items()}
    content |= {"title": study.name, "pictures": pictures, "encoded": encoded}
    for name in ("report.html", "table.md", "table.tex"):
        replace_file(directory / name, render(name, configuration=configuration, **content))
    csv = results.frame.to_csv(index=False, lineterminator="\n", float_format="%.13g")
    replace_file(directory / "table.csv", str(csv))
    return drawn
