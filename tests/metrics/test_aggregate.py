"""The mean over cells, and the rule for a collapsed network, on the paper's own tables."""

import math

import pytest

from chaosgate.metrics import aggregate_cells, collapsed

GRID = {
    (name, s): 0.1 * s + shift for name, shift in (("fog", 0), ("snow", 0.3)) for s in (1, 2, 3)
}


def test_the_mean_over_corruptions_of_the_mean_over_severities_without_the_clean_cell():
    assert aggregate_cells({("clean", 0): 100.0, **GRID}) == pytest.approx(0.35)
    assert math.isnan(aggregate_cells({**GRID, ("fog", 1): math.nan}))
    partial = {cell: value for cell, value in GRID.items() if cell != ("snow", 2)}
    with pytest.raises(ValueError, match=r"no value for 1 of 6 .*\('snow', 2\)"):
        aggregate_cells(partial)
    with pytest.raises(ValueError, match="no value for 0 of 0 corrupted cells"):
        aggregate_cells({("clean", 0): 0.1})


def test_only_the_collapsed_network_of_the_papers_sweep_is_flagged():
    # Table imagenetc_gamma; without noise top-1 is .382. The paper does not print confidence, but
    # |confidence - top-1| is at most the ECE, so every confidence in between gives the same answer.
    for confidence in (0.007, 0.05, 0.093):
        assert collapsed(0.050, confidence, reference_top1=0.382)
    sweep = ((0.388, 0.091), (0.388, 0.075), (0.383, 0.056), (0.385, 0.073), (0.276, 0.169))
    for top1, ece in sweep:
        for confidence in (top1 - ece, top1, top1 + ece):
            assert not collapsed(top1, confidence, reference_top1=0.382)
    assert not collapsed(top1=0.05, confidence=0.9, reference_top1=0.382)  # confident
    assert collapsed(top1=0.5, confidence=0.52, reference_top1=0.9, num_classes=2)  # chance
    assert not collapsed(top1=0.5, confidence=0.52, reference_top1=0.9)
    for value in (math.nan, 38.2):
        with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
            collapsed(value, 0.5, 0.5)
