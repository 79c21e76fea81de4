"""Build a study's outputs from what is finished: terminal, Markdown, CSV, LaTeX, HTML; and TensorBoard's view of it.

TensorBoard shows each run directory as a run; its *custom scalars* tab draws the charts that a layout asks for, all
selected runs in each. The layout is a small event file beside the runs, the same for every study of a project. The
*hparams* tab needs no help: every tested run has left its method, seed and gate with its test metrics.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.padding import Padding

from chaosgate.metrics.names import title
from chaosgate.study.plan.runs import Run
from chaosgate.study.plan.study import Size, Study, paper_data
from chaosgate.study.report.build import build_table, strength_tables
from chaosgate.study.report.collect import collect
from chaosgate.study.report.latex import latex_results, latex_table
from chaosgate.study.report.notes import footnotes
from chaosgate.study.report.paper_table import PaperTable, table_beside_paper
from chaosgate.study.report.text import csv_table, markdown_table, terminal_tables

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


def report(study: Study, runs: Sequence[Run], root: Path, console: Console) -> Path:
    """Print the tables; write the files; return their directory."""
    from chaosgate.study.report.page import html_report  # imports matplotlib; the terminal should not wait for it

    finished = collect(runs)
    table = build_table(study, runs, finished)
    tables = strength_tables(table)
    console.print()
    for one in tables if table.columns else []:
        for grid in terminal_tables(one):
            console.print(grid)
    for note in footnotes(table):
        console.print(Padding(note, (0, 0, 0, 2)), style="dim", highlight=False)
    directory = root / study.name
    directory.mkdir(parents=True, exist_ok=True)
    blocks = [f"# {one.title}\n\n{markdown_table(one)}" for one in tables]
    notes = "\n".join(f"- {note}" for note in footnotes(table))
    (directory / "table.md").write_text("\n".join([*blocks, notes, ""]), encoding="utf-8")
    beside = [
        table_beside_paper(name, tables[0] if paper_data()[name]["by"] == "method" else table, finished)
        for name in study.paper
    ]
    if study.size is not None:
        beside = [_sized(one, study.size) for one in beside]
    latex = [*map(latex_results, tables), *map(latex_table, beside)]
    (directory / "table.tex").write_text("\n".join(latex), encoding="utf-8")
    (directory / "report.html").write_text(html_report(tables, beside, finished), encoding="utf-8")
    (directory / "table.csv").write_text(csv_table(table), encoding="utf-8")
    return directory


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
