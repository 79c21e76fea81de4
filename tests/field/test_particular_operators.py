"""What single operators are known for, and graphs too large for the oracle."""

import math

import pytest
import torch
from scipy.special import kv

from chaosgate.field import Graph, Matern
from tests.paper.reference import inverse

from .oracle import close, graph_edges


@pytest.mark.parametrize("smoothness", [0.5, 2.5])
def test_matern_kernels_are_those_of_the_bessel_form(smoothness):
    # Rasmussen and Williams, eq. 4.14, with the modified Bessel function of the second kind
    x = math.sqrt(2 * smoothness) * torch.arange(1, 8, dtype=torch.float64) / 2.5
    bessel = torch.from_numpy(kv(smoothness, x.numpy()))
    expected = 2 ** (1 - smoothness) / math.gamma(smoothness) * x**smoothness * bessel
    close(Matern(2.5, smoothness).green((8,))[0], torch.cat([torch.ones(1).double(), expected]))


@pytest.mark.parametrize("pinned", [None, 0, 299])
def test_a_large_sparse_graph_agrees_with_a_dense_solver(pinned):
    # More than one block at the shipped sizes; a random labelling hides the narrow order.
    shuffle = torch.randperm(300, generator=torch.Generator().manual_seed(5))
    operator, grid = Graph(shuffle[torch.tensor(graph_edges(300))], pinned=pinned), (15, 20)
    dense = inverse(operator.matrix(grid))
    root = operator.color(torch.eye(300, dtype=torch.float64).view(300, *grid)).reshape(300, 300)
    assert (root.T @ root - dense).abs().max() < 1e-10 * dense.abs().max()
    variance = operator.variance(grid).flatten()
    assert (variance - dense.diagonal()).abs().max() < 1e-10 * dense.abs().max()
    values = torch.linalg.eigvalsh(operator.matrix(grid))
    close(operator.spectrum(grid), values)  # ascending
    assert operator.logdet(grid) == pytest.approx(float(values[1:].log().sum()), rel=1e-10)
