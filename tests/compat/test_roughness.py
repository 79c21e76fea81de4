"""Roughness and coherence: graphs, edge cases, axes. The formulas are in tests/paper."""

import pytest
import torch

from chaosgate.compat import (
    SiteGraph,
    grid_graph,
    intrinsic_energy,
    roughness_budget,
)

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


def test_half_precision_maps_are_summed_in_single_precision() -> None:
    h = torch.full((1, 64, 64), 2.0, dtype=torch.float16)
    h[..., ::2] = 2.5
    energy = intrinsic_energy(h, grid_graph((64, 64)))
    assert energy.dtype == torch.float32 and float(energy) == 0.5 * 0.25 * 64 * 63


def test_edges_may_have_weights() -> None:
    graph = SiteGraph((3,), torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 5.0]).double())
    assert graph.degrees().tolist() == [1.0, 6.0, 5.0]
    assert graph.laplacian().tolist() == [[1.0, -1.0, 0.0], [-1.0, 6.0, -5.0], [0.0, -5.0, 5.0]]
    field = torch.tensor([[1.0, 3.0, 0.0]])
    assert intrinsic_energy(field, graph).tolist() == [0.5 * (4 + 5 * 9)]
    assert roughness_budget(torch.eye(3).double(), graph) == 0.5 * (2 + 5 * 2)
