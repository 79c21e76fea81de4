"""Laws of the log-field: the maximum-entropy one, the Student-t one, and units of strength."""

import math

import pytest
import torch
from scipy import stats
from torch.distributions import MultivariateNormal

from chaosgate.field import (
    DirichletLaplacian,
    Graph,
    MaxEntLaw,
    Neumann,
    Periodic,
    StudentT,
)
from chaosgate.field.white import Noise, fold
from tests.paper.reference import normals

from .oracle import close

GRID = (3, 4)
GAUGED = [Neumann(), Periodic(), Graph([(i, i + 1) for i in range(11)], pinned=4)]


@pytest.mark.parametrize("operator", GAUGED, ids=str)
def test_budget_density_and_entropy_are_those_of_the_gaussian_on_the_free_directions(operator):
    law = MaxEntLaw(operator, GRID, epsilon=5.0)
    # E[energy] = tr(Q Sigma) / 2 = epsilon (eq. general_budget)
    assert 0.5 * float((operator.matrix(GRID) * law.covariance).sum()) == pytest.approx(5.0)
    assert law.beta == pytest.approx(law.rank / 10.0, rel=1e-15)
    assert MaxEntLaw(operator, GRID, beta=law.beta).epsilon == pytest.approx(5.0, rel=1e-15)
    assert (law.n, law.rank) == (12, 11)
    vectors = torch.linalg.eigh(law.precision)[1]
    basis = vectors[:, 1:]  # orthonormal coordinates of the subspace
    reference = MultivariateNormal(
        torch.zeros(law.rank).double(), precision_matrix=basis.T @ law.precision @ basis
    )
    coordinates = normals(5, law.rank)
    inside = (coordinates @ basis.T).view(5, *GRID)
    close(law.log_prob(inside), reference.log_prob(coordinates))
    assert law.entropy() == pytest.approx(float(reference.entropy()))
    close(law.covariance, basis @ reference.covariance_matrix @ basis.T)
    close(law.variance.flatten(), law.covariance.diagonal())
    # the fixed direction does not count
    close(law.log_prob(inside + vectors[:, 0].view(GRID)), law.log_prob(inside))


def test_sampling_is_a_function_of_the_generator_alone():
    law = MaxEntLaw(DirichletLaplacian(), (4, 5))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again = (law.sample(3, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, again) and first.shape == (3, 4, 5) and first.dtype == torch.float32
    assert not torch.equal(law.sample(3), law.sample(3))  # no generator: a fresh one each time
    assert law.sample(2, dtype=torch.float64).dtype == torch.float64
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.statistical
def test_samples_have_the_covariance_of_the_law():
    law, count = MaxEntLaw(Neumann(), GRID, epsilon=2.0), 40_000
    fields = law.sample(count, torch.Generator().manual_seed(11), dtype=torch.float64).flatten(1)
    error, spread = (fields.T @ fields / count - law.covariance).abs(), law.variance.flatten()
    # a product of Gaussians has variance G(x,x) G(y,y) + G(x,y)^2; 5 standard errors
    allowed = 5 * ((torch.outer(spread, spread) + law.covariance**2) / count).sqrt()
    assert bool((error <= allowed).all())


@pytest.mark.parametrize("grid", [(5,), (2, 3), (2, 2, 2)], ids=str)
def test_density_and_entropy_are_those_of_the_multivariate_t(grid):
    law = StudentT(DirichletLaplacian(), grid, beta=0.7, degrees=5)
    # covariance = shape * df / (df - 2)
    reference = stats.multivariate_t(shape=(law.covariance * 3 / 5).numpy(), df=5)
    fields = normals(4, *grid)
    close(law.log_prob(fields), torch.from_numpy(reference.logpdf(fields.flatten(1).numpy())))
    assert math.isclose(law.entropy(), reference.entropy(), rel_tol=1e-10)


@pytest.mark.statistical
def test_fields_have_the_covariance_of_the_kernel_and_the_tails_of_student():
    law = StudentT(DirichletLaplacian(), (3, 3), degrees=9)
    flat = law.draw(Noise(torch.tensor(fold("t"))), (200_000,), torch.float64).flatten(1)
    # fourth moments of the t with 9 degrees are 1.4 times the Gaussian ones: 5 standard errors
    error = 5 * math.sqrt(2 * 1.4) * float(law.covariance.max()) / math.sqrt(200_000)
    assert (flat.T @ flat / len(flat) - law.covariance).abs().max() < error
    center = flat[:, 4] / math.sqrt(float(law.covariance[4, 4]) * 7 / 9)
    assert stats.kstest(center.numpy(), stats.t(9).cdf).pvalue > 1e-3


def test_a_known_table_of_strengths():
    # gamma = 0.1 at the budget 6272 on the late grids of a 224 px ResNet, and on 7 x 7 at beta = 1
    operator = DirichletLaplacian()
    for grid, log_std in [((28, 28), 0.30), ((14, 14), 0.55), ((7, 7), 1.01)]:
        law = MaxEntLaw(operator, grid, epsilon=6272)
        assert law.log_std(0.1) == pytest.approx(log_std, abs=0.005)
        assert law.tau(-0.1) == pytest.approx(0.01 * 2 * 6272 / law.n)  # eq. effective_tau
    assert MaxEntLaw(operator, (7, 7)).log_std(0.1) == pytest.approx(0.063, abs=5e-4)
