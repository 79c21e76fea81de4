import math

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassCalibrationError

from chaosgate.metrics import AdaptiveCalibrationError, BrierScore, CalibrationError
from tests.metrics import reference


def two_class(confidence: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    first = torch.tensor(confidence, dtype=dtype)
    return torch.stack((first, 1 - first), dim=1)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_random_cases_agree_with_the_plain_reference(norm):
    random = np.random.default_rng(0)
    for _ in range(80):
        n, classes, num_bins = (int(random.integers(*ends)) for ends in ((1, 50), (2, 8), (1, 25)))
        logits = torch.from_numpy(
            10 ** random.uniform(-2, 3) * random.standard_normal((n, classes))
        )
        target = torch.from_numpy(random.integers(0, classes, n))
        probs = logits.softmax(1)
        metric = CalibrationError(num_bins, norm)
        metric.update(probs, target)
        confidence, predicted = probs.max(1)
        expected = reference.ece(
            confidence.tolist(), (predicted == target).tolist(), num_bins, norm
        )
        assert float(metric.compute()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_torchmetrics_agrees_where_no_confidence_is_on_a_border(norm):
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(5000, 10, generator=generator, dtype=torch.float64)).softmax(1)
    target = torch.where(
        torch.rand(5000, generator=generator) < 0.6,
        probs.argmax(1),
        torch.randint(0, 10, (5000,), generator=generator),
    )
    ours, theirs = CalibrationError(15, norm), MulticlassCalibrationError(10, n_bins=15, norm=norm)
    for metric in (ours, theirs):
        metric.update(probs, target)
    # Theirs adds in float32 or float64 depending on the version.
    assert float(ours.compute()) == pytest.approx(float(theirs.compute()), abs=1e-6)


def test_confidence_one_shares_the_last_bin():
    # torchmetrics#3510: with an extra bin for exactly 1 this would be (|1 - 0| + |.95 - 1|) / 2 = .525.
    metric = CalibrationError(num_bins=15)
    metric.update(two_class([1.0, 0.95]), torch.tensor([1, 0]))
    assert float(metric.compute()) == pytest.approx(abs(1.95 - 1) / 2, abs=1e-15)
    assert metric.reliability().count.tolist() == [0] * 14 + [2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confidence_on_a_border_counts_in_the_bin_below(dtype):
    metric = CalibrationError(num_bins=15)
    metric.update(
        two_class([k / 15 for k in range(8, 16)], dtype), torch.zeros(8, dtype=torch.long)
    )
    assert metric.reliability().count.tolist() == [0] * 7 + [1] * 8


def test_batch_split_changes_no_bit():
    generator = torch.Generator().manual_seed(3)
    probs = (3 * torch.randn(300, 6, generator=generator)).softmax(1)
    target = torch.randint(0, 6, (300,), generator=generator)
    results = []
    for sizes in ([300], [1] * 300, [299, 1]):
        metric = CalibrationError()
        for part in torch.randperm(300, generator=generator).split(sizes):
            metric.update(probs[part], target[part])
        results.append(float(metric.compute()))
    assert len(set(results)) == 1


METRICS = [CalibrationError, AdaptiveCalibrationError, lambda: BrierScore(2)]


@pytest.mark.parametrize("make", METRICS)
@pytest.mark.parametrize("row", [[0.2, 0.7], [2.0, -1.0], [math.nan, 1.0], [0.9, 0.9]], ids=str)
def test_anything_but_probabilities_is_refused(make, row):
    metric = make()
    with pytest.raises(ValueError, match=r"row 1 is not a probability distribution.*Apply softmax"):
        metric.update(torch.tensor([[0.5, 0.5], row]), torch.tensor([0, 0]))


@pytest.mark.parametrize("make", METRICS)
def test_targets_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="sample 1 has target 2, but targets run from 0 to 1"):
        make().update(two_class([0.5, 0.5]), torch.tensor([0, 2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_softmax_of_a_thousand_classes_passes_in_every_precision(dtype):
    logits = 3 * torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    metric = CalibrationError()
    metric.update(logits.to(dtype).softmax(1), torch.zeros(64, dtype=torch.long))
    assert metric.compute().isfinite()


@pytest.mark.parametrize("make", [CalibrationError, AdaptiveCalibrationError])
def test_an_unchecked_nan_makes_the_result_nan(make):
    metric = make(validate_args=False)
    metric.update(torch.tensor([[0.5, 0.5], [math.nan, 0.5]]), torch.tensor([0, 0]))
    assert metric.compute().isnan()


def test_unknown_norms_and_empty_bins_are_refused():
    with pytest.raises(ValueError, match="no calibration norm 'rms'"):
        CalibrationError(norm="rms")
    for make in (CalibrationError, AdaptiveCalibrationError):
        with pytest.raises(ValueError, match="asked for 0 calibration bins"):
            make(num_bins=0)
