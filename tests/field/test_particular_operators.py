"""What single operators are known for: closed forms, symmetries, limits; and graphs too large for
the oracle.
"""

import math

import pytest
import torch
from scipy.special import kv

from chaosgate.field import (
    CovarianceFunction,
    CovarianceMatrix,
    DirichletLaplacian,
    Graph,
    Massive,
    Matern,
    Neumann,
    Periodic,
)

from .oracle import close, graph_edges


@pytest.mark.parametrize("smoothness", [0.5, 2.5])
def test_matern_kernels_are_those_of_the_bessel_form(smoothness):
    # Rasmussen and Williams, eq. 4.14, with the modified Bessel function of the second kind
    r = torch.arange(1, 8, dtype=torch.float64)
    x = math.sqrt(2 * smoothness) * r / 2.5
    expected = (
        2 ** (1 - smoothness)
        / math.gamma(smoothness)
        * x**smoothness
        * torch.from_numpy(kv(smoothness, x.numpy()))
    )
    row = Matern(2.5, smoothness).green((8,))[0]
    close(row, torch.cat([torch.ones(1, dtype=torch.float64), expected]))


def test_an_operator_and_its_kernel_are_one_law():
    grid = (4, 5)
    kernel = CovarianceMatrix(DirichletLaplacian().green(grid))
    close(kernel.matrix(grid), DirichletLaplacian().matrix(grid))
    torch.testing.assert_close(
        kernel.logdet(grid), DirichletLaplacian().logdet(grid), rtol=1e-12, atol=0
    )


def test_a_covariance_function_sees_euclidean_distances():
    operator = CovarianceFunction(lambda distance: torch.exp(-distance.square() / 8), nugget=0.01)
    green = operator.green((2, 3, 4))
    assert math.isclose(green[0, -1], math.exp(-(1 + 4 + 9) / 8)) and math.isclose(
        green[0, 0], 1.01
    )


def test_eigenvalues_of_the_dirichlet_laplacian_come_in_the_order_of_the_paper():
    height, width = 3, 5  # eq. dirichlet-eigs
    k, ell = torch.arange(1, height + 1).double(), torch.arange(1, width + 1).double()
    vertical = 4 * torch.sin(torch.pi * k / (2 * (height + 1))) ** 2
    horizontal = 4 * torch.sin(torch.pi * ell / (2 * (width + 1))) ** 2
    close(
        DirichletLaplacian().spectrum((height, width)), (vertical[:, None] + horizontal).flatten()
    )


def test_fields_under_the_zero_mean_gauge_have_mean_zero_and_the_pinned_vertex_is_zero():
    white = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))
    edges = graph_edges(30)
    for operator in (Neumann(), Periodic(), Graph(edges)):
        assert operator.color(white).mean((-2, -1)).abs().max() < 1e-6
    pinned = Graph(edges, pinned=13).color(white).flatten(1)
    assert torch.equal(pinned[:, 13], torch.zeros(4))
    assert pinned[:, 14].abs().min() > 0


def test_periodic_variance_is_the_same_everywhere_and_dirichlet_variance_is_largest_inside():
    periodic = Periodic().variance((6, 9))
    assert torch.all(periodic == periodic[0, 0])
    dirichlet = DirichletLaplacian().variance((7, 7))
    assert dirichlet.argmax() == 24 and dirichlet.argmin() in (0, 6, 42, 48)


def test_a_larger_mass_shortens_the_correlations():
    def correlation(mu):
        green = Massive(DirichletLaplacian(), mu).green((9, 9))
        return float(green[40, 43] / (green[40, 40] * green[43, 43]).sqrt())

    assert correlation(1e-3) > correlation(0.3) > correlation(3.0) > 0


def test_parts_of_a_graph_may_hang_together_through_the_boundary():
    apart = Graph([(0, 1), (2, 3)], boundary=[0, [3, 2.0]])
    expected = torch.block_diag(
        torch.tensor([[2.0, -1.0], [-1.0, 1.0]]), torch.tensor([[1.0, -1.0], [-1.0, 3.0]])
    )
    close(apart.matrix((2, 2)), expected.double())


@pytest.mark.parametrize("pinned", [0, 7, 299])
def test_a_large_sparse_graph_agrees_with_a_dense_solver(pinned):
    # More than one block at the shipped sizes; a random labelling hides the narrow order.
    shuffle = torch.randperm(300, generator=torch.Generator().manual_seed(5))
    edges = shuffle[torch.tensor(graph_edges(300))]
    operator, grid = Graph(edges, pinned=pinned), (15, 20)
    keep = torch.arange(300) != pinned
    inner = operator.matrix(grid)[keep][:, keep]
    dense = torch.linalg.inv(inner)
    scale = dense.abs().max()
    root = operator.color(torch.eye(300, dtype=torch.float64).view(300, *grid)).reshape(300, 300)
    assert ((root.T @ root)[keep][:, keep] - dense).abs().max() < 1e-10 * scale
    assert (operator.variance(grid).flatten()[keep] - dense.diagonal()).abs().max() < 1e-10 * scale
    assert operator.logdet(grid) == pytest.approx(float(torch.logdet(inner)), rel=1e-10)


def test_reordering_keeps_a_shuffled_path_narrow():
    shuffle = torch.randperm(1000, generator=torch.Generator().manual_seed(5))
    operator = Graph(torch.stack([shuffle[:-1], shuffle[1:]], 1), boundary=[int(shuffle[0])])
    operator.prepare((1, 1000))
    assert max(block.numel() for block in operator.factor((1, 1000)).inverses) <= 32**2
