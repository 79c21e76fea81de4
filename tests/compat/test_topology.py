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
    return SiteGraph((sites,), edges, torch.ones(len(edges), dtype=torch.float64))


def test_betti_numbers_agree_with_networkx_on_two_hundred_random_graphs() -> None:
    random = np.random.default_rng(11)
    for _ in range(200):
        graph = random_graph(random)
        kept = random.random(graph.num_sites) < random.choice([0.5, 0.8, 1.0])
        zero, one = betti_numbers(torch.from_numpy(kept), graph)
        assert (int(zero), int(one)) == reference(graph, kept.tolist())


@pytest.mark.parametrize("grid", [(1, 12), (5, 7), (12,), (3, 4, 5)])
def test_betti_numbers_agree_with_networkx_on_batches_of_grids(grid: tuple[int, ...]) -> None:
    random = np.random.default_rng(sum(grid))
    graph = grid_graph(grid)
    share = random.choice([0.3, 0.55, 0.6, 0.9], size=(5, 25, *[1] * len(grid)))
    kept = torch.from_numpy(random.random((5, 25, *grid)) < share)  # 125 maps each
    zero, one = betti_numbers(kept, graph)
    assert zero.shape == one.shape == (5, 25)
    for i, j in np.ndindex(5, 25):
        assert (int(zero[i, j]), int(one[i, j])) == reference(graph, kept[i, j].flatten().tolist())


def test_superlevel_sets_take_one_threshold_or_one_per_map() -> None:
    f = torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]]])
    assert superlevel(f, 2.0).tolist() == [[[False, True]], [[False, True]]]
    assert superlevel(f, torch.tensor([1.0, 2.5])).tolist() == [[[True, True]], [[False, False]]]


def test_a_mask_breaks_the_sandwich_of_any_width() -> None:
    h = torch.ones(1, 3, 3, dtype=torch.float64)
    masked = h.clone()
    masked[0, 1, 1] = 0.0
    assert sandwich_violations(h, masked, 1e-9, 20.0).tolist() == [1]


def test_width_and_oscillation_are_per_field() -> None:
    gate = torch.tensor([[[math.e, 1.0]], [[1.0, math.e**-3]]], dtype=torch.float64)
    torch.testing.assert_close(sandwich_width(gate), torch.tensor([1.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(
        oscillation(gate.log()), torch.tensor([1.0, 3.0], dtype=torch.float64)
    )
