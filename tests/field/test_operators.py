import itertools
import math

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

from .oracle import GRIDS, OperatorOracle, graph_edges


def sites(grid):
    return list(itertools.product(*map(range, grid)))


def positive(*shape, seed=0):
    return 0.2 + torch.rand(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def moved(site, axis, step):
    return tuple(place + step * (index == axis) for index, place in enumerate(site))


def laplacian_by_hand(grid, weight, boundary):
    """Eq. dirichlet_laplacian, one edge at a time; ``boundary`` is "zero", "free" or "ring"."""
    number = {site: index for index, site in enumerate(sites(grid))}
    matrix = torch.zeros(len(number), len(number), dtype=torch.float64)
    for site, here in number.items():
        for axis, step in itertools.product(range(len(grid)), (-1, 1)):
            other = moved(site, axis, step)
            if boundary == "ring":
                other = tuple(place % side for place, side in zip(other, grid, strict=True))
            if other not in number and boundary == "free":
                continue
            cost = weight(axis, site, step)
            matrix[here, here] += cost
            if other in number:
                matrix[here, number[other]] -= cost
    return matrix


def graph_by_hand(n, weights):
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for (first, second), weight in zip(graph_edges(n), weights, strict=True):
        matrix[first, first] += weight
        matrix[second, second] += weight
        matrix[first, second] -= weight
        matrix[second, first] -= weight
    return matrix


def size(grid):
    return math.prod(grid)


class ConstantGauge:
    def gauge(self, grid):
        return torch.ones(size(grid), dtype=torch.float64)


class TestDirichletLaplacian(OperatorOracle):
    grids = [*GRIDS, (1, 1), (1,), (1, 1, 1)]

    def operator(self, grid):
        return DirichletLaplacian()

    def by_hand(self, grid):
        return laplacian_by_hand(grid, lambda *_: 1.0, "zero")


class TestAnisotropic(OperatorOracle):
    grids = [grid for grid in GRIDS if len(grid) > 1]

    def operator(self, grid):
        return Anisotropic(vertical=0.3, horizontal=2.5, depth=1.7 if len(grid) == 3 else None)

    def by_hand(self, grid):
        return laplacian_by_hand(grid, lambda axis, *_: (1.7, 0.3, 2.5)[axis - len(grid)], "zero")


class TestNeumann(ConstantGauge, OperatorOracle):
    def operator(self, grid):
        return Neumann()

    def by_hand(self, grid):
        return laplacian_by_hand(grid, lambda *_: 1.0, "free")


class TestPeriodic(ConstantGauge, OperatorOracle):
    def operator(self, grid):
        return Periodic()

    def by_hand(self, grid):
        return laplacian_by_hand(grid, lambda *_: 1.0, "ring")


class TestIdentity(OperatorOracle):
    def operator(self, grid):
        return Identity()

    def by_hand(self, grid):
        return torch.eye(size(grid), dtype=torch.float64)


class TestEdgeWeighted(OperatorOracle):
    grids = [*GRIDS, (1, 1), (9, 7), (1,)]

    def weights(self, grid):
        return [positive(*moved(grid, axis, 1), seed=axis) for axis in range(len(grid))]

    def operator(self, grid):
        depth, vertical, horizontal = [None] * (3 - len(grid)) + self.weights(grid)
        return EdgeWeighted(vertical, horizontal, depth)

    def by_hand(self, grid):
        weights = self.weights(grid)

        def weight(axis, site, step):
            # the edge after site i, counted along the axis with the boundary edge first, is i + 1
            return weights[axis][moved(site, axis, int(step > 0))]

        return laplacian_by_hand(grid, weight, "zero")


class TestGraphWithZeroMean(ConstantGauge, OperatorOracle):
    grids = [*GRIDS, (6, 7)]

    def weights(self, grid):
        return positive(len(graph_edges(size(grid))))

    def operator(self, grid):
        return Graph(graph_edges(size(grid)), self.weights(grid))

    def by_hand(self, grid):
        return graph_by_hand(size(grid), self.weights(grid))


class TestGraphWithPinnedVertex(TestGraphWithZeroMean):
    pinned = 1

    def gauge(self, grid):
        return torch.eye(size(grid), dtype=torch.float64)[self.pinned]

    def operator(self, grid):
        return Graph(graph_edges(size(grid)), self.weights(grid), pinned=self.pinned)

    def by_hand(self, grid):
        matrix = super().by_hand(grid)
        matrix[self.pinned, :] = 0.0
        matrix[:, self.pinned] = 0.0
        return matrix


class TestGraphWithBoundary(OperatorOracle):
    def operator(self, grid):
        edges = graph_edges(size(grid))
        return Graph(edges, positive(len(edges)), boundary={0: 0.5, size(grid) - 1: 2.0})

    def by_hand(self, grid):
        matrix = graph_by_hand(size(grid), positive(len(graph_edges(size(grid)))))
        matrix[0, 0] += 0.5
        matrix[-1, -1] += 2.0
        return matrix


class TestDense(OperatorOracle):
    def by_hand(self, grid):
        half = torch.randn(
            size(grid), size(grid), dtype=torch.float64, generator=torch.Generator().manual_seed(3)
        )
        return half @ half.T + torch.eye(size(grid), dtype=torch.float64)

    def operator(self, grid):
        return Dense(self.by_hand(grid))


class TestDenseWithZeroMean(ConstantGauge, OperatorOracle):
    def operator(self, grid):
        return Dense(self.by_hand(grid).tolist())

    def by_hand(self, grid):
        return laplacian_by_hand(grid, lambda *_: 1.0, "free")


class BringYourOwn(Operator):
    """What a user writes: one method."""

    def matrix(self, grid):
        n = size(grid)
        distance = (torch.arange(n)[:, None] - torch.arange(n)).abs().double()
        return torch.exp(-distance) + 0.5 * torch.eye(n, dtype=torch.float64)


class TestBringYourOwn(OperatorOracle):
    def operator(self, grid):
        return BringYourOwn()

    def by_hand(self, grid):
        n = size(grid)
        entries = [
            [2.718281828459045 ** -abs(i - j) + 0.5 * (i == j) for j in range(n)] for i in range(n)
        ]
        return torch.tensor(entries, dtype=torch.float64)


class TestCovarianceMatrix(OperatorOracle):
    def kernel(self, grid):
        half = torch.randn(
            size(grid), size(grid), dtype=torch.float64, generator=torch.Generator().manual_seed(4)
        )
        return half @ half.T + torch.eye(size(grid), dtype=torch.float64)

    def operator(self, grid):
        return CovarianceMatrix(self.kernel(grid))

    def by_hand(self, grid):
        return torch.linalg.inv(self.kernel(grid))


class TestMatern(TestCovarianceMatrix):
    """Entry by entry: the closed form of smoothness 3/2."""

    def kernel(self, grid):
        places = sites(grid)
        s = [[math.sqrt(3) * math.dist(one, other) / 1.5 for other in places] for one in places]
        return torch.tensor(
            [[(1 + x) * math.exp(-x) + 0.1 * (x == 0) for x in row] for row in s],
            dtype=torch.float64,
        )

    def operator(self, grid):
        return Matern(1.5, smoothness=1.5, nugget=0.1)


INSIDE = [
    TestDirichletLaplacian,
    TestAnisotropic,
    TestNeumann,
    TestPeriodic,
    TestIdentity,
    TestEdgeWeighted,
    TestGraphWithZeroMean,
    TestDense,
    TestDenseWithZeroMean,
    TestBringYourOwn,
    TestCovarianceMatrix,
    TestMatern,
]


@pytest.mark.parametrize(
    "inside", INSIDE, ids=lambda case: case.__name__.removeprefix("Test"), scope="class"
)
class TestMassive(OperatorOracle):
    mu = 0.3

    @pytest.fixture(autouse=True)
    def _inside(self, inside):
        self.inside = inside()
        self.grids = self.inside.grids

    def operator(self, grid):
        return Massive(self.inside.operator(grid), self.mu)

    def by_hand(self, grid):
        return self.inside.by_hand(grid) + self.mu * torch.eye(size(grid), dtype=torch.float64)


class TestMassivePinnedGraph(TestGraphWithPinnedVertex):
    def operator(self, grid):
        return Massive(super().operator(grid), 0.3)

    def by_hand(self, grid):
        mass = torch.ones(size(grid), dtype=torch.float64)
        mass[self.pinned] = 0.0  # pinned stays pinned
        return super().by_hand(grid) + 0.3 * mass.diag()


class TestPinned(OperatorOracle):
    """Against the matrix with the row and the column of the site struck out."""

    grids = [grid for grid in GRIDS if size(grid) > 2]
    inside, boundary, mass = Neumann(), "free", 0.0

    def site(self, grid):
        return [side // 2 for side in grid]

    def number(self, grid):
        return sites(grid).index(tuple(self.site(grid)))

    def gauge(self, grid):
        return torch.eye(size(grid), dtype=torch.float64)[self.number(grid)]

    def operator(self, grid):
        pinned = Pinned(self.inside, self.site(grid))
        return Massive(pinned, self.mass) if self.mass else pinned

    def by_hand(self, grid):
        matrix = laplacian_by_hand(grid, lambda *_: 1.0, self.boundary)
        matrix += self.mass * torch.eye(size(grid), dtype=torch.float64)
        matrix[self.number(grid), :] = 0.0
        matrix[:, self.number(grid)] = 0.0
        return matrix


class TestPinnedPeriodic(TestPinned):
    inside, boundary = Periodic(), "ring"

    def site(self, grid):
        return [-1 for _ in grid]

    def number(self, grid):
        return size(grid) - 1


class TestPinnedDirichlet(TestPinned):
    inside, boundary = DirichletLaplacian(), "zero"


class TestMassivePinned(TestPinned):
    mass = 0.3


class TestTwiceMassive(OperatorOracle):
    def operator(self, grid):
        return Massive(Massive(Neumann(), 0.1), 0.2)

    def by_hand(self, grid):
        return laplacian_by_hand(grid, lambda *_: 1.0, "free") + 0.3 * torch.eye(
            size(grid), dtype=torch.float64
        )


class TestFractional(OperatorOracle):
    """The power of the matrix, from a dense eigendecomposition."""

    def make(self):
        return Fractional(1.7, mass=0.2, base=Neumann())

    def cost(self, eigenvalues):
        return (eigenvalues + 0.2) ** 1.7

    def operator(self, grid):
        return self.make()

    def by_hand(self, grid):
        base = self.make().base.matrix(grid)
        values, vectors = torch.linalg.eigh(base)
        return vectors * self.cost(values) @ vectors.T


class TestMultiScale(TestFractional):
    def make(self):
        return MultiScale([0.1, 2.0], [1.0, 0.5])

    def cost(self, eigenvalues):
        return 1 / (1 / (eigenvalues + 0.1) + 0.5 / (eigenvalues + 2.0))


class TestBandLimited(TestFractional):
    def make(self):
        return BandLimited(0.5, 2.1, outside=20.0, base=Periodic())

    def cost(self, eigenvalues):
        return torch.where((eigenvalues >= 0.5) & (eigenvalues <= 2.1), 1.0, 20.0).double()


class TestFractionalUnderTheGauge(TestFractional):
    grids = [grid for grid in GRIDS if size(grid) > 1]

    def make(self):
        return Fractional(0.5, base=Neumann())

    def cost(self, eigenvalues):
        return eigenvalues.clamp_min(0).sqrt() * (eigenvalues > 1e-9)

    def gauge(self, grid):
        return torch.ones(size(grid), dtype=torch.float64)


class TestSemidefiniteKernel(OperatorOracle):
    """A kernel without variance along one direction; its operator is the pseudo-inverse."""

    grids = [(2, 2), (3, 3), (2, 3, 2)]

    def gauge(self, grid):
        return torch.linspace(1, 2, size(grid), dtype=torch.float64)

    def operator(self, grid):
        direction = self.gauge(grid)
        away = torch.eye(len(direction), dtype=torch.float64)
        away -= torch.outer(direction, direction) / direction.dot(direction)
        return CovarianceMatrix(away @ Matern(1.5).covariance(grid) @ away)

    def by_hand(self, grid):
        return torch.linalg.pinv(self.operator(grid).covariance(grid), hermitian=True, rtol=1e-12)


def test_a_function_of_the_spectrum_must_be_positive():
    with pytest.raises(ValueError, match="positive and finite; at eigenvalue"):
        Spectral(lambda eigenvalue: eigenvalue - 2).green((3, 3))
    for make in (lambda: Fractional(-1), lambda: BandLimited(2, 1), lambda: MultiScale([])):
        with pytest.raises(ValueError, match="Fractional|BandLimited|MultiScale"):
            make()
