import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chaosgate.metrics.sums import LARGEST, carry, join, split, sum_by_slot

values = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=30)


@settings(deadline=None, max_examples=200)
@given(values, st.randoms(use_true_random=False))
def test_sum_is_the_same_bit_for_bit_in_any_order_and_grouping(summands, random):
    parts = split(torch.tensor(summands, dtype=torch.float64))
    at_once = join(parts.sum(0))
    random.shuffle(summands)
    cut = random.randrange(len(summands) + 1)
    pieces = [torch.tensor(x, dtype=torch.float64) for x in (summands[:cut], summands[cut:])]
    in_pieces = join(sum(carry(split(piece).sum(0)) for piece in pieces))
    assert torch.equal(at_once, in_pieces)


@settings(deadline=None, max_examples=200)
@given(values)
def test_sum_is_within_half_a_unit_per_summand_of_the_exact_sum(summands):
    total = float(join(split(torch.tensor(summands, dtype=torch.float64)).sum(0)))
    exact = sum(map(Fraction, summands))
    assert abs(Fraction(total) - exact) <= len(summands) * Fraction(1, 2**53) + exact * Fraction(
        1, 2**52
    )


def test_float32_values_are_split_without_rounding():
    x = torch.tensor([1 / 3, 0.1, 12345.678, 2.0**-20], dtype=torch.float32)
    assert torch.equal(join(split(x)), x.double())


def test_carry_keeps_the_value_when_the_fine_part_overflows():
    one_below = torch.tensor(1.0 - 2.0**-52, dtype=torch.float64)
    many = split(one_below) * 2**20
    assert carry(many)[1] < 2**40
    assert float(join(many)) == 2**20 - 2.0**-32


@pytest.mark.parametrize(
    "bad, seen", [(math.inf, math.inf), (math.nan, math.nan), (2 * LARGEST, math.inf)]
)
def test_what_is_not_a_number_stays_visible_in_its_own_slot(bad, seen):
    parts = sum_by_slot(torch.tensor([[bad], [1.0], [2.0]]), torch.tensor([0, 0, 1]), num_slots=2)
    result = join(parts + parts).squeeze(1)
    torch.testing.assert_close(
        result, torch.tensor([seen, 4.0], dtype=torch.float64), equal_nan=True
    )
