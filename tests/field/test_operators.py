import itertools
import math

import pytest
import torch
from scipy.special import kv

from chaosgate.field import (
    Anisotropic,
    CovarianceFunction,
    CovarianceMatrix,
    Dense,
    DirichletLaplacian,
    EdgeWeighted,
    Graph,
    Identity,
    Massive,
    Matern,
    Neumann,
    Operator,
    Periodic,
    Pinned,
)

from .oracle import GRIDS, OperatorOracle, close


def sites(grid):
    return list(itertools.product(*map(range, grid)))


def positive(*shape, seed=0):
    return 0.2 + torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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


def graph_edges(n):
    """A path with chords, so that the bandwidth is neither 1 nor n."""
    path = [(vertex, vertex + 1) for vertex in range(n - 1)]
    return path + [(vertex, vertex + 3) for vertex in range(0, n - 3, 2)]


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
        half = torch.randn(size(grid), size(grid), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
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
        entries = [[2.718281828459045 ** -abs(i - j) + 0.5 * (i == j) for j in range(n)] for i in range(n)]
        return torch.tensor(entries, dtype=torch.float64)


class TestCovarianceMatrix(OperatorOracle):
    def kernel(self, grid):
        half = torch.randn(size(grid), size(grid), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
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
        return torch.tensor([[(1 + x) * math.exp(-x) + 0.1 * (x == 0) for x in row] for row in s], dtype=torch.float64)

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


@pytest.mark.parametrize("inside", INSIDE, ids=lambda case: case.__name__.removeprefix("Test"), scope="class")
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
        return laplacian_by_hand(grid, lambda *_: 1.0, "free") + 0.3 * torch.eye(size(grid), dtype=torch.float64)


@pytest.mark.parametrize("smoothness", [0.5, 2.5])
def test_matern_kernels_are_those_of_the_bessel_form(smoothness):
    # Rasmussen and Williams, eq. 4.14, with the modified Bessel function of the second kind
    r = torch.arange(1, 8, dtype=torch.float64)
    x = math.sqrt(2 * smoothness) * r / 2.5
    expected = (
        2 ** (1 - smoothness) / math.gamma(smoothness) * x**smoothness * torch.from_numpy(kv(smoothness, x.numpy()))
    )
    row = Matern(2.5, smoothness).green((8,))[0]
    close(row, torch.cat([torch.ones(1, dtype=torch.float64), expected]))


def test_an_operator_and_its_kernel_are_one_law():
    grid = (4, 5)
    kernel = CovarianceMatrix(DirichletLaplacian().green(grid))
    close(kernel.matrix(grid), DirichletLaplacian().matrix(grid))
    torch.testing.assert_close(kernel.logdet(grid), DirichletLaplacian().logdet(grid), rtol=1e-12, atol=0)


def test_a_covariance_function_sees_euclidean_distances():
    operator = CovarianceFunction(lambda distance: torch.exp(-distance.square() / 8), nugget=0.01)
    green = operator.green((2, 3, 4))
    assert math.isclose(green[0, -1], math.exp(-(1 + 4 + 9) / 8)) and math.isclose(green[0, 0], 1.01)


def test_eigenvalues_of_the_dirichlet_laplacian_come_in_the_order_of_the_paper():
    height, width = 3, 5  # eq. dirichlet-eigs
    k, ell = torch.arange(1, height + 1).double(), torch.arange(1, width + 1).double()
    vertical = 4 * torch.sin(torch.pi * k / (2 * (height + 1))) ** 2
    horizontal = 4 * torch.sin(torch.pi * ell / (2 * (width + 1))) ** 2
    close(DirichletLaplacian().spectrum((height, width)), (vertical[:, None] + horizontal).flatten())


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


def test_all_edge_weights_one_is_the_dirichlet_laplacian():
    grid = (9, 5)
    operator = EdgeWeighted(torch.ones(10, 5), torch.ones(9, 6))
    close(operator.green(grid), DirichletLaplacian().green(grid))


def test_a_larger_mass_shortens_the_correlations():
    def correlation(mu):
        green = Massive(DirichletLaplacian(), mu).green((9, 9))
        return float(green[40, 43] / (green[40, 40] * green[43, 43]).sqrt())

    assert correlation(1e-3) > correlation(0.3) > correlation(3.0) > 0


def test_edges_named_twice_add_up():
    double = Graph([(0, 1), (1, 0), (1, 2)], [1.0, 0.5, 2.0])
    close(double.matrix((1, 3)), Graph([(0, 1), (1, 2)], [1.5, 2.0]).matrix((1, 3)))


def test_parts_of_a_graph_may_hang_together_through_the_boundary():
    apart = Graph([(0, 1), (2, 3)], boundary=[0, [3, 2.0]])
    expected = torch.block_diag(torch.tensor([[2.0, -1.0], [-1.0, 1.0]]), torch.tensor([[1.0, -1.0], [-1.0, 3.0]]))
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
