"""Every operator against its dense matrix, written down a second time."""

import math
from itertools import product

import pytest
import torch

from chaosgate.field import (
    Anisotropic,
    BandLimited,
    CovarianceMatrix,
    Dense,
    DirichletLaplacian,
    EdgeWeighted,
    Fractional,
    Graph,
    Identity,
    Massive,
    Matern,
    MultiScale,
    Neumann,
    Operator,
    Periodic,
    Pinned,
    Spectral,
)
from tests.paper.reference import grid_matrix, pin

from .oracle import GRIDS, OperatorOracle, graph_edges

size = math.prod
MORE = [*GRIDS, (1, 1), (1,)]


def positive(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 0.2 + torch.rand(*shape, dtype=torch.float64, generator=generator)


def definite(grid):
    half = torch.randn(size(grid), size(grid), generator=torch.Generator().manual_seed(3)).double()
    return half @ half.T + eye(grid)


def eye(grid):
    return torch.eye(size(grid), dtype=torch.float64)


def constant(grid):
    return torch.ones(size(grid), dtype=torch.float64)


def case(make, matrix, gauge=lambda grid: None, grids=GRIDS):
    """The oracle of an operator: how to make it, its matrix, and the direction a gauge removes."""
    methods = {"operator": make, "by_hand": matrix, "gauge": gauge}
    static = {name: staticmethod(method) for name, method in methods.items()}
    return type("Oracle", (OperatorOracle,), {**static, "grids": grids})


def edge_weights(grid):
    return [
        positive(*(n + (i == axis) for i, n in enumerate(grid)), seed=axis)
        for axis in range(len(grid))
    ]


def edge_weighted(grid):
    depth, vertical, horizontal = [None] * (3 - len(grid)) + edge_weights(grid)
    return EdgeWeighted(vertical, horizontal, depth)


def edge_by_edge(grid):
    def weight(axis, place, step):
        # the edge after site i, counted along the axis with the boundary edge first, is i + 1
        at = tuple(i + (step > 0) * (index == axis) for index, i in enumerate(place))
        return edge_weights(grid)[axis][at]

    return grid_matrix(grid, weight)


def graph(grid, **gauge):
    edges = graph_edges(size(grid))
    return Graph(edges, positive(len(edges)), **gauge)


def graph_by_hand(grid):
    matrix = 0 * eye(grid)
    edges = graph_edges(size(grid))
    for (x, y), weight in zip(edges, positive(len(edges)), strict=True):
        matrix[[x, y], [x, y]] += weight
        matrix[[x, y], [y, x]] -= weight
    return matrix


def tied(grid):
    matrix = graph_by_hand(grid)
    matrix[0, 0] += 0.5
    matrix[-1, -1] += 2.0
    return matrix


def matern(grid):
    """Entry by entry: the closed form of smoothness 3/2."""
    places = list(product(*map(range, grid)))
    s = [[math.sqrt(3) * math.dist(one, other) / 1.5 for other in places] for one in places]
    rows = [[(1 + x) * math.exp(-x) + 0.1 * (x == 0) for x in row] for row in s]
    return torch.tensor(rows, dtype=torch.float64)


class BringYourOwn(Operator):
    """What a user writes: one method."""

    def matrix(self, grid):
        n = torch.arange(size(grid)).double()
        return torch.exp(-(n[:, None] - n).abs()) + 0.5 * eye(grid)


def decay(grid):
    n = range(size(grid))
    rows = [[math.exp(-abs(i - j)) + (i == j) / 2 for j in n] for i in n]
    return torch.tensor(rows, dtype=torch.float64)


def of_spectrum(make, cost, border):
    """A function of the matrix, from a dense eigendecomposition."""

    def matrix(grid):
        values, vectors = torch.linalg.eigh(grid_matrix(grid, border=border))
        return vectors * cost(values) @ vectors.T

    return case(lambda grid: make(), matrix)


def singular(grid):
    """A kernel without variance along one direction; its operator is the pseudo-inverse."""
    away = eye(grid) - torch.outer(slope(grid), slope(grid)) / slope(grid).square().sum()
    return away @ matern(grid) @ away


def slope(grid):
    return torch.linspace(1, 2, size(grid), dtype=torch.float64)


def unit(site):
    return lambda grid: eye(grid)[site(grid)]


def middle(grid):
    return sum(n // 2 * size(grid[i + 1 :]) for i, n in enumerate(grid))


def pinned(inside, border, mass=0.0):
    grids = [grid for grid in GRIDS if size(grid) > 2]

    def make(grid):
        operator = Pinned(inside(), [n // 2 for n in grid])
        return Massive(operator, mass) if mass else operator

    def matrix(grid):
        return pin(grid_matrix(grid, border=border) + mass * eye(grid), middle(grid))

    return case(make, matrix, unit(middle), grids)


def zero(grid):
    return grid_matrix(grid)


def free(grid):
    return grid_matrix(grid, border="free")


def ring(grid):
    return grid_matrix(grid, border="ring")


TestDirichletLaplacian = case(lambda grid: DirichletLaplacian(), zero, grids=MORE)
TestAnisotropic = case(
    lambda grid: Anisotropic(0.3, 2.5, depth=1.7 if len(grid) == 3 else None),
    lambda grid: grid_matrix(grid, lambda axis, *_: (1.7, 0.3, 2.5)[axis - len(grid)]),
    grids=[grid for grid in GRIDS if len(grid) > 1],
)
TestNeumann = case(lambda grid: Neumann(), free, constant)
TestPeriodic = case(lambda grid: Periodic(), ring, constant)
TestIdentity = case(lambda grid: Identity(), eye)
TestEdgeWeighted = case(edge_weighted, edge_by_edge, grids=[*MORE, (9, 7)])
TestGraphWithZeroMean = case(graph, graph_by_hand, constant, [*GRIDS, (6, 7)])
TestGraphWithBoundary = case(lambda grid: graph(grid, boundary={0: 0.5, size(grid) - 1: 2.0}), tied)
TestDense = case(lambda grid: Dense(definite(grid)), definite)
TestDenseWithZeroMean = case(lambda grid: Dense(free(grid).tolist()), free, constant)
TestBringYourOwn = case(lambda grid: BringYourOwn(), decay)
TestCovarianceMatrix = case(
    lambda grid: CovarianceMatrix(definite(grid)), lambda grid: definite(grid).inverse()
)
TestMatern = case(lambda grid: Matern(1.5, 1.5, nugget=0.1), lambda grid: matern(grid).inverse())
TestSemidefiniteKernel = case(
    lambda grid: CovarianceMatrix(singular(grid)),
    lambda grid: torch.linalg.pinv(singular(grid), hermitian=True, rtol=1e-12),
    slope,
    [(2, 2), (3, 3), (2, 3, 2)],
)
INSIDE = {name: value for name, value in globals().items() if name.startswith("Test")}

TestMassivePinnedGraph = case(
    lambda grid: Massive(graph(grid, pinned=1), 0.3),
    lambda grid: pin(graph_by_hand(grid) + 0.3 * eye(grid), 1),
    unit(lambda grid: 1),
)
TestPinned = pinned(Neumann, "free")
TestMassivePinned = pinned(Neumann, "free", mass=0.3)
TestFractional = of_spectrum(
    lambda: Fractional(1.7, mass=0.2, base=Neumann()), lambda e: (e + 0.2) ** 1.7, "free"
)
TestMultiScale = of_spectrum(
    lambda: MultiScale([0.1, 2.0], [1.0, 0.5]),
    lambda e: 1 / (1 / (e + 0.1) + 0.5 / (e + 2.0)),
    "zero",
)
TestBandLimited = of_spectrum(
    lambda: BandLimited(0.5, 2.1, outside=20.0, base=Periodic()),
    lambda e: torch.where((e >= 0.5) & (e <= 2.1), 1.0, 20.0).double(),
    "ring",
)


class TestFractionalUnderTheGauge(
    of_spectrum(
        lambda: Fractional(0.5, base=Neumann()),
        lambda e: e.clamp_min(0).sqrt() * (e > 1e-9),
        "free",
    )
):
    gauge = staticmethod(constant)


@pytest.mark.parametrize("inside", INSIDE, scope="class")
class TestMassive(OperatorOracle):
    @pytest.fixture(autouse=True)
    def _inside(self, inside):
        self.inside = INSIDE[inside]()
        self.grids = self.inside.grids

    def operator(self, grid):
        return Massive(self.inside.operator(grid), 0.3)

    def by_hand(self, grid):
        return self.inside.by_hand(grid) + 0.3 * eye(grid)


def test_a_function_of_the_spectrum_must_be_positive():
    with pytest.raises(ValueError, match="positive and finite; at eigenvalue"):
        Spectral(lambda eigenvalue: eigenvalue - 2).green((3, 3))
    with pytest.raises(ValueError, match="BandLimited"):
        BandLimited(2, 1)
