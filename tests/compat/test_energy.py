"""Roughness, coherence, and what dropout adds: against loops, enumeration and linear algebra."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from chaosgate.compat import (
    SiteGraph,
    coherence,
    cycle_graph,
    dropout_amplification,
    dropout_energy,
    grid_graph,
    interior_graph,
    intrinsic_energy,
    roughness_budget,
)
from chaosgate.field import Anisotropic, Dense, DirichletLaplacian, EdgeWeighted, Massive, MaxEntLaw, Periodic

GENERATOR = torch.Generator().manual_seed(5)


def weighted_grid(grid: tuple[int, int]) -> SiteGraph:
    plain = grid_graph(grid)
    weights = torch.rand(len(plain.edges), generator=GENERATOR, dtype=torch.float64) + 0.2
    return SiteGraph(plain.num_sites, plain.edges, weights)


def energy_by_loops(field: Tensor, graph: SiteGraph) -> float:
    flat = field.flatten().tolist()
    ends, weights = graph.edges.tolist(), graph.weights.tolist()
    return 0.5 * sum(w * (flat[x] - flat[y]) ** 2 for (x, y), w in zip(ends, weights, strict=True))


@pytest.mark.parametrize("grid", [(1, 1), (1, 5), (3, 4), (4, 3)])
def test_intrinsic_energy_is_half_the_quadratic_form_of_the_interior_laplacian(grid: tuple[int, int]) -> None:
    graph = weighted_grid(grid)
    fields = torch.randn(2, 3, *grid, generator=GENERATOR, dtype=torch.float64)
    form = 0.5 * torch.einsum("...x,xy,...y->...", fields.flatten(-2), graph.laplacian(), fields.flatten(-2))
    torch.testing.assert_close(intrinsic_energy(fields, graph), form)
    assert float(intrinsic_energy(fields[1, 2], graph)) == pytest.approx(energy_by_loops(fields[1, 2], graph))


def test_constants_cost_no_intrinsic_energy() -> None:
    graph = weighted_grid((3, 4))
    field = torch.randn(3, 4, generator=GENERATOR, dtype=torch.float64)
    torch.testing.assert_close(intrinsic_energy(field + 7.0, graph), intrinsic_energy(field, graph))
    assert float(intrinsic_energy(torch.full((3, 4), 2.0), graph)) == 0.0


def test_interior_graph_drops_boundary_and_mass_and_keeps_edge_weights() -> None:
    vertical = torch.rand(4, 5, generator=GENERATOR, dtype=torch.float64) + 0.1
    horizontal = torch.rand(3, 6, generator=GENERATOR, dtype=torch.float64) + 0.1
    graph = interior_graph(Massive(EdgeWeighted(vertical, horizontal), 0.7), (3, 5))
    field = torch.randn(3, 5, generator=GENERATOR, dtype=torch.float64)
    by_hand = 0.5 * (
        (vertical[1:-1] * field.diff(dim=0).square()).sum() + (horizontal[:, 1:-1] * field.diff(dim=1).square()).sum()
    )
    torch.testing.assert_close(intrinsic_energy(field, graph), by_hand)


@pytest.mark.parametrize("grid", [(1, 4), (3, 5)])
def test_interior_graph_of_the_dirichlet_laplacian_is_the_grid(grid: tuple[int, int]) -> None:
    found, expected = interior_graph(DirichletLaplacian(), grid), grid_graph(grid)
    torch.testing.assert_close(found.laplacian(), expected.laplacian())


def test_interior_graph_of_the_torus_has_the_edges_around_it() -> None:
    degrees = interior_graph(Periodic(), (3, 4)).degrees()
    torch.testing.assert_close(degrees, torch.full((12,), 4.0, dtype=torch.float64))


def test_an_operator_without_edge_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="positive entries off its diagonal.*grid_graph"):
        interior_graph(Dense([[2.0, 0.5], [0.5, 2.0]]), (1, 2))


def test_roughness_budget_is_half_the_trace_of_laplacian_times_covariance() -> None:
    covariance = MaxEntLaw(Anisotropic(2.0, 0.5), (3, 4), beta=1.7).covariance
    graph = weighted_grid((3, 4))
    expected = 0.5 * float(torch.trace(graph.laplacian() @ covariance))
    assert roughness_budget(covariance, graph) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("q", [0.3, 0.9, 1.0])
def test_dropout_energy_is_the_average_over_all_masks(q: float) -> None:
    graph = weighted_grid((2, 4))
    h = torch.randn(2, 4, generator=GENERATOR, dtype=torch.float64)  # signed: the formula does not need positivity
    total = 0.0
    for pattern in itertools.product((0.0, 1.0), repeat=8):
        kept = int(sum(pattern))
        mask = torch.tensor(pattern, dtype=torch.float64).view(2, 4) / q
        total += q**kept * (1 - q) ** (8 - kept) * energy_by_loops(mask * h, graph)
    assert float(dropout_energy(h, q, graph)) == pytest.approx(total, rel=1e-12)


def test_dropout_multiplies_the_energy_by_one_plus_odds_times_coherence() -> None:
    graph = weighted_grid((3, 3))
    h = torch.rand(5, 3, 3, generator=GENERATOR, dtype=torch.float64)
    factor = dropout_amplification(coherence(h, graph), 0.8)
    torch.testing.assert_close(dropout_energy(h, 0.8, graph) / intrinsic_energy(h, graph), factor)


def test_coherence_does_not_see_the_scale_and_grows_when_a_map_gets_smoother() -> None:
    graph = grid_graph((4, 4))
    bump = torch.rand(4, 4, generator=GENERATOR, dtype=torch.float64)
    torch.testing.assert_close(coherence(30 * bump, graph), coherence(bump, graph))
    scores = [float(coherence(1 + scale * bump, graph)) for scale in (1.0, 0.5, 0.1)]
    assert scores == sorted(scores)
    assert float(coherence(torch.ones(4, 4), graph)) == math.inf
    assert math.isnan(float(coherence(torch.zeros(4, 4), graph)))


@pytest.mark.statistical
def test_coherence_of_white_noise_is_one_on_average() -> None:
    # E sum d h^2 = E 2 E_int for independent centred sites: kappa = 1 marks "no coherence at all".
    graph = weighted_grid((8, 8))
    h = torch.randn(4000, 8, 8, generator=GENERATOR, dtype=torch.float64)
    ratio = float(coherence(h, graph).mean())
    assert abs(ratio - 1) < 0.02  # one map scatters by 0.1 around one, 4,000 maps by 0.002; the ratio is biased by 0.01


def test_half_precision_maps_are_summed_in_single_precision() -> None:
    h = torch.full((1, 64, 64), 2.0, dtype=torch.float16)
    h[..., ::2] = 2.5
    energy = intrinsic_energy(h, grid_graph((64, 64)))
    assert energy.dtype == torch.float32
    assert float(energy) == 0.5 * 0.25 * 64 * 63


def test_cycle_graph_joins_the_ends() -> None:
    assert cycle_graph(3).degrees().tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="at least three"):
        cycle_graph(2)


@pytest.mark.parametrize(
    ("edges", "weights", "message"),
    [
        ([[0, 3]], [1.0], "0 to 2"),
        ([[1, 1]], [1.0], "loops"),
        ([[0, 1]], [0.0], "positive"),
        ([[0, 1]], [1.0, 2.0], "weights"),
    ],
)
def test_a_graph_says_what_is_wrong_with_its_edges(edges: list[list[int]], weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SiteGraph(3, torch.tensor(edges), torch.tensor(weights, dtype=torch.float64))


def test_a_field_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"H W = 12; got shape \(4, 4\)"):
        intrinsic_energy(torch.zeros(4, 4), grid_graph((3, 4)))
