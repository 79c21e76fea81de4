"""Roughness and coherence: graphs, edge cases, axes. The formulas are in tests/paper."""

import math

import pytest
import torch

from chaosgate.compat import SiteGraph, coherence, grid_graph, interior_graph, intrinsic_energy
from chaosgate.field import Dense, DirichletLaplacian, EdgeWeighted, Massive, Periodic

GENERATOR = torch.Generator().manual_seed(5)


@pytest.mark.parametrize("grid", [(13,), (1, 5), (3, 4), (4, 3), (2, 3, 4)])
def test_a_grid_graph_joins_the_sites_at_distance_one(grid: tuple[int, ...]) -> None:
    graph = grid_graph(grid)
    places = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="ij")).flatten(1).T
    near = (places[:, None] - places).abs().sum(-1) == 1
    assert torch.equal(graph.laplacian(), (near.sum(1).diag() - near.long()).double())
    field = torch.randn(2, *grid, generator=GENERATOR, dtype=torch.float64)
    squares = sum(field.diff(dim=axis + 1).square().flatten(1).sum(1) for axis in range(len(grid)))
    torch.testing.assert_close(intrinsic_energy(field, graph), 0.5 * squares)


def test_interior_graph_drops_boundary_and_mass_and_keeps_edge_weights() -> None:
    vertical = torch.rand(4, 5, generator=GENERATOR, dtype=torch.float64) + 0.1
    horizontal = torch.rand(3, 6, generator=GENERATOR, dtype=torch.float64) + 0.1
    graph = interior_graph(Massive(EdgeWeighted(vertical, horizontal), 0.7), (3, 5))
    field = torch.randn(3, 5, generator=GENERATOR, dtype=torch.float64)
    rows = (vertical[1:-1] * field.diff(dim=0).square()).sum()
    columns = (horizontal[:, 1:-1] * field.diff(dim=1).square()).sum()
    torch.testing.assert_close(intrinsic_energy(field, graph), 0.5 * (rows + columns))


@pytest.mark.parametrize("grid", [(6,), (3, 5), (2, 2, 3)])
def test_interior_graph_of_the_dirichlet_laplacian_is_the_grid(grid: tuple[int, ...]) -> None:
    found = interior_graph(DirichletLaplacian(), grid).laplacian()
    torch.testing.assert_close(found, grid_graph(grid).laplacian())


def test_interior_graph_of_the_torus_has_the_edges_around_it() -> None:
    assert interior_graph(Periodic(), (3, 4)).degrees().tolist() == [4.0] * 12
    with pytest.raises(ValueError, match="positive entries off its diagonal.*grid_graph"):
        interior_graph(Dense([[2.0, 0.5], [0.5, 2.0]]), (1, 2))


def test_coherence_grows_when_a_map_gets_smoother_up_to_a_constant() -> None:
    graph, bump = grid_graph((4, 4)), torch.rand(4, 4, generator=GENERATOR, dtype=torch.float64)
    torch.testing.assert_close(coherence(30 * bump, graph), coherence(bump, graph))
    scores = [float(coherence(1 + scale * bump, graph)) for scale in (1.0, 0.5, 0.1, 0.0)]
    assert scores == sorted(scores) and scores[-1] == math.inf
    assert math.isnan(float(coherence(torch.zeros(4, 4), graph)))


def test_half_precision_maps_are_summed_in_single_precision() -> None:
    h = torch.full((1, 64, 64), 2.0, dtype=torch.float16)
    h[..., ::2] = 2.5
    energy = intrinsic_energy(h, grid_graph((64, 64)))
    assert energy.dtype == torch.float32 and float(energy) == 0.5 * 0.25 * 64 * 63


@pytest.mark.parametrize(
    ("edges", "weights", "message"),
    [([[0, 3]], [1.0], "0 to 2"), ([[1, 1]], [1.0], "different"), ([[0, 1]], [0.0], "positive")],
)
def test_wrong_edges_and_fields_are_refused(
    edges: list[list[int]], weights: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SiteGraph((3,), torch.tensor(edges), torch.tensor(weights, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\(3, 4\); got shape \(4, 4\)"):
        intrinsic_energy(torch.zeros(4, 4), grid_graph((3, 4)))
