"""Reliability diagrams show the numbers of the metric."""

import math
import sys

import numpy as np
import pytest
import torch

from chaosgate.metrics import CellMetrics, reliability_figure


@pytest.fixture(scope="module")
def metric() -> CellMetrics:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 10, generator=generator)
    target = torch.multinomial((0.5 * logits).softmax(1), 1, generator=generator).squeeze(1)
    metric = CellMetrics(num_cells=3)
    metric.update(logits, target)
    metric.update(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), torch.tensor([1]))
    return metric


def test_bars_boxes_and_title_show_the_sums_and_the_results(metric):
    sums = metric.reliability().of_cell(0)
    filled = sums.count > 0
    figure = reliability_figure(metric.reliability(), title="pixelate, severity 3")
    bars, *gaps = figure.axes[0].containers
    assert [bar.get_height() for bar in bars] == (sums.correct_sum / sums.count)[filled].tolist()
    assert [bar.get_x() for bar in bars] == sums.edges[:-1][filled].tolist()
    ends = sorted(box.get_y() + box.get_height() for boxes in gaps for box in boxes)
    confidence = (sums.confidence_sum / sums.count)[filled]
    assert ends == pytest.approx(sorted(confidence.tolist()))
    values = {name: float(column[0]) for name, column in metric.compute().items()}
    assert figure.get_suptitle() == "pixelate, severity 3"
    text = f"ECE {values['ece']:.3f}, Top-1 {values['top1']:.3f}, "
    text += f"confidence {values['confidence']:.3f}, n = 2,000"
    assert figure.axes[0].get_title() == text


def test_every_cell_can_be_drawn_and_no_global_figure_is_left(metric):
    for cell, expected in enumerate(["ECE 0.", "ECE nan", "no samples"]):
        figure = reliability_figure(metric.reliability(), cell)
        figure.canvas.draw()
        assert np.asarray(figure.canvas.buffer_rgba())[..., :3].std() > 5
        assert expected in figure.axes[0].get_title()
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_intervals_are_wider_where_bins_are_worth_fewer_samples(metric):
    sums = metric.reliability().of_cell(0)

    def heights(effective: torch.Tensor | None) -> np.ndarray:
        (lines,) = reliability_figure(sums, effective=effective).axes[0].collections
        return np.array([segment[1, 1] - segment[0, 1] for segment in lines.get_segments()])

    assert np.allclose(heights(sums.count), heights(None))
    assert np.all(heights(sums.count / 4) > heights(None))
