import math
import sys

import numpy as np
import pytest
import torch

from chaosgate.metrics import CellMetrics, reliability_figure


@pytest.fixture
def metric() -> CellMetrics:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 10, generator=generator)
    target = torch.multinomial((0.5 * logits).softmax(1), 1, generator=generator).squeeze(1)
    metric = CellMetrics(num_cells=3)
    metric.update(logits, target)
    metric.update(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), torch.tensor([1]))
    return metric


def test_bars_are_the_accuracies_of_the_sums(metric):
    sums = metric.reliability().of_cell(0)
    filled = sums.count > 0
    axes = reliability_figure(metric.reliability()).axes[0]
    bars = axes.containers[0]
    assert [bar.get_height() for bar in bars] == (sums.correct_sum / sums.count)[filled].tolist()
    assert [bar.get_x() for bar in bars] == sums.edges[:-1][filled].tolist()


def test_boxes_reach_from_accuracy_to_confidence(metric):
    sums = metric.reliability().of_cell(0)
    confidence = (sums.confidence_sum / sums.count)[sums.count > 0]
    boxes = [
        box for container in reliability_figure(sums).axes[0].containers[1:3] for box in container
    ]
    ends = sorted(box.get_y() + box.get_height() for box in boxes)
    assert ends == pytest.approx(sorted(confidence.tolist()))


def test_the_numbers_on_the_figure_are_those_of_compute(metric):
    values = {name: float(column[0]) for name, column in metric.compute().items()}
    figure = reliability_figure(metric.reliability(), title="pixelate, severity 3")
    assert figure.get_suptitle() == "pixelate, severity 3"
    text = figure.axes[0].get_title()
    assert f"ECE {values['ece']:.3f}" in text
    assert f"Top-1 {values['top1']:.3f}" in text
    assert f"confidence {values['confidence']:.3f}" in text
    assert "n = 2,000" in text


@pytest.mark.parametrize("cell", [0, 1, 2], ids=["samples", "nan", "empty"])
def test_every_cell_can_be_drawn(metric, cell):
    figure = reliability_figure(metric.reliability(), cell)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())
    assert pixels.shape[:2] == (696, 600)
    assert pixels[..., :3].std() > 5
    expected = ["ECE 0.", "ECE nan", "no samples"][cell]
    assert expected in figure.axes[0].get_title()


def test_drawing_leaves_no_global_figure_behind(metric):
    reliability_figure(metric.reliability())
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_intervals_are_wider_where_bins_are_worth_fewer_samples(metric: CellMetrics) -> None:
    sums = metric.reliability().of_cell(0)

    def heights(effective: torch.Tensor | None) -> np.ndarray:
        (lines,) = reliability_figure(sums, effective=effective).axes[0].collections
        return np.array([segment[1, 1] - segment[0, 1] for segment in lines.get_segments()])

    assert np.allclose(heights(sums.count), heights(None))
    assert np.all(heights(sums.count / 4) > heights(None))
