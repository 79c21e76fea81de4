"""Risk against coverage and the AUROC, against every order of ties and every pair written out."""

from itertools import permutations
from math import isnan

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu

from chaosgate.metrics import (
    area_under_risk_coverage,
    area_under_roc,
)
from chaosgate.metrics.ranking import risk_coverage


def test_risk_is_the_share_of_errors_among_the_most_confident() -> None:
    generator = np.random.default_rng(0)
    confidence, correct = generator.random(200), generator.random(200) < 0.7
    coverage, risk = risk_coverage(torch.from_numpy(confidence), torch.from_numpy(correct))
    order = sorted(range(200), key=lambda i: -confidence[i])
    by_hand = [1 - np.mean([correct[i] for i in order[:j]]) for j in range(1, 201)]
    assert np.allclose(risk.numpy(), by_hand, atol=1e-12)
    assert np.allclose(coverage.numpy(), np.arange(1, 201) / 200, atol=1e-15)
    area = area_under_risk_coverage(torch.from_numpy(confidence), torch.from_numpy(correct))
    assert float(area) == pytest.approx(np.mean(by_hand), abs=1e-12)


def test_ties_count_as_the_mean_over_all_their_orders() -> None:
    confidence, correct = [0.9, 0.5, 0.5, 0.5, 0.2], [True, False, True, True, False]

    def area(order: tuple[int, ...]) -> float:
        return float(np.mean([1 - np.mean([correct[i] for i in order[:j]]) for j in range(1, 6)]))

    orders = [(0, *middle, 4) for middle in permutations((1, 2, 3))]
    found = area_under_risk_coverage(torch.tensor(confidence), torch.tensor(correct))
    assert float(found) == pytest.approx(np.mean([area(order) for order in orders]), abs=1e-12)
    shuffled = torch.tensor([3, 1, 0, 4, 2])
    again = area_under_risk_coverage(
        torch.tensor(confidence)[shuffled], torch.tensor(correct)[shuffled]
    )
    assert float(again) == float(found)


def test_area_under_roc_is_the_statistic_of_mann_and_whitney() -> None:
    generator = np.random.default_rng(1)
    inside, outside = (
        generator.integers(0, 40, 300) / 40,
        generator.integers(0, 35, 200) / 40,
    )  # many ties
    expected = mannwhitneyu(inside, outside).statistic / (300 * 200)
    found = area_under_roc(torch.from_numpy(inside), torch.from_numpy(outside))
    assert float(found) == pytest.approx(expected, abs=1e-12)
    assert float(area_under_roc(torch.ones(3), torch.zeros(2))) == 1.0
    assert isnan(float(area_under_roc(torch.ones(0), torch.zeros(2))))


def test_one_number_per_image_is_needed() -> None:
    with pytest.raises(ValueError, match=r"correct \(3,\)"):
        risk_coverage(torch.ones(2), torch.ones(3))
