import pytest

from chaosgate.metrics import collapsed

# Table imagenetc_gamma; without noise top-1 is .382. The paper does not print confidence, but |confidence - top-1| is
# at most the ECE, so every confidence in between must give the same answer.
SWEEP = {0.03: (0.388, 0.091), 0.07: (0.388, 0.075), 0.1: (0.383, 0.056), 0.18: (0.385, 0.073), 0.27: (0.276, 0.169)}


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
    with pytest.raises(ValueError, match="shares must lie in"):
        collapsed(value, 0.5, 0.5)
