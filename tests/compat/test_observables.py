"""Edge cases, axes and graphs of the observables. The paper's formulas are in tests/paper."""

import math

import pytest
import torch

from chaosgate.compat import (
    SiteGraph,
    all_pairs,
    green_metric,
    grid_graph,
    intrinsic_energy,
    lift,
    log_ratio_deformation,
    random_pairs,
    ranking_preserved,
    roughness_budget,
)
from chaosgate.compat.observables import (
    chaos_operator,
    is_signed,
    log_ratio_law,
    pair_differences,
    pair_variances,
    positive_pairs,
)
from chaosgate.field import Anisotropic, DirichletLaplacian, Massive, MaxEntLaw, Neumann, StudentT
from chaosgate.field.white import Noise
from chaosgate.gate import Dropout, GaussianChaos, IIDLogNormal, Mechanism, SampleWise


def test_edges_may_have_weights_and_half_precision_is_summed_in_single_precision():
    graph = SiteGraph((3,), torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 5.0]).double())
    assert graph.degrees().tolist() == [1.0, 6.0, 5.0]
    assert graph.laplacian().tolist() == [[1.0, -1.0, 0.0], [-1.0, 6.0, -5.0], [0.0, -5.0, 5.0]]
    assert intrinsic_energy(torch.tensor([[1.0, 3.0, 0.0]]), graph).tolist() == [0.5 * (4 + 5 * 9)]
    assert roughness_budget(torch.eye(3).double(), graph) == 0.5 * (2 + 5 * 2)
    h = torch.full((1, 64, 64), 2.0, dtype=torch.float16)
    h[..., ::2] = 2.5
    assert float(intrinsic_energy(h, grid_graph((64, 64)))) == 0.5 * 0.25 * 64 * 63


@pytest.mark.parametrize("grid", [(12,), (3, 4), (2, 3, 2)])
def test_sites_are_numbered_with_the_last_axis_fastest_on_any_grid(grid):
    field = torch.arange(12.0).view(1, *grid).expand(2, *grid)
    pairs = torch.tensor([[0, 11], [5, 4]])
    assert pair_differences(field, pairs, len(grid)).tolist() == [[-11.0, 1.0]] * 2
    assert positive_pairs(field, pairs, len(grid)).tolist() == [[False, True]] * 2
    torch.testing.assert_close(lift(field, 0.5, len(grid)), field + 0.5 * 5.5)


def test_deleted_sites_have_no_log_ratio_and_ties_no_order():
    pairs = torch.tensor([[0, 1], [1, 2], [0, 2]])
    after = torch.tensor([[[0.0, 1.0, 0.0]]])
    found = log_ratio_deformation(torch.ones(1, 1, 3), after, pairs)[0]
    assert found[0] == -math.inf and found[1] == math.inf and found[2].isnan()
    before, after = torch.tensor([[[3.0, 2.0, 2.0, 1.0]]]), torch.tensor([[[3.0, 0.0, 5.0, 0.0]]])
    pairs = torch.tensor([[0, 1], [1, 0], [0, 2], [1, 3], [1, 2]])
    # kept either way round; reversed; both deleted (a tie is lost); a tie before is never kept
    assert ranking_preserved(before, after, pairs)[0].tolist() == [True, True, False, False, False]


def test_random_pairs_are_different_sites_and_all_of_them_where_few():
    pairs = random_pairs(200, 8000, Noise(torch.tensor(9)))
    assert pairs.shape == (8000, 2) and bool((pairs[:, 0] != pairs[:, 1]).all())
    assert pairs.unique().tolist() == list(range(200))
    assert torch.equal(random_pairs(4, 6, Noise(torch.tensor(0))), all_pairs(4))


def test_signed_maps_are_refused_with_the_share_of_negative_values():
    signed = torch.tensor([[1.0, -1.0, 2.0, 3.0]])
    assert is_signed(signed) and is_signed(torch.tensor([math.nan])) and not is_signed(signed.abs())
    with pytest.raises(ValueError, match=r"25\.0% .* negative"):
        lift(signed)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        lift(torch.ones(2, 2), 0.0)


@pytest.mark.parametrize(
    ("operator", "grid"),
    [
        (Massive(Neumann(), 0.2), (4, 7)),
        (Anisotropic(3.0, 0.5), (4, 7)),
        (Neumann(), (4, 7)),
        *((DirichletLaplacian(), grid) for grid in ((30, 30), (600,), (8, 9, 10))),
    ],  # the last three are larger than one part of the basis
)
def test_pair_variances_are_the_green_metric(operator, grid):
    pairs = all_pairs(28) if grid == (4, 7) else torch.tensor([[0, 1], [0, 599], [450, 451]])
    expected = green_metric(operator.green(grid), pairs)
    torch.testing.assert_close(pair_variances(operator, grid, pairs), expected)


def test_a_law_is_claimed_only_where_the_theorem_applies_and_follows_operator_and_factor():
    pairs = all_pairs(9)
    for gate in (
        Dropout(0.2),
        GaussianChaos(log_std=1.0, alpha=0.5),
        GaussianChaos(log_std=1.0, base_size=[2, 2]),
        IIDLogNormal(match=Dropout(0.2)),
        Mechanism(StudentT(DirichletLaplacian(), (3, 3)), SampleWise(0.4)),
    ):
        assert chaos_operator(gate, (3, 3)) is None
        with pytest.raises(ValueError, match="no law of log-ratios"):
            log_ratio_law(gate, (3, 3), pairs, torch.zeros(36))
    law = MaxEntLaw(Massive(DirichletLaplacian(), 1.0), (3, 3), beta=2.0)
    gate = Mechanism(law, SampleWise(0.4))
    assert chaos_operator(gate, (3, 3)) is law.operator
    metric = pair_variances(law.operator, (3, 3), pairs)
    torch.testing.assert_close(log_ratio_law(gate, (3, 3), pairs, metric)[1], 0.4**2 / 2 * metric)
    gate.factor = torch.tensor(0.5)
    torch.testing.assert_close(log_ratio_law(gate, (3, 3), pairs, metric)[1], 0.2**2 / 2 * metric)
