"""Write a study's report: the same tables and notes in the terminal, Markdown, LaTeX and HTML.

The HTML page is one file: figures are embedded.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from chaosgate.run.files import replace_file
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study
from chaosgate.study.report.collect import Evidence
from chaosgate.study.report.figures import pictures_of
from chaosgate.study.report.frame import results_of
from chaosgate.study.report.notes import edges, notes, verdict
from chaosgate.study.report.planned import plan_note
from chaosgate.study.report.render import print_view, render
from chaosgate.study.report.views import paper_view, views


def report(
    study: Study, evidence: Evidence, directory: Path, console: Console, runs: Sequence[Run] = ()
) -> None:
    """Print the tables of a study and write the files.

    Args:
        study: The study.
        evidence: Its finished networks.
        directory: Where the files go.
        console: Where the tables are printed.
        runs: All its runs; unfinished ones are listed as missing.
    """
    results = results_of(study, evidence, runs)
    directory.mkdir(parents=True, exist_ok=True)
    pictures = pictures_of(results)
    content: dict[str, Any] = {
        "study": study,
        "source": study.path.read_text(encoding="utf-8"),
        "verdict": verdict(results),
        "warnings": edges(results),
        "notes": [*filter(None, [plan_note(study, directory)]), *notes(results)],
        "views": views(results) if results.networks else [],
        "paper": [paper_view(one, results) for one in study.paper if results.networks],
        "pictures": {n: base64.b64encode(one.encode()).decode() for n, one in pictures.items()},
    }
    console.print()
    for view in content["views"] + content["paper"]:
        print_view(view, console)
    for line in content["verdict"] + content["warnings"]:
        console.print(Text(line, style="bold"))
    for line in content["notes"]:
        console.print(Text(f"- {line}", style="dim"))
    for name in ("report.html", "table.md", "table.tex"):
        replace_file(directory / name, render(name, **content))
    csv = results.frame.to_csv(index=False, lineterminator="\n", float_format="%.13g")
    replace_file(directory / "table.csv", str(csv))
