import numpy as np
import pytest
import torch

from chaosgate.metrics import AdaptiveCalibrationError, adaptive_bins, adaptive_calibration_error
from tests.metrics import reference


def test_random_cases_agree_with_the_plain_reference():
    random = np.random.default_rng(0)
    for case in range(300):
        n, num_bins = int(random.integers(1, 60)), int(random.integers(1, 20))
        confidence = random.uniform(0, 1, n)
        if case % 2:
            confidence = np.round(confidence, 1)  # many ties, also at exactly 0 and 1
        correct = random.uniform(0, 1, n) < confidence
        ours = adaptive_calibration_error(
            torch.from_numpy(confidence), torch.from_numpy(correct), num_bins
        )
        assert float(ours) == pytest.approx(
            reference.adaptive_ece(confidence, correct, num_bins), abs=1e-12
        )


def test_bins_hold_equal_shares_and_sizes_differ_by_at_most_one():
    confidence = torch.rand(100, generator=torch.Generator().manual_seed(0))
    bins = adaptive_bins(confidence, torch.ones(100), num_bins=15)
    assert bins.count.sum() == 100
    assert set(bins.count.tolist()) == {6, 7}
    # Borders separate the bins they stand between.
    for m in range(15):
        inside = (confidence > bins.edges[m]) & (confidence <= bins.edges[m + 1])
        assert inside.sum() == bins.count[m]


def test_fewer_samples_than_bins_leave_bins_empty():
    bins = adaptive_bins(torch.tensor([0.5, 0.75]), torch.tensor([1, 0]), num_bins=4)
    assert bins.count.tolist() == [0, 1, 0, 1]
    assert (
        float(adaptive_calibration_error(torch.tensor([0.5, 0.75]), torch.tensor([1, 0]), 4))
        == 0.625
    )


@pytest.mark.parametrize("correct", [[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
def test_order_within_a_tie_does_not_matter(correct):
    # Taken in the order they came, the first two would make bins of accuracy 1 and 0: an error of 1/2.
    confidence = torch.full((4,), 0.5)
    assert float(adaptive_calibration_error(confidence, torch.tensor(correct), num_bins=2)) == 0


def test_the_metric_is_the_function_for_any_order_and_split():
    generator = torch.Generator().manual_seed(1)
    probs = (4 * torch.randn(200, 5, generator=generator)).round().softmax(1)
    target = torch.randint(0, 5, (200,), generator=generator)
    confidence, predicted = probs.max(1)
    expected = adaptive_calibration_error(confidence, predicted == target)
    for sizes in ([200], [1] * 200, [3, 197]):
        metric = AdaptiveCalibrationError()
        for part in torch.randperm(200, generator=generator).split(sizes):
            metric.update(probs[part], target[part])
        assert torch.equal(metric.compute(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confidences_are_kept_without_rounding(dtype):
    metric = AdaptiveCalibrationError()
    confidence = torch.tensor([1 / 3, 1.0, 0.0, 1 / 1000, torch.nan], dtype=dtype)
    correct = torch.tensor([True, False, True, False, True])
    metric.append(confidence, correct, torch.arange(5))
    kept = metric.kept()
    torch.testing.assert_close(kept[0], confidence.double(), rtol=0, atol=0, equal_nan=True)
    assert kept[1][:4].tolist() == correct[:4].tolist()
    assert kept[2].tolist() == [0, 1, 2, 3, 4]


def test_without_samples_it_is_nan():
    assert adaptive_calibration_error(torch.zeros(0), torch.zeros(0)).isnan()
