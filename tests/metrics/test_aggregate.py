import math

import pytest
import torch

from chaosgate.metrics import CellMetrics, aggregate_cells, collapsed

GRID = {
    (name, s): 0.1 * s + shift for name, shift in (("fog", 0.0), ("snow", 0.3)) for s in (1, 2, 3)
}


def test_aggregate_is_the_mean_over_corruptions_of_the_mean_over_severities():
    assert aggregate_cells(GRID) == pytest.approx(0.35)


def test_the_clean_cell_is_left_out():
    assert aggregate_cells({("clean", 0): 100.0, **GRID}) == aggregate_cells(GRID)


def test_the_papers_breakdown_averages_to_its_overall_row():
    # Tables imagenetc_breakdown and imagenetc_overall, rounded to three digits there.
    top1 = dict(defocus_blur=0.402, gaussian_noise=0.308, glass_blur=0.273, jpeg_compression=0.547, motion_blur=0.396,
                pixelate=0.462, shot_noise=0.289)  # fmt: skip
    ece = dict(defocus_blur=0.038, gaussian_noise=0.156, glass_blur=0.122, jpeg_compression=0.059, motion_blur=0.089,
               pixelate=0.096, shot_noise=0.171)  # fmt: skip
    for values, overall in ((top1, 0.382), (ece, 0.105)):
        assert aggregate_cells(
            {(name, 1): value for name, value in values.items()}
        ) == pytest.approx(overall, abs=1e-3)


def test_averaging_cells_is_not_pooling_samples():
    # One cell 40 % over-confident, one as much under-confident: pooled, the errors cancel in the
    # shared bin.
    metric = CellMetrics(num_cells=2, num_bins=1)
    logits = torch.tensor([[math.log(1.5), 0.0]]).expand(20, 2)  # confidence .6
    target = torch.tensor([0] * 2 + [1] * 8 + [0] * 10)
    metric.update(logits, target, torch.arange(20) // 10)
    pooled = CellMetrics(num_bins=1)
    pooled.update(logits, target)
    cells = dict(zip([("fog", 1), ("snow", 1)], metric.compute()["ece"], strict=True))
    assert aggregate_cells(cells) == pytest.approx(0.4)
    assert float(pooled.compute()["ece"]) == pytest.approx(0.0, abs=1e-7)


def test_a_hole_in_the_grid_is_refused():
    partial = {cell: value for cell, value in GRID.items() if cell != ("snow", 2)}
    with pytest.raises(ValueError, match=r"no value for 1 of 6 .*\('snow', 2\)"):
        aggregate_cells(partial)


def test_nan_is_not_averaged_away():
    assert math.isnan(aggregate_cells({**GRID, ("fog", 1): math.nan}))


def test_nothing_to_average_is_refused():
    with pytest.raises(ValueError, match="no value for 0 of 0 corrupted cells"):
        aggregate_cells({("clean", 0): 0.1})


# Table imagenetc_gamma; without noise top-1 is .382. The paper does not print confidence, but
# |confidence - top-1| is at most the ECE, so every confidence in between must give the same answer.
SWEEP = {
    0.03: (0.388, 0.091),
    0.07: (0.388, 0.075),
    0.1: (0.383, 0.056),
    0.18: (0.385, 0.073),
    0.27: (0.276, 0.169),
}


@pytest.mark.parametrize("confidence", [0.007, 0.05, 0.093])
def test_the_papers_collapsed_case_is_flagged(confidence):
    assert collapsed(0.050, confidence, reference_top1=0.382)
    assert collapsed(0.050, confidence, reference_top1=0.382, num_classes=1000)


@pytest.mark.parametrize("gamma", SWEEP)
def test_the_rest_of_the_papers_sweep_is_not(gamma):
    top1, ece = SWEEP[gamma]
    for confidence in (top1 - ece, top1, top1 + ece):
        assert not collapsed(top1, confidence, reference_top1=0.382)


def test_a_confident_failure_is_left_to_its_ece():
    assert not collapsed(top1=0.05, confidence=0.9, reference_top1=0.382)


def test_chance_level_counts_with_few_classes():
    assert collapsed(top1=0.5, confidence=0.52, reference_top1=0.9, num_classes=2)
    assert not collapsed(top1=0.5, confidence=0.52, reference_top1=0.9)


def test_nothing_collapses_below_a_reference_at_chance():
    assert not collapsed(top1=0.001, confidence=0.001, reference_top1=0.001, num_classes=1000)


@pytest.mark.parametrize("value", [float("nan"), -0.1, 38.2])
def test_what_is_not_a_share_is_refused(value):
    with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
        collapsed(value, 0.5, 0.5)
