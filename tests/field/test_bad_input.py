import math

import pytest
import torch

from chaosgate.field import (
    Anisotropic,
    CovarianceMatrix,
    Dense,
    DirichletLaplacian,
    EdgeWeighted,
    Graph,
    Massive,
    Matern,
    MaxEntLaw,
    Neumann,
    Operator,
    Periodic,
    Pinned,
)


class Given(Operator):
    def __init__(self, values):
        self.values = torch.tensor(values)

    def matrix(self, grid):
        return self.values


ASYMMETRIC = [[2.0, 1.0], [0.9, 2.0]]
INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]
SINGULAR = [[1.0, 1.0], [1.0, 1.0]]  # annihilates (1, -1), which no gauge fixes
TWO_PARTS = [[1.0, -1.0, 0, 0], [-1.0, 1.0, 0, 0], [0, 0, 1.0, -1.0], [0, 0, -1.0, 1.0]]
NEGATIVE_GAUGE = [[-1.0, 1.0], [1.0, -1.0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (ASYMMETRIC, "not symmetric"),
        (INDEFINITE, "not positive definite"),
        (SINGULAR, "not positive definite"),
        (TWO_PARTS, "Is the graph connected"),
        (NEGATIVE_GAUGE, "one direction only"),
        ([[1.0, math.nan], [math.nan, 1.0]], "not finite"),
        ([[0.0]], "not positive definite"),
        (
            [[1.0, 1.0], [1.0, 1.0 + 2.3e-16]],
            "not positive definite",
        ),  # a factorisation would pass by rounding
    ],
)
def test_a_matrix_that_is_no_energy_is_refused(values, message):
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


@pytest.mark.parametrize("shape", [(2, 3), (4,), (0, 0)])
def test_a_matrix_that_is_not_square_is_refused(shape):
    with pytest.raises(ValueError, match="square"):
        Dense(torch.ones(shape))


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf])
def test_a_mass_must_be_positive_and_finite(mu):
    with pytest.raises(ValueError, match="mass mu must be positive"):
        Massive(DirichletLaplacian(), mu)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_weights_must_be_positive_and_finite(weight):
    with pytest.raises(ValueError, match="horizontal weight must be positive"):
        Anisotropic(1.0, weight)
    with pytest.raises(ValueError, match=r"vertical must be positive and finite; entry \(1, 0\)"):
        EdgeWeighted([[1.0], [weight]], [[1.0, 1.0]])
    with pytest.raises(ValueError, match="edge weights must be positive"):
        Graph([(0, 1), (1, 2)], [1.0, weight])
    with pytest.raises(ValueError, match="boundary weights must be positive"):
        Graph([(0, 1)], boundary={0: weight})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edges": [(0, 1), (2, 3)]}, "not connected: it has 2 parts"),
        ({"edges": [(0, 1)], "num_vertices": 3}, "not connected: it has 2 parts"),
        ({"edges": [(0, 1), (2, 3)], "boundary": [0]}, "not connected: it has 2 parts"),
        ({"edges": [(0, 1), (2, 3)], "pinned": 0}, "not connected: it has 2 parts"),
        ({"edges": [(0, 0), (0, 1)]}, "from a vertex to itself"),
        (
            {"edges": [(0, 1), (1, -2)]},
            "vertices 0 to num_vertices - 1, here 0 to 1;.*name \\[-2\\]",
        ),
        ({"edges": [(0, 5)], "num_vertices": 3}, "here 0 to 2;.*name \\[5\\]"),
        ({"edges": [(0, 1, 2)]}, "pairs"),
        ({"edges": [(0.0, 1.5)]}, "pairs"),
        ({"edges": [(0, 1)], "weights": [1.0, 2.0]}, "1 edges need as many weights"),
        ({"edges": [(0, 1)], "boundary": {7: 1.0}}, "name \\[7\\]"),
        ({"edges": [(0, 1)], "pinned": 2}, "name \\[2\\]"),
        ({"edges": [(0, 1)], "pinned": 0, "boundary": [1]}, "not both"),
        ({"edges": [], "num_vertices": 1}, "carries no field"),
        ({"edges": []}, "here 0 to -1"),
    ],
)
def test_a_graph_that_has_no_field_is_refused_when_it_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        Graph(**arguments)


@pytest.mark.parametrize(
    "shapes", [((3, 3), (3, 3)), ((4, 3), (3, 3)), ((4, 4), (3, 4)), ((4,), (3, 4))]
)
def test_edge_weights_must_fit_one_grid(shapes):
    with pytest.raises(ValueError, match="have shapes"):
        EdgeWeighted(torch.ones(shapes[0]), torch.ones(shapes[1]))


@pytest.mark.parametrize(
    "operator",
    [
        EdgeWeighted(torch.ones(4, 2), torch.ones(3, 3)),  # a 3 x 2 grid
        Graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
        Dense(torch.eye(6)),
        Massive(Dense(torch.eye(6)), 0.1),
        Given([[2.0, 1.0], [1.0, 2.0]]),
    ],
    ids=str,
)
def test_a_grid_of_another_size_is_refused(operator):
    for use in (operator.green, operator.rank, lambda grid: operator.color(torch.zeros(grid))):
        with pytest.raises(ValueError, match=r"\(7, 7\)"):
            use((7, 7))
    if not isinstance(operator, Given):
        with pytest.raises(ValueError, match=r"\(7, 7\)"):
            operator.energy(torch.zeros(7, 7))


def test_edge_weights_belong_to_a_shape_and_not_to_a_number_of_sites():
    with pytest.raises(ValueError, match=r"asked for grid \(2, 3\)"):
        EdgeWeighted(torch.ones(4, 2), torch.ones(3, 3)).green((2, 3))


@pytest.mark.parametrize("grid", [(0, 3), (), (2, 2, 2, 2), (1.5, 2), (-1, 4), (0,), (3, 0, 2)])
def test_a_grid_is_one_to_three_positive_whole_numbers(grid):
    with pytest.raises(ValueError, match="height, width"):
        DirichletLaplacian().green(grid)
    with pytest.raises(ValueError, match="height, width"):
        MaxEntLaw(DirichletLaplacian(), grid)


@pytest.mark.parametrize(
    ("operator", "grid"), [(Anisotropic(1, 2), (5,)), (Anisotropic(1, 2), (2, 2, 2))]
)
def test_weights_per_axis_fit_the_number_of_axes(operator, grid):
    with pytest.raises(ValueError, match="has weights for 2 axes"):
        operator.green(grid)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CovarianceMatrix([[1.0, 2.0], [2.0, 1.0]]), "not positive semidefinite"),
        (lambda: CovarianceMatrix([[0.0]]), "not positive semidefinite"),
        (lambda: CovarianceMatrix([[1.0, 0.5], [0.1, 1.0]]), "not symmetric"),
        (lambda: CovarianceMatrix([[1.0, math.nan], [math.nan, 1.0]]), "not finite"),
        (lambda: CovarianceMatrix([[1.0, 0.5]]), "square"),
        (lambda: CovarianceMatrix([[1.0]]).green((2, 2)), "lives on 1 sites"),
        (lambda: Matern(0.0), "length must be positive"),
        (lambda: Matern(1.0, smoothness=1.0), "0.5, 1.5 or 2.5"),
    ],
)
def test_what_is_no_covariance_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_pinned_site_is_on_the_grid_and_there_is_one():
    with pytest.raises(ValueError, match="has no such site"):
        Pinned(Neumann(), [5, 0]).green((5, 5))
    with pytest.raises(ValueError, match="has no such site"):
        Pinned(Neumann(), [1]).green((5, 5))
    with pytest.raises(ValueError, match="one whole number per axis"):
        Pinned(Neumann(), [0.5, 1]).green((5, 5))
    with pytest.raises(ValueError, match="holds a site at zero already"):
        Pinned(Pinned(Neumann(), [0, 0]), [1, 1]).green((5, 5))
    with pytest.raises(ValueError, match="only site"):
        Pinned(DirichletLaplacian(), [0, 0]).green((1, 1))


@pytest.mark.parametrize("operator", [Neumann(), Periodic()], ids=str)
def test_one_site_under_the_zero_mean_gauge_carries_no_field(operator):
    with pytest.raises(ValueError, match="has no field"):
        operator.color(torch.zeros(2, 1, 1))


def test_beta_and_epsilon_exclude_each_other():
    with pytest.raises(ValueError, match="not both"):
        MaxEntLaw(DirichletLaplacian(), (3, 3), beta=1.0, epsilon=4.5)
    assert MaxEntLaw(DirichletLaplacian(), (3, 3)).beta == 1.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_beta_and_epsilon_must_be_positive_and_finite(value):
    with pytest.raises(ValueError, match="beta must be positive"):
        MaxEntLaw(DirichletLaplacian(), (3, 3), beta=value)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        MaxEntLaw(DirichletLaplacian(), (3, 3), epsilon=value)


def test_a_law_refuses_fields_of_another_grid():
    law = MaxEntLaw(DirichletLaplacian(), (3, 4))
    for use in (law.color, law.log_prob):
        with pytest.raises(ValueError, match=r"lives on grid \(3, 4\)"):
            use(torch.zeros(2, 4, 3))
