"""What is not an operator or a law is an error that names the argument and the remedy."""

import math

import pytest
import torch

from chaosgate.field import (
    CovarianceMatrix,
    Dense,
    DirichletLaplacian,
    EdgeWeighted,
    Graph,
    Massive,
    MaxEntLaw,
    Neumann,
    Operator,
    Periodic,
    Pinned,
)

D = DirichletLaplacian()
NAN = math.nan
TWO_PARTS = [[1.0, -1.0, 0, 0], [-1.0, 1.0, 0, 0], [0, 0, 1.0, -1.0], [0, 0, -1.0, 1.0]]
MATRICES = [
    ([[2.0, 1.0], [0.9, 2.0]], "not symmetric"),
    ([[1.0, 1.0], [1.0, 1.0]], "not positive definite"),  # annihilates (1, -1): no gauge fixes it
    (TWO_PARTS, "fields of mean zero.*is it connected"),
    ([[1.0, NAN], [NAN, 1.0]], "not finite"),
    # a factorization would pass by rounding
    ([[1.0, 1.0], [1.0, 1.0 + 2.3e-16]], "not positive definite"),
]


class Given(Operator):
    def __init__(self, values):
        self.values = torch.tensor(values)

    def matrix(self, grid):
        return self.values


@pytest.mark.parametrize(("values", "message"), MATRICES)
def test_a_matrix_that_is_no_energy(values, message):
    with pytest.raises(ValueError, match=message):
        Dense(values)
    with pytest.raises(ValueError, match=message):
        Given(values).color(torch.zeros(1, 1, len(values)))


def test_rounding_in_float32_is_not_an_asymmetry_but_a_small_mass_is_not_rounding():
    half = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    matrix = half @ half.T + torch.eye(40)
    matrix[0, 1] += 1e-5
    Dense(matrix)
    with pytest.raises(ValueError, match="not symmetric"):
        Dense(matrix.double())
    laplacian = Neumann().matrix((5, 8)).float()
    assert Dense(laplacian).rank((5, 8)) == 39
    assert Dense(laplacian + 1e-4 * torch.eye(40)).rank((5, 8)) == 40


def graph(edges, **more):
    return lambda: Graph(edges, **more).rank((more.get("num_vertices", 4),))


def law(**scale):
    return lambda: MaxEntLaw(D, (3, 3), **scale)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (graph([(0, 1), (2, 3)]), "is it connected"),
        (graph([(0, 1), (1, -2)]), r"here 0 to 1;.*name \[-2\]"),
        (graph([(0, 1), (1, 2)], weights=[1.0, 0.0]), "edge weights must be positive"),
        (lambda: Massive(D, 0.0), "mass mu must be positive"),
        (lambda: EdgeWeighted([[1.0], [0.0]], [[1.0, 1.0]]), "vertical must be positive.*got 0"),
        (lambda: CovarianceMatrix([[1.0]]).green((2, 2)), r"needs a matrix \(4, 4\)"),
        (lambda: Pinned(Pinned(D, [0, 0]), [1, 1]).green((5, 5)), "already has a pinned site"),
        (lambda: Periodic().color(torch.zeros(2, 1, 1)), "has no field"),
        (law(beta=1.0, epsilon=4.5), "not both"),
        (lambda: law()().log_prob(torch.zeros(2, 4, 3)), r"is on grid \(3, 3\)"),
        (lambda: Graph([(0, 1), (1, 2)]).rank((7, 7)), r"needs a grid of 3 sites.*\(7, 7\)"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
