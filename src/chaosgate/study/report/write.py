"""Write a study's report from what is finished, and TensorBoard's layout of its charts.

TensorBoard's *custom scalars* tab draws the charts that a layout asks for, all selected runs in
each. The layout is a small event file beside the runs, the same for every study of a project.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from chaosgate.run.directory import replace_file
from chaosgate.study.execute.state import state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Study
from chaosgate.study.report.names import title

if TYPE_CHECKING:
    from chaosgate.study.report.collect import Evidence

LAYOUT_FOLDER = "tensorboard_layout"
LAYOUT: Mapping[str, Mapping[str, str]] = {
    "validation": {
        title(metric): rf"^val/{metric}$" for metric in ("nll", "ece", "top1", "gap", "brier")
    },
    "training": {
        "loss": r"^train/loss$",
        title("top1"): r"^train/top1$",
        "learning rate": r"^lr-.*$",
    },
    "noise": {
        "injected energy / energy of the features": r"^noise/[^/]+/energy$",
        "log std of the gate": r"^noise/[^/]+/log_std$",
        "change of the logits": r"^noise/[^/]+/logit_change$",
    },
}
"""Charts by category, each with a regular expression of the tags that it draws."""


def report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> Path:
    """Report on the finished runs of a study.

    Args:
        study: The study.
        runs: Its runs; the report is about those that are finished.
        root: Where reports go, each in a folder with the name of its study.
        console: Where to print.
    """
    # pandas, matplotlib and jinja2 take a second to import; `study status` should not wait for them
    from chaosgate.study.report.collect import collect

    return _write(study, collect(study, runs), runs, root / study.name, console)


def report_packed(folder: Path, console: Console) -> Path:
    """Report on a packed study, in its folder, with every figure as a file."""
    from chaosgate.study.report.collect import load_packed

    study, evidence = load_packed(folder)
    return _write(study, evidence, (), folder, console, with_figures=True)


def _write(
    study: Study,
    evidence: "Evidence",
    runs: Sequence[Run],
    directory: Path,
    console: Console,
    with_figures: bool = False,
) -> Path:
    """Print the tables and write the files; return their directory."""
    from chaosgate.study.report.frame import results_of
    from chaosgate.study.report.notes import edges, notes, verdict
    from chaosgate.study.report.page import html_page, pictures_of
    from chaosgate.study.report.planned import plan_note
    from chaosgate.study.report.render import pages, print_view, render
    from chaosgate.study.report.views import paper_view, views

    results = results_of(study, evidence, runs)
    finished = evidence.networks
    directory.mkdir(parents=True, exist_ok=True)
    tables = views(results) if finished else []
    paper = [paper_view(name, results) for name in study.paper] if finished else []
    said, warnings = verdict(results), edges(results)
    below = [*filter(None, [plan_note(study, directory)]), *notes(results)]
    console.print()
    for view in (*tables, *paper):
        print_view(view, console)
    for line in (*said, *warnings):
        console.print(line, style="bold", markup=False, highlight=False)
    for note in below:
        console.print(f"- {note}", style="dim", markup=False, highlight=False)
    used = {one.run for one in finished}
    trouble = [one for run in runs if run.name not in used for one in state_of(run).trouble]
    for sentence in dict.fromkeys(trouble):
        console.print(f"{sentence}.", soft_wrap=True, markup=False, highlight=False)
    lines = [*said, *warnings, *below]
    pictures = pictures_of(results)
    page = html_page(
        results, pictures, views=tables, paper=paper, verdict=said, warnings=warnings, notes=below
    )
    replace_file(directory / "report.html", page)
    replace_file(directory / "table.csv", results.csv)
    replace_file(directory / "table.md", render("table.md", views=[*tables, *paper], notes=lines))
    whole = pages([*tables, *paper])
    replace_file(directory / "table.tex", render("table.tex", views=whole, notes=lines))
    if with_figures:
        (directory / "figures").mkdir(exist_ok=True)
        for block in pictures.values():
            for name, svg in block.images.items():
                file = re.sub(r"[^a-z0-9]+", "_", name.lower())
                replace_file(directory / "figures" / f"{file}.svg", svg)
    return directory


def write_layout(root: Path) -> Path:
    """Leave the layout under the directory of the runs, unless it is there; return its folder."""
    folder = root / LAYOUT_FOLDER
    if any(folder.glob("events.out.tfevents.*")):
        return folder
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        writer.add_custom_scalars(
            {
                category: {name: ["Multiline", [tag]] for name, tag in charts.items()}
                for category, charts in LAYOUT.items()
            }
        )
    return folder
