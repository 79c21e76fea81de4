"""Superlevel sets, the sandwich, and Betti numbers against networkx."""

import math

import networkx
import numpy as np
import pytest
import torch
from numpy.random import Generator

from chaosgate.compat import (
    SiteGraph,
    betti_numbers,
    cycle_fracture,
    cycle_graph,
    grid_graph,
    oscillation,
    sandwich_violations,
    sandwich_width,
    superlevel,
)


def reference(graph: SiteGraph, kept: list[bool]) -> tuple[int, int]:
    """Components and the size of a cycle basis, by networkx."""
    whole = networkx.Graph()
    whole.add_nodes_from(range(graph.num_sites))
    whole.add_edges_from(graph.edges.tolist())
    part = whole.subgraph([site for site, keep in enumerate(kept) if keep])
    return networkx.number_connected_components(part), len(networkx.cycle_basis(part))


def random_graph(random: Generator) -> SiteGraph:
    sites = int(random.integers(1, 40))
    possible = np.array([(x, y) for x in range(sites) for y in range(x)]).reshape(-1, 2)
    chosen = possible[random.random(len(possible)) < random.choice([0.03, 0.08, 0.3])]
    edges = torch.from_numpy(chosen[random.permutation(len(chosen))]).long()
    return SiteGraph(sites, edges, torch.ones(len(edges), dtype=torch.float64))


def test_betti_numbers_agree_with_networkx_on_five_hundred_random_graphs() -> None:
    random = np.random.default_rng(11)
    for _ in range(500):
        graph = random_graph(random)
        kept = random.random(graph.num_sites) < random.choice([0.5, 0.8, 1.0])
        zero, one = betti_numbers(torch.from_numpy(kept).view(1, -1), graph)
        assert (int(zero), int(one)) == reference(graph, kept.tolist())


@pytest.mark.parametrize("grid", [(1, 12), (5, 7), (7, 5), (12, 12)])
def test_betti_numbers_agree_with_networkx_on_batches_of_grids(grid: tuple[int, int]) -> None:
    random = np.random.default_rng(sum(grid))
    graph = grid_graph(grid)
    share = random.choice([0.3, 0.55, 0.6, 0.9], size=(5, 25, 1, 1))
    kept = torch.from_numpy(random.random((5, 25, *grid)) < share)  # 125 maps each, 500 in all
    zero, one = betti_numbers(kept, graph)
    assert zero.shape == one.shape == (5, 25)
    for i, j in np.ndindex(5, 25):
        assert (int(zero[i, j]), int(one[i, j])) == reference(graph, kept[i, j].flatten().tolist())


def test_long_winding_components_are_one_component() -> None:
    # A snake through a grid is the worst case for labels that travel from neighbour to neighbour.
    kept = torch.zeros(1, 31, 31, dtype=torch.bool)
    kept[:, ::2] = True
    kept[:, 1::4, -1] = True
    kept[:, 3::4, 0] = True
    zero, one = betti_numbers(kept, grid_graph((31, 31)))
    assert (int(zero), int(one)) == (1, 0)


def test_no_site_kept_has_no_component_and_no_cycle() -> None:
    zero, one = betti_numbers(torch.zeros(3, 4, 4, dtype=torch.bool), grid_graph((4, 4)))
    assert zero.tolist() == one.tolist() == [0, 0, 0]


def test_a_full_grid_has_one_cycle_per_square() -> None:
    zero, one = betti_numbers(torch.ones(4, 6, dtype=torch.bool), grid_graph((4, 6)))
    assert (int(zero), int(one)) == (1, 15)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_a_cycle_loses_its_loop_with_any_one_of_its_sites(n: int) -> None:
    q = 0.7
    masks = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, 1, n)
    loops = betti_numbers(masks, cycle_graph(n))[1]
    assert loops.tolist() == masks.all(-1)[:, 0].long().tolist()
    kept = masks.sum((-2, -1)).double()
    probability = (q**kept * (1 - q) ** (n - kept) * (loops == 0)).sum()
    assert float(probability) == pytest.approx(cycle_fracture(q, n), rel=1e-12)


def test_superlevel_sets_take_one_threshold_or_one_per_map() -> None:
    f = torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]]])
    assert superlevel(f, 2.0).tolist() == [[[False, True]], [[False, True]]]
    assert superlevel(f, torch.tensor([1.0, 2.5])).tolist() == [[[True, True]], [[False, False]]]


def positive(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).exp()


def test_a_positive_gate_moves_superlevel_sets_only_inside_its_band() -> None:
    h, gate = positive(0, 200, 5, 6), positive(1, 200, 5, 6)
    width = sandwich_width(gate)
    for threshold in (0.3, 1.0, 2.5):
        assert int(sandwich_violations(h, gate * h, threshold, width).sum()) == 0
        # Half the band is too narrow for many of them: the count can see a violation.
        assert int(sandwich_violations(h, gate * h, threshold, width / 2).sum()) > 0


def test_a_mask_breaks_the_sandwich_of_any_width() -> None:
    h = torch.ones(1, 3, 3, dtype=torch.float64)
    masked = h.clone()
    masked[0, 1, 1] = 0.0
    assert sandwich_violations(h, masked, 1e-9, 20.0).tolist() == [1]


def test_width_and_oscillation_are_per_field() -> None:
    gate = torch.tensor([[[math.e, 1.0]], [[1.0, math.e**-3]]], dtype=torch.float64)
    torch.testing.assert_close(sandwich_width(gate), torch.tensor([1.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(oscillation(gate.log()), torch.tensor([1.0, 3.0], dtype=torch.float64))
