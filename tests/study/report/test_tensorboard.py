"""The layout that TensorBoard draws a study with."""

import re
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from chaosgate.study.report.write import LAYOUT, write_layout

TAGS = [
    "train/loss",
    "train/top1",
    "val/top1",
    "val/nll",
    "val/ece",
    "val/brier",
    "val/gap",
    "lr-SGD",
]
TAGS += [
    f"noise/L4/{name}" for name in ("energy", "log_std", "logit_change")
]  # what a run of this library logs


def read(folder: Path) -> layout_pb2.Layout:
    events = EventAccumulator(str(folder)).Reload()
    (value,) = events.Tensors("custom_scalars__config__")
    return layout_pb2.Layout.FromString(value.tensor_proto.string_val[0])


def test_layout_is_read_back_by_tensorboard_and_written_once(tmp_path: Path) -> None:
    folder = write_layout(tmp_path)
    layout = read(folder)
    assert {one.title: [chart.title for chart in one.chart] for one in layout.category} == {
        title: list(charts) for title, charts in LAYOUT.items()
    }
    before = list(folder.iterdir())
    assert write_layout(tmp_path) == folder and list(folder.iterdir()) == before


def test_every_chart_shows_one_kind_of_curve_and_every_curve_has_a_chart() -> None:
    patterns = [pattern for charts in LAYOUT.values() for pattern in charts.values()]
    assert sorted(tag for pattern in patterns for tag in TAGS if re.search(pattern, tag)) == sorted(
        TAGS
    )
