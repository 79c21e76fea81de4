"""Reliability diagrams show the numbers of the metric."""

import math

import numpy as np
import pytest
import torch

from chaosgate.metrics import CellMetrics, reliability_figure


@pytest.fixture(scope="module")
def metric():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, 10, generator=generator)
    target = torch.multinomial((0.5 * logits).softmax(1), 1, generator=generator).squeeze(1)
    metric = CellMetrics(num_cells=3)
    metric.update(logits, target)
    metric.update(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]), torch.tensor([1]))
    return metric


def test_bars_and_boxes_show_the_sums(metric):
    sums = metric.reliability().of_cell(0)
    filled = sums.count > 0
    bars, *gaps = reliability_figure(metric.reliability()).axes[0].containers
    assert [bar.get_height() for bar in bars] == (sums.correct_sum / sums.count)[filled].tolist()
    assert [bar.get_x() for bar in bars] == sums.edges[:-1][filled].tolist()
    ends = sorted(box.get_y() + box.get_height() for boxes in gaps for box in boxes)
    confidence = (sums.confidence_sum / sums.count)[filled]
    assert ends == pytest.approx(sorted(confidence.tolist()))


def test_every_cell_can_be_drawn_with_its_result(metric):
    values = {name: float(column[0]) for name, column in metric.compute().items()}
    text = "ECE {ece:.3f}, Top-1 {top1:.3f}, confidence {confidence:.3f}, n = 2,000"
    for cell, expected in enumerate([text.format(**values), "ECE nan", "no samples"]):
        figure = reliability_figure(metric.reliability(), cell)
        figure.canvas.draw()
        assert np.asarray(figure.canvas.buffer_rgba())[..., :3].std() > 5
        assert expected in figure.axes[0].get_title()


def test_intervals_are_wider_where_bins_are_worth_fewer_samples(metric):
    sums = metric.reliability().of_cell(0)

    def heights(effective):
        (lines,) = reliability_figure(sums, effective=effective).axes[0].collections
        return np.array([segment[1, 1] - segment[0, 1] for segment in lines.get_segments()])

    assert np.allclose(heights(sums.count), heights(None))
    assert np.all(heights(sums.count / 4) > heights(None))
