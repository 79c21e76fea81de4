import math

import numpy as np
import pytest
import torch

from chaosgate.metrics import bin_edges, calibration_bins, calibration_error, classification_scores
from chaosgate.metrics import functional as functional_module
from chaosgate.metrics.functional import bin_index, target_rank, top_class
from tests.metrics import reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_bins", [1, 2, 10, 15, 100])
def test_a_confidence_on_a_border_belongs_to_the_bin_below(dtype, num_bins):
    on_border = torch.tensor([k / num_bins for k in range(num_bins + 1)], dtype=dtype)
    expected = torch.arange(num_bins + 1) - 1
    expected[0] = 0  # the first bin is closed: it contains 0
    assert torch.equal(bin_index(on_border, num_bins), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_next_number_above_a_border_belongs_to_the_bin_above(dtype):
    border = torch.tensor([k / 15 for k in range(15)], dtype=dtype)
    above = torch.nextafter(border, torch.tensor(2.0, dtype=dtype))
    assert torch.equal(bin_index(above, 15), torch.arange(15))


def test_borders_are_correctly_rounded_fractions():
    for num_bins in range(1, 200):
        exact = np.arange(num_bins + 1, dtype=np.float32) / np.float32(num_bins)
        assert np.array_equal(bin_edges(num_bins, torch.float32).numpy(), exact)


def test_sums_per_bin_of_a_case_done_by_hand():
    confidence = torch.tensor([0.0, 0.2, 0.5, 0.75, 1.0], dtype=torch.float64)
    bins = calibration_bins(confidence, torch.tensor([1, 0, 1, 1, 0]), num_bins=4)
    assert bins.count.tolist() == [2, 1, 1, 1]
    assert bins.confidence_sum.tolist() == pytest.approx([0.2, 0.5, 0.75, 1.0], abs=1e-15)
    assert bins.correct_sum.tolist() == [1, 1, 1, 0]
    # |.2-1| + |.5-1| + |.75-1| + |1-0| = 2.55
    assert float(calibration_error(bins)) == pytest.approx(2.55 / 5, abs=1e-15)
    assert float(calibration_error(bins, "max")) == 1
    squares = 2 * 0.4**2 + 0.5**2 + 0.25**2 + 1
    assert float(calibration_error(bins, "l2")) == pytest.approx(math.sqrt(squares / 5), abs=1e-15)


def test_calibration_error_without_samples_is_nan():
    empty = calibration_bins(torch.zeros(0), torch.zeros(0))
    assert all(calibration_error(empty, norm).isnan() for norm in ("l1", "l2", "max"))


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="no calibration norm 'l3'; there are 'l1'"):
        calibration_error(calibration_bins(torch.zeros(1), torch.zeros(1)), "l3")


def test_ties_go_to_the_lower_class_number_as_in_argmax():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(
        0, 3, (500, 7), generator=generator
    ).float()  # three levels: nearly every row has a tie
    target = torch.randint(0, 7, (500,), generator=generator)
    rank = target_rank(logits, target)
    assert torch.equal(rank == 0, logits.argmax(1) == target)
    expected = [
        reference.predicted_order(row).index(t)
        for row, t in zip(logits.tolist(), target.tolist(), strict=True)
    ]
    assert rank.tolist() == expected


def test_classes_ruled_out_by_minus_infinity_are_ties_too():
    logits = torch.tensor([[0.0, -math.inf, -math.inf, 1.0]]).expand(4, 4)
    assert target_rank(logits, torch.arange(4)).tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_top_class_is_the_first_of_the_largest(dtype):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randint(
        0, 4, (500, 9), generator=generator
    ).double()  # most rows have their largest entry twice
    probs = torch.cat((logits.softmax(1), torch.full((1, 9), 1 / 9), torch.eye(9))).to(dtype)
    value, number = top_class(probs)
    expected = probs.max(1)
    assert torch.equal(value, expected.values)
    assert torch.equal(number, expected.indices)
    assert value.dtype == dtype


def test_neighbouring_numbers_are_no_tie():
    # Of 2^20 classes the largest probability may be 2^-20; the next float32 below it is 2^-45 away.
    above = torch.tensor(2.0**-20)
    below = torch.nextafter(above, torch.tensor(0.0))
    assert top_class(torch.stack((below, above))[None])[1].tolist() == [1]


def test_the_largest_entry_of_a_row_with_nan_is_nan():
    value, _ = top_class(torch.tensor([[math.nan, 0.5], [0.75, 0.25]]))
    assert value.isnan().tolist() == [True, False]


def test_constant_logits_do_not_count_as_hits():
    target = torch.arange(10)
    rank = classification_scores(torch.zeros(10, 10), target).rank
    assert int((rank < 1).sum()) == 1
    assert int((rank < 5).sum()) == 5


@pytest.mark.parametrize("scale", [1e4, 1e6, 1e8])
def test_nll_of_huge_logits_is_finite_and_exact(scale):
    logits = torch.tensor([[0.0, scale, 0.0], [scale, 0.0, scale]])
    nll = classification_scores(logits, torch.tensor([0, 0])).nll
    assert nll.tolist() == [scale, math.log(2)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_logits_are_scored_in_float64(dtype):
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(50, 20, generator=generator)).to(dtype)
    target = torch.randint(0, 20, (50,), generator=generator)
    for ours, exact in zip(
        classification_scores(logits, target),
        classification_scores(logits.double(), target),
        strict=True,
    ):
        assert torch.equal(ours, exact)


def test_a_class_ruled_out_by_minus_infinity_has_probability_zero():
    logits = torch.tensor([[1.0, 0.0, -math.inf], [1.0, 0.0, -math.inf]])
    scores = classification_scores(logits, torch.tensor([0, 2]))
    plain = classification_scores(logits[:1, :2], torch.tensor([0]))
    assert all(torch.equal(ours[:1], alone) for ours, alone in zip(scores, plain, strict=True))
    assert scores.nll[1] == math.inf


@pytest.mark.parametrize(
    "row", [[math.nan, 0, 0], [math.inf, 0, 0], [-math.inf] * 3], ids=["nan", "inf", "nothing"]
)
def test_logits_without_a_softmax_give_nan(row):
    scores = classification_scores(torch.tensor([row, [0.0, 1.0, 2.0]]), torch.tensor([1, 2]))
    for field in (scores.confidence, scores.nll, scores.brier):
        assert field.isnan().tolist() == [True, False]


def test_working_in_blocks_changes_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(37, 5, generator=generator)
    target = torch.randint(0, 5, (37,), generator=generator)
    whole = classification_scores(logits, target)
    monkeypatch.setattr(functional_module, "BLOCK_CPU", 40)  # eight rows
    for ours, expected in zip(classification_scores(logits, target), whole, strict=True):
        assert torch.equal(ours, expected)


def test_an_empty_batch_has_empty_scores():
    assert all(
        len(field) == 0
        for field in classification_scores(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    )
