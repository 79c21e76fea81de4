"""Risk against coverage and the AUROC, against every order of ties and every pair written out."""

from itertools import permutations
from math import isnan

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu

from chaosgate.metrics import area_under_risk_coverage, area_under_roc
from chaosgate.metrics.ranking import risk_coverage


def risks(correct):
    return [1 - np.mean(correct[:j]) for j in range(1, len(correct) + 1)]


def test_risk_is_the_share_of_errors_among_the_most_confident():
    random = np.random.default_rng(0)
    confidence, correct = random.random(200), random.random(200) < 0.7
    given = torch.from_numpy(confidence), torch.from_numpy(correct)
    coverage, risk = risk_coverage(*given)
    expected = risks(correct[np.argsort(-confidence)])
    assert np.allclose(risk.numpy(), expected, atol=1e-12)
    assert np.allclose(coverage.numpy(), np.arange(1, 201) / 200, atol=1e-15)
    assert float(area_under_risk_coverage(*given)) == pytest.approx(np.mean(expected), abs=1e-12)
    with pytest.raises(ValueError, match=r"correct \(3,\)"):
        risk_coverage(torch.ones(2), torch.ones(3))


def test_ties_count_as_the_mean_over_all_their_orders():
    confidence = torch.tensor([0.9, 0.5, 0.5, 0.5, 0.2])
    correct = np.array([True, False, True, True, False])
    orders = [[0, *middle, 4] for middle in permutations((1, 2, 3))]
    expected = np.mean([np.mean(risks(correct[order])) for order in orders])
    for order in ([0, 1, 2, 3, 4], [3, 1, 0, 4, 2]):
        found = area_under_risk_coverage(confidence[order], torch.from_numpy(correct)[order])
        assert float(found) == pytest.approx(expected, abs=1e-12)


def test_area_under_roc_is_the_statistic_of_mann_and_whitney():
    random = np.random.default_rng(1)
    inside, outside = (random.integers(0, top, n) / 40 for top, n in ((40, 300), (35, 200)))  # ties
    expected = mannwhitneyu(inside, outside).statistic / (300 * 200)
    found = area_under_roc(torch.from_numpy(inside), torch.from_numpy(outside))
    assert float(found) == pytest.approx(expected, abs=1e-12)
    assert isnan(float(area_under_roc(torch.ones(0), torch.zeros(2))))
