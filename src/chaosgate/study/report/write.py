"""Build a study's outputs from what is finished: terminal, Markdown, CSV, LaTeX, HTML; and TensorBoard's view of it.

TensorBoard shows each run directory as a run; its *custom scalars* tab draws the charts that a layout asks for, all
selected runs in each. The layout is a small event file beside the runs, the same for every study of a project. The
*hparams* tab needs no help: every tested run has left its method, seed and gate with its test metrics.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding

from chaosgate.data.files.atomic import replace_file
from chaosgate.metrics.names import title
from chaosgate.study.execute.state import state_of
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Size, Study, paper_data
from chaosgate.study.report.build import build_table, strength_tables
from chaosgate.study.report.collect import collect
from chaosgate.study.report.latex import latex_contrasts, latex_results, latex_table
from chaosgate.study.report.notes import footnotes
from chaosgate.study.report.paper_table import PaperTable, table_beside_paper
from chaosgate.study.report.text import csv_table, markdown_table, terminal_tables

if TYPE_CHECKING:
    from chaosgate.study.report.page import Image

LAYOUT_FOLDER = "tensorboard_layout"
LAYOUT: Mapping[str, Mapping[str, str]] = {
    "validation": {title(metric): rf"^val/{metric}$" for metric in ("nll", "ece", "top1", "gap", "brier")},
    "training": {"loss": r"^train/loss$", title("top1"): r"^train/top1$", "learning rate": r"^lr-.*$"},
    "noise": {
        "injected energy / energy of the features": r"^noise/[^/]+/energy$",
        "log std of the gate": r"^noise/[^/]+/log_std$",
        "change of the logits": r"^noise/[^/]+/logit_change$",
    },
}
"""Charts by category, each with a regular expression of the tags that it draws."""


def report(study: Study, runs: Sequence[Run], root: Path, console: Console, with_figures: bool = False) -> Path:
    """Print the tables; write the files, on request also every figure with its numbers; return their directory."""
    from chaosgate.study.report.page import html_report, pictures_of  # imports matplotlib; the terminal need not wait

    finished = collect(runs)
    table = build_table(study, runs, finished)
    tables = strength_tables(table)
    console.print()
    for one in tables if table.columns else []:
        for grid in terminal_tables(one):
            console.print(grid)
    notes = footnotes(table, tables)
    for note in notes:
        console.print(Padding(note, (0, 0, 0, 2)), style="dim", highlight=False)
    used = {one.run.name for one in finished}
    trouble = [sentence for run in runs if run.name not in used for sentence in state_of(run).trouble]
    for sentence in dict.fromkeys(trouble):
        console.print(f"{sentence}.", soft_wrap=True, markup=False, highlight=False)
    directory = root / study.name
    directory.mkdir(parents=True, exist_ok=True)
    blocks = [f"# {one.title}\n\n{markdown_table(one)}" for one in tables]
    replace_file(directory / "table.md", "\n".join([*blocks, *(f"- {note}" for note in notes), ""]))
    beside = [
        table_beside_paper(name, tables[0] if paper_data()[name]["by"] == "method" else table, finished)
        for name in study.paper
    ]
    if study.size is not None:
        beside = [_sized(one, study.size) for one in beside]
    latex = [*map(latex_results, tables), *(latex_contrasts(one) for one in tables if one.contrasts)]
    latex += map(latex_table, beside)
    pictures = pictures_of(tables[0], tables[-1], finished)
    replace_file(directory / "table.tex", "\n".join(latex))
    replace_file(directory / "report.html", html_report(tables, beside, finished, pictures))
    replace_file(directory / "table.csv", csv_table(*tables))
    if with_figures:
        _write_figures(directory, [image for blocks in pictures.values() for block in blocks for image in block.images])
    return directory


def _write_figures(directory: Path, images: "Sequence[Image]") -> None:
    (directory / "figures").mkdir(exist_ok=True)
    for image in images:
        name = re.sub(r"[^a-z0-9]+", "_", image.text.lower())
        replace_file(directory / "figures" / f"{name}.svg", image.svg)
    numbers = ",\n".join(f"{json.dumps(image.text)}: {json.dumps(image.numbers)}" for image in images)
    replace_file(directory / "figures.json", f"{{\n{numbers}\n}}\n")


def _sized(table: PaperTable, size: Size) -> PaperTable:
    """A table that cannot be taken for the paper's experiment: its name says the size, its label is another."""
    images = " on made-up images" if size.made_up else ""
    return replace(table, name=f"{table.name}, {size.name} size{images}", label=f"{table.label}_{size.name}")


def write_layout(root: Path) -> Path:
    """Leave the layout under the directory of the runs, unless it is there; return its folder."""
    folder = root / LAYOUT_FOLDER
    if any(folder.glob("events.out.tfevents.*")):
        return folder
    # TensorBoard's own parts: torch's writer would make a study's runner import torch, which it otherwise does without.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    categories = [
        layout_pb2.Category(
            title=category,
            chart=[
                layout_pb2.Chart(title=name, multiline=layout_pb2.MultilineChartContent(tag=[tag]))
                for name, tag in charts.items()
            ],
        )
        for category, charts in LAYOUT.items()
    ]
    layout = layout_pb2.Layout(category=categories).SerializeToString()
    value = Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME)),
        tensor=TensorProto(dtype="DT_STRING", string_val=[layout]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    writer.add_event(Event(wall_time=time.time(), summary=Summary(value=[value])))
    writer.close()
    return folder
