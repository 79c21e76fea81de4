"""Log-ratios: edge cases, positivity, axes, and laws that gates have. The formulas are in
tests/paper.
"""

import math

import pytest
import torch

from chaosgate.compat import (
    all_pairs,
    green_metric,
    lift,
    log_ratio_deformation,
    random_pairs,
    ranking_preserved,
)
from chaosgate.compat.observables import (
    chaos_operator,
    is_signed,
    log_ratio_law,
    pair_differences,
    pair_variances,
    positive_pairs,
)
from chaosgate.field import (
    Anisotropic,
    DirichletLaplacian,
    Massive,
    MaxEntLaw,
    Neumann,
    Operator,
    StudentT,
)
from chaosgate.field.white import Noise
from chaosgate.gate import Dropout, Gate, GaussianChaos, IIDLogNormal, Mechanism, SampleWise


@pytest.mark.parametrize("grid", [(12,), (3, 4), (2, 3, 2)])
def test_sites_are_numbered_with_the_last_axis_fastest_on_any_grid(grid: tuple[int, ...]) -> None:
    field = torch.arange(12.0).view(1, *grid).expand(2, *grid)
    pairs = torch.tensor([[0, 11], [5, 4]])
    assert pair_differences(field, pairs, len(grid)).tolist() == [[-11.0, 1.0]] * 2
    assert positive_pairs(field, pairs, len(grid)).tolist() == [[False, True]] * 2
    torch.testing.assert_close(lift(field, 0.5, len(grid)), field + 0.5 * 5.5)


def test_a_deleted_site_makes_the_log_ratio_infinite_and_two_make_it_undefined() -> None:
    after = torch.tensor([[[0.0, 1.0, 0.0]]])
    found = log_ratio_deformation(
        torch.ones(1, 1, 3), after, torch.tensor([[0, 1], [1, 2], [0, 2]])
    )[0]
    assert found[0] == -math.inf and found[1] == math.inf and math.isnan(float(found[2]))


def test_an_ordering_is_kept_only_if_it_stays_strict() -> None:
    before, after = torch.tensor([[[3.0, 2.0, 2.0, 1.0]]]), torch.tensor([[[3.0, 0.0, 5.0, 0.0]]])
    pairs = torch.tensor([[0, 1], [1, 0], [0, 2], [1, 3], [1, 2]])
    # kept either way round; reversed; both deleted (a tie is lost); a tie before is never kept
    assert ranking_preserved(before, after, pairs)[0].tolist() == [True, True, False, False, False]


def test_random_pairs_are_different_sites_and_all_of_them_where_few() -> None:
    pairs = random_pairs(200, 8000, Noise(torch.tensor(9)))
    assert pairs.shape == (8000, 2) and bool((pairs[:, 0] != pairs[:, 1]).all())
    assert pairs.unique().tolist() == list(range(200))
    assert torch.equal(random_pairs(4, 6, Noise(torch.tensor(0))), all_pairs(4))
    with pytest.raises(ValueError, match="two sites"):
        random_pairs(1, 3, Noise(torch.tensor(0)))


def test_signed_maps_are_refused_with_the_share_of_negative_values() -> None:
    signed = torch.tensor([[1.0, -1.0, 2.0, 3.0]])
    assert is_signed(signed) and is_signed(torch.tensor([math.nan])) and not is_signed(signed.abs())
    with pytest.raises(ValueError, match=r"25\.0% .* negative"):
        lift(signed)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        lift(torch.ones(2, 2), 0.0)


@pytest.mark.parametrize(
    "operator", [DirichletLaplacian(), Massive(Neumann(), 0.2), Anisotropic(3.0, 0.5), Neumann()]
)
def test_pair_variances_are_the_green_metric(operator: Operator) -> None:
    pairs, expected = all_pairs(28), green_metric(operator.green((4, 7)), all_pairs(28))
    torch.testing.assert_close(
        pair_variances(operator, (4, 7), pairs), expected, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("grid", [(30, 30), (600,), (8, 9, 10)])
def test_pair_variances_on_grids_larger_than_one_part_of_the_basis(grid: tuple[int, ...]) -> None:
    pairs = torch.tensor([[0, 1], [0, 599], [450, 451]])
    expected = green_metric(DirichletLaplacian().green(grid), pairs)
    torch.testing.assert_close(pair_variances(DirichletLaplacian(), grid, pairs), expected)


@pytest.mark.parametrize(
    "gate",
    [
        Dropout(0.2),
        GaussianChaos(log_std=1.0, alpha=0.5),
        GaussianChaos(log_std=1.0, base_size=[3, 3]),
        IIDLogNormal(match=Dropout(0.2)),
        Mechanism(StudentT(DirichletLaplacian(), (5, 5)), SampleWise(0.4)),
    ],
    ids=lambda gate: type(gate).__name__,
)
def test_no_law_is_claimed_where_the_theorem_does_not_apply(gate: Gate) -> None:
    assert chaos_operator(gate, (5, 5)) is None
    with pytest.raises(ValueError, match="no law of log-ratios"):
        log_ratio_law(gate, (5, 5), all_pairs(25), torch.zeros(300))


def test_the_law_of_a_gate_follows_its_operator_and_its_factor() -> None:
    law = MaxEntLaw(Massive(DirichletLaplacian(), 1.0), (3, 3), beta=2.0)
    gate, pairs = Mechanism(law, SampleWise(0.4)), all_pairs(9)
    assert chaos_operator(gate, (3, 3)) is law.operator
    metric = pair_variances(law.operator, (3, 3), pairs)
    torch.testing.assert_close(log_ratio_law(gate, (3, 3), pairs, metric)[1], 0.4**2 / 2 * metric)
    gate.factor = torch.tensor(0.5)
    torch.testing.assert_close(log_ratio_law(gate, (3, 3), pairs, metric)[1], 0.2**2 / 2 * metric)
