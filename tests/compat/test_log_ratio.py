"""Log-ratios, rankings and positivity: closed forms against independent ones, measurements against definitions."""

import math

import pytest
import torch
from scipy.stats import norm

from chaosgate.compat import (
    all_pairs,
    dropout_ranking_probability,
    green_metric,
    is_signed,
    lift,
    log_margin,
    log_ratio_covariance,
    log_ratio_deformation,
    log_ratio_variance,
    positive_pairs,
    positive_share,
    random_pairs,
    ranking_preserved,
    ranking_probability,
    ranking_tail_bound,
    require_evidence,
    require_positive,
)
from chaosgate.field import DirichletLaplacian, Massive
from chaosgate.field.white import Noise

GRID = (3, 5)
PAIRS = all_pairs(15)


def positive_maps(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.05


@pytest.mark.parametrize("operator", [DirichletLaplacian(), Massive(DirichletLaplacian(), 0.4)])
def test_joint_covariance_of_the_deformations_is_that_of_the_differences(operator: DirichletLaplacian) -> None:
    green = operator.green(GRID)
    differences = torch.zeros(len(PAIRS), 15, dtype=torch.float64)
    rows = torch.arange(len(PAIRS))
    differences[rows, PAIRS[:, 0]], differences[rows, PAIRS[:, 1]] = 1.0, -1.0
    expected = 0.3 * differences @ green @ differences.T
    torch.testing.assert_close(log_ratio_covariance(green, PAIRS, 0.3), expected)
    torch.testing.assert_close(log_ratio_variance(green, PAIRS, 0.3), expected.diagonal())


def test_green_metric_is_a_metric_like_variance() -> None:
    metric = green_metric(DirichletLaplacian().green(GRID), PAIRS)
    assert bool((metric > 0).all())
    same = torch.tensor([[4, 4]])
    assert float(green_metric(DirichletLaplacian().green(GRID), same)) == 0.0


def test_green_metric_of_a_chain_is_the_resistance_with_both_ends_grounded() -> None:
    # Three sites in a row tied to zero at both ends, and the inverse of their one-dimensional operator.
    green = torch.tensor([[3.0, 2, 1], [2, 4, 2], [1, 2, 3]], dtype=torch.float64) / 4
    assert green_metric(green, torch.tensor([[0, 1], [0, 2]])).tolist() == [0.75, 1.0]


def test_deformation_is_the_log_ratio_of_the_gate() -> None:
    h, gate = positive_maps(4, *GRID), positive_maps(4, *GRID).flip(0)
    measured = log_ratio_deformation(h, gate * h, PAIRS)
    flat = gate.flatten(-2).log()
    torch.testing.assert_close(measured, flat[:, PAIRS[:, 0]] - flat[:, PAIRS[:, 1]])


def test_deformation_does_not_see_the_scale_of_map_or_gate() -> None:
    h, gate = positive_maps(4, *GRID), positive_maps(4, *GRID).flip(0)
    once = log_ratio_deformation(h, gate * h, PAIRS)
    torch.testing.assert_close(log_ratio_deformation(1e3 * h, gate * (1e3 * h), PAIRS), once)
    torch.testing.assert_close(log_ratio_deformation(h, 50 * gate * h, PAIRS), once)


def test_a_deleted_site_makes_the_log_ratio_infinite_and_two_make_it_undefined() -> None:
    h = torch.ones(1, 1, 3, dtype=torch.float64)
    after = torch.tensor([[[0.0, 1.0, 0.0]]], dtype=torch.float64)
    deformation = log_ratio_deformation(h, after, torch.tensor([[0, 1], [1, 2], [0, 2]]))[0]
    assert deformation[0] == -math.inf and deformation[1] == math.inf and math.isnan(float(deformation[2]))


def test_ranking_probability_is_the_normal_tail_and_below_its_bound() -> None:
    margin = torch.linspace(0.01, 6, 40, dtype=torch.float64)
    variance = torch.tensor(0.7, dtype=torch.float64)
    found = ranking_probability(margin, variance)
    torch.testing.assert_close(found, torch.from_numpy(norm.cdf(margin.numpy() / math.sqrt(0.7))))
    assert bool((1 - found <= ranking_tail_bound(margin, variance)).all())
    assert bool((found.diff() > 0).all())
    shifted = ranking_probability(margin, variance, shift=-0.25)
    torch.testing.assert_close(shifted, torch.from_numpy(norm.cdf((margin.numpy() - 0.25) / math.sqrt(0.7))))
    assert dropout_ranking_probability(0.9) == 0.9


def test_an_ordering_is_kept_only_if_it_stays_strict() -> None:
    before = torch.tensor([[[3.0, 2.0, 2.0, 1.0]]])
    after = torch.tensor([[[3.0, 0.0, 5.0, 0.0]]])
    pairs = torch.tensor([[0, 1], [1, 0], [0, 2], [1, 3], [1, 2]])
    # kept either way round; reversed; both deleted (a tie is lost); a tie before has nothing to keep
    assert ranking_preserved(before, after, pairs)[0].tolist() == [True, True, False, False, False]


def test_log_margin_is_the_size_of_the_log_ratio() -> None:
    h = torch.tensor([[1.0, math.e**2]])
    torch.testing.assert_close(log_margin(h, torch.tensor([[0, 1], [1, 0]])), torch.tensor([2.0, 2.0]))


def test_random_pairs_are_pairs_of_different_sites_and_nearly_uniform() -> None:
    pairs = random_pairs(200, 8000, Noise(torch.tensor(9)))
    assert pairs.shape == (8000, 2)
    assert bool((pairs[:, 0] != pairs[:, 1]).all()) and int(pairs.min()) == 0 and int(pairs.max()) == 199
    # 80 expected per site from 16,000 ends: five standard deviations are 45.
    assert int((torch.bincount(pairs.flatten(), minlength=200) - 80).abs().max()) < 45
    assert torch.equal(random_pairs(200, 8000, Noise(torch.tensor(9))), pairs)
    assert len(random_pairs(4, 100, Noise(torch.tensor(9)))) == 6
    with pytest.raises(ValueError, match="two sites"):
        random_pairs(1, 5, Noise(torch.tensor(9)))


def test_positive_pairs_need_both_sites() -> None:
    h = torch.tensor([[0.0, 1.0, 2.0]])
    assert positive_pairs(h, torch.tensor([[0, 1], [1, 2], [2, 0]])).tolist() == [False, True, False]
    assert float(positive_share(h)) == pytest.approx(2 / 3)


def test_the_lift_makes_maps_positive_and_follows_their_scale() -> None:
    h = torch.tensor([[[0.0, 3.0], [0.0, 1.0]]])
    lifted = lift(h, 0.1)
    torch.testing.assert_close(lifted, h + 0.1)
    require_positive(lifted)
    torch.testing.assert_close(lift(7 * h, 0.1), 7 * lifted)


def test_signed_maps_are_refused_and_the_message_says_how_many_values_are_negative() -> None:
    signed = torch.tensor([[1.0, -1.0, 2.0, 3.0]])
    assert is_signed(signed) and not is_signed(signed.abs())
    for refusing in (require_evidence, require_positive, lift):
        with pytest.raises(ValueError, match=r"25\.0% .* negative"):
            refusing(signed)
    assert is_signed(torch.tensor([[math.nan, 1.0]]))


def test_maps_with_zeros_are_refused_where_the_logarithm_is_taken() -> None:
    with pytest.raises(ValueError, match="50.0% of these values are zero"):
        require_positive(torch.tensor([[0.0, 1.0]]))
    require_evidence(torch.tensor([[0.0, 1.0]]))
    with pytest.raises(ValueError, match="epsilon must be positive"):
        lift(torch.ones(2, 2), 0.0)
