"""TensorBoard for a whole study: one view in which every curve is drawn for all methods together.

TensorBoard shows each run directory as a run; its *custom scalars* tab draws the charts that a layout asks for, all
selected runs in each. The layout is a small event file beside the runs, the same for every study of a project. The
*hparams* tab needs no help: every tested run has left its method, seed and gate with its test metrics.
"""

import time
from collections.abc import Mapping
from pathlib import Path

FOLDER = "tensorboard_layout"
LAYOUT: Mapping[str, Mapping[str, str]] = {
    "validation": {
        "NLL": r"^val/nll$",
        "ECE": r"^val/ece$",
        "Top-1": r"^val/top1$",
        "confidence - accuracy": r"^val/gap$",
        "Brier": r"^val/brier$",
    },
    "training": {"loss": r"^train/loss$", "Top-1": r"^train/top1$", "learning rate": r"^lr-.*$"},
    "noise": {
        "injected energy / energy of the features": r"^noise/[^/]+/energy$",
        "log std of the gate": r"^noise/[^/]+/log_std$",
        "change of the logits": r"^noise/[^/]+/logit_change$",
    },
}
"""Charts by category, each with a regular expression of the tags that it draws."""


def write_layout(root: Path) -> Path:
    """Leave the layout under the directory of the runs, unless it is there; return its folder."""
    folder = root / FOLDER
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
            title=title,
            chart=[
                layout_pb2.Chart(title=name, multiline=layout_pb2.MultilineChartContent(tag=[tag]))
                for name, tag in charts.items()
            ],
        )
        for title, charts in LAYOUT.items()
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
