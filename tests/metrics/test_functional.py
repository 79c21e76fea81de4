"""Scores, bins, calibration errors and exact sums; test_modules.py has random cases."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from chaosgate.metrics import (
    adaptive_calibration_error,
    calibration_bins,
    calibration_error,
    classification_scores,
    classwise_calibration_error,
    functional,
)
from chaosgate.metrics.functional import (
    bin_index,
    effective_counts,
    join,
    split,
    target_rank,
    top_class,
)
from tests.metrics import reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_bins", [1, 2, 15, 100])
def test_a_confidence_on_a_border_belongs_to_the_bin_below(dtype, num_bins):
    on_border = torch.tensor([k / num_bins for k in range(num_bins + 1)], dtype=dtype)
    expected = torch.arange(num_bins + 1) - 1
    expected[0] = 0  # the first bin contains 0
    assert torch.equal(bin_index(on_border, num_bins), expected)
    if dtype in (torch.float32, torch.float64):
        above = torch.nextafter(on_border[:-1], torch.tensor(2.0, dtype=dtype))
        assert torch.equal(bin_index(above, num_bins), torch.arange(num_bins))


def test_sums_per_bin_of_a_case_done_by_hand():
    confidence = torch.tensor([0.0, 0.2, 0.5, 0.75, 1.0], dtype=torch.float64)
    bins = calibration_bins(confidence, torch.tensor([1, 0, 1, 1, 0]), num_bins=4)
    assert bins.count.tolist() == [2, 1, 1, 1]
    assert bins.confidence_sum.tolist() == pytest.approx([0.2, 0.5, 0.75, 1.0], abs=1e-15)
    assert bins.correct_sum.tolist() == [1, 1, 1, 0]
    # |.2-1| + |.5-1| + |.75-1| + |1-0| = 2.55
    assert float(calibration_error(bins)) == pytest.approx(2.55 / 5, abs=1e-15)
    empty = torch.zeros(0), torch.zeros(0)
    assert calibration_error(calibration_bins(*empty)).isnan()
    assert adaptive_calibration_error(*empty).isnan()


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_equal_classes_the_first_is_ahead_as_in_argmax(dtype):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randint(0, 4, (500, 9), generator=generator).double()  # most rows have a tie
    probs = torch.cat((logits.softmax(1), torch.full((1, 9), 1 / 9), torch.eye(9))).to(dtype)
    value, number = top_class(probs)
    expected = probs.max(1)
    assert torch.equal(value, expected.values) and torch.equal(number, expected.indices)
    target = torch.randint(0, 9, (500,), generator=generator)
    rows = zip(logits.tolist(), target.tolist(), strict=True)
    places = [reference.predicted_order(row).index(t) for row, t in rows]
    assert target_rank(logits.to(dtype), target).tolist() == places
    ruled_out = torch.tensor([[0.0, -math.inf, -math.inf, 1.0]], dtype=dtype).expand(4, 4)
    assert target_rank(ruled_out, torch.arange(4)).tolist() == [1, 2, 3, 0]


def test_scores_are_computed_in_float64_and_in_blocks(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, 20, (50,), generator=generator)
    for dtype in DTYPES[:3]:
        logits = (3 * torch.randn(50, 20, generator=generator)).to(dtype)
        exact = classification_scores(logits.double(), target)
        assert all(map(torch.equal, classification_scores(logits, target), exact))
    monkeypatch.setattr(functional, "BLOCK_CPU", 160)  # eight rows
    assert all(map(torch.equal, classification_scores(logits, target), exact))
    empty = classification_scores(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert [len(field) for field in empty] == [0] * 4


def test_huge_and_infinite_logits():
    logits = torch.tensor([[0.0, 1e8, 0.0], [1e8, 0.0, 1e8], [1.0, 1.0, -math.inf]])
    scores = classification_scores(logits, torch.tensor([0, 0, 2]))
    assert scores.nll.tolist() == [1e8, math.log(2), math.inf]
    assert scores.brier.tolist() == [2.0, 0.5, 1.5] and scores.confidence[2] == 0.5
    for row in ([math.nan, 0, 0], [math.inf, 0, 0], [-math.inf] * 3):  # no softmax
        scores = classification_scores(torch.tensor([row, [0.0, 1.0, 2.0]]), torch.tensor([1, 2]))
        for field in (scores.confidence, scores.nll, scores.brier):
            assert field.isnan().tolist() == [True, False]


def test_adaptive_error_agrees_with_the_plain_reference():
    random = np.random.default_rng(0)
    for case in range(200):
        n, num_bins = int(random.integers(1, 60)), int(random.integers(1, 20))
        confidence = random.uniform(0, 1, n)
        if case % 2:
            confidence = np.round(confidence, 1)  # many ties, also at exactly 0 and 1
        correct = random.uniform(0, 1, n) < confidence
        given = torch.from_numpy(confidence), torch.from_numpy(correct)
        expected = pytest.approx(reference.adaptive_ece(confidence, correct, num_bins), abs=1e-12)
        assert float(adaptive_calibration_error(*given, num_bins)) == expected


@pytest.mark.parametrize("classes", [2, 30])
def test_classwise_error_is_that_of_every_class_alone(classes):
    generator = torch.Generator().manual_seed(classes)
    probs = (2 * torch.randn(300, classes, generator=generator, dtype=torch.float64)).softmax(1)
    target = torch.randint(classes, (300,), generator=generator)
    expected = reference.classwise_ece(probs, target, 15)
    assert float(classwise_calibration_error(probs, target)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.statistical
def test_effective_count_gives_the_variance_of_a_bin_over_images():
    """400 sets of 300 images in 5 cells: variance of the accuracy against a (1 - a) / n."""
    generator = torch.Generator().manual_seed(1)
    accuracies, predicted = [], []
    for _ in range(400):
        easy = torch.rand(1, 300, generator=generator) < 0.5
        correct = torch.rand(5, 300, generator=generator) < torch.where(easy, 0.9, 0.4)
        a = float(correct.double().mean())
        count = float(effective_counts(torch.full((5, 300), 0.5), correct)[7])
        accuracies.append(a)
        predicted.append(a * (1 - a) / count)
    # relative standard error of a variance from 400 draws: 7 %; 3 of them
    assert np.var(accuracies) == pytest.approx(np.mean(predicted), rel=0.21)
    assert np.mean(predicted) > 1.5 * 0.65 * 0.35 / 1500  # 1,500 independent samples are too many
    alone = effective_counts(torch.full((1, 300), 0.5), correct[:1])
    assert float(alone[7]) == pytest.approx(300)
    copies = effective_counts(torch.full((4, 300), 0.5), correct[:1].expand(4, 300))
    assert float(copies[7]) == pytest.approx(300)  # copies are worth nothing


def test_a_sum_is_exact_and_the_same_in_any_order_and_grouping():
    random = np.random.default_rng(0)
    for _ in range(100):
        values = 10 ** random.uniform(-9, 6, int(random.integers(1, 40)))
        whole = join(split(torch.from_numpy(values)).sum(0))
        pieces = np.split(random.permutation(values), [int(random.integers(len(values) + 1))])
        assert torch.equal(whole, join(sum(split(torch.from_numpy(p)).sum(0) for p in pieces)))
        error = abs(Fraction(float(whole)) - sum(map(Fraction, values.tolist())))
        assert error <= len(values) * Fraction(1, 2**53) + Fraction(float(whole)) / 2**52
    third = torch.tensor([1 / 3, 0.1, 12345.678, 2.0**-20])  # float32 values are kept exactly
    assert torch.equal(join(split(third)), third.double())
    almost_one = torch.tensor(1.0 - 2.0**-52, dtype=torch.float64)
    assert float(join(split(almost_one) * 2**20)) == 2**20 - 2.0**-32
