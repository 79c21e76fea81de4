"""Laws of the log-field: the maximum-entropy one, the Student-t one, and units of strength."""

import math

import pytest
import torch
from scipy import stats
from torch.distributions import MultivariateNormal

import chaosgate as cg
from chaosgate.field import (
    DirichletLaplacian,
    Graph,
    Identity,
    Massive,
    MaxEntLaw,
    Neumann,
    Periodic,
    StudentT,
    beta_from_epsilon,
    log_std_from_tau,
    tau_from_gamma,
)
from chaosgate.field.white import Noise, fold
from chaosgate.gate import SampleWise, Signed, Wick

from .oracle import close

FULL_RANK = [
    DirichletLaplacian(),
    Massive(Periodic(), 0.2),
    Identity(),
    Graph([(0, 11)], boundary=range(12)),
]
GAUGED = [Neumann(), Periodic(), Graph([(i, i + 1) for i in range(11)], pinned=4)]


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("operator", [*FULL_RANK, *GAUGED], ids=str)
def test_the_budget_is_met_exactly(operator):
    # E[energy] = tr(Q Sigma) / 2 = epsilon (eq. general_budget)
    law = MaxEntLaw(operator, (3, 4), epsilon=5.0)
    close(0.5 * (operator.matrix((3, 4)) @ law.covariance).trace(), number(5.0))
    assert law.beta == pytest.approx(law.rank / 10.0, rel=1e-15)
    assert MaxEntLaw(operator, (3, 4), beta=law.beta).epsilon == pytest.approx(5.0, rel=1e-15)
    assert (law.n, law.rank) == (12, 12 - (operator in GAUGED))


@pytest.mark.parametrize("operator", FULL_RANK, ids=str)
def test_density_and_entropy_are_those_of_the_gaussian(operator):
    law = MaxEntLaw(operator, (3, 4), beta=2.5)
    reference = MultivariateNormal(
        torch.zeros(12, dtype=torch.float64), precision_matrix=law.precision
    )
    field = torch.randn(5, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    close(law.log_prob(field), reference.log_prob(field.flatten(-2)))
    close(number(law.entropy()), reference.entropy())
    close(law.covariance, reference.covariance_matrix)
    close(law.variance, reference.variance.view(3, 4))


@pytest.mark.parametrize("operator", GAUGED, ids=str)
def test_under_a_gauge_density_and_entropy_are_those_of_the_subspace(operator):
    law = MaxEntLaw(operator, (3, 4), beta=2.5)
    values, vectors = torch.linalg.eigh(law.precision)
    basis = vectors[:, 1:]  # orthonormal coordinates of the subspace
    reference = MultivariateNormal(
        torch.zeros(11, dtype=torch.float64), precision_matrix=basis.T @ law.precision @ basis
    )
    coordinates = torch.randn(
        5, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    inside = (coordinates @ basis.T).view(5, 3, 4)
    close(law.log_prob(inside), reference.log_prob(coordinates))
    close(number(law.entropy()), reference.entropy())
    outside = inside + vectors[:, 0].view(3, 4)  # the fixed direction does not count
    close(law.log_prob(outside), law.log_prob(inside))


def test_density_of_two_free_sites_integrates_to_one():
    law = MaxEntLaw(Neumann(), (1, 2), beta=1.3)
    t = torch.linspace(-12, 12, 20001, dtype=torch.float64)
    direction = torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(
        2
    )  # the only one of mean zero
    density = law.log_prob((t[:, None] * direction).view(-1, 1, 2)).exp()
    assert float(torch.trapezoid(density, t)) == pytest.approx(1.0, abs=1e-9)


def test_tau_and_log_std_of_a_law():
    law = MaxEntLaw(DirichletLaplacian(), (7, 7), epsilon=6272)
    assert law.tau(-0.1) == law.tau(0.1) == pytest.approx(0.01 * 2 * 6272 / 49)  # eq. effective_tau
    assert law.log_std(0.1) == pytest.approx(
        float((0.01 * law.covariance.diagonal()).mean().sqrt()), rel=1e-12
    )


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
@pytest.mark.parametrize("operator", [DirichletLaplacian(), Neumann()], ids=str)
def test_samples_have_the_energy_of_the_budget_and_the_covariance_of_the_law(operator):
    law, count = MaxEntLaw(operator, (3, 4), epsilon=2.0), 40_000
    fields = law.sample(count, torch.Generator().manual_seed(11), dtype=torch.float64)
    # 2 beta E is chi-square with rank degrees of freedom, so energy / epsilon has variance 2 /
    # rank; 4 standard errors.
    mean_energy = float(operator.energy(fields).mean()) / law.epsilon
    assert abs(mean_energy - 1) < 4 * math.sqrt(2 / law.rank / count)
    flat = fields.flatten(1)
    error = (flat.T @ flat / count - law.covariance).abs()
    spread = law.variance.flatten()
    # Var of a product of Gaussians: G(x,x) G(y,y) + G(x,y)^2; 5 standard errors over 144 correlated
    # entries.
    allowed = 5 * ((torch.outer(spread, spread) + law.covariance**2) / count).sqrt()
    assert bool((error <= allowed).all())


@pytest.mark.parametrize("grid", [(5,), (2, 3), (2, 2, 2)], ids=str)
def test_density_and_entropy_are_those_of_the_multivariate_t(grid):
    law = StudentT(DirichletLaplacian(), grid, beta=0.7, degrees=5)
    reference = stats.multivariate_t(
        shape=(law.covariance * 3 / 5).numpy(), df=5
    )  # covariance = shape * df / (df - 2)
    fields = torch.randn(4, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.from_numpy(reference.logpdf(fields.flatten(1).numpy()))
    torch.testing.assert_close(law.log_prob(fields), expected, rtol=1e-10, atol=1e-10)
    assert math.isclose(law.entropy(), reference.entropy(), rel_tol=1e-10)


@pytest.mark.parametrize("operator", [DirichletLaplacian(), Neumann()], ids=str)
def test_at_the_same_budget_it_has_less_entropy_than_the_gaussian_law_which_is_its_limit(operator):
    gaussian = MaxEntLaw(operator, (4, 4), epsilon=3.0).entropy()
    heavy = [
        StudentT(operator, (4, 4), epsilon=3.0, degrees=degrees).entropy()
        for degrees in (3, 5, 50, 10**6)
    ]
    assert heavy == sorted(heavy) and heavy[-1] < gaussian
    assert gaussian - heavy[-1] < 1e-3


@pytest.mark.statistical
def test_fields_have_the_covariance_of_the_kernel_and_the_tails_of_student():
    law = StudentT(DirichletLaplacian(), (3, 3), degrees=9)
    fields = law.draw(Noise(torch.tensor(fold("t"))), (200_000,), torch.float64)
    flat = fields.flatten(1)
    # fourth moments of the t with 9 degrees are 1.4 times the Gaussian ones: five standard errors
    # of the entries
    error = 5 * math.sqrt(2 * 1.4) * float(law.covariance.max()) / math.sqrt(200_000)
    assert (flat.T @ flat / len(flat) - law.covariance).abs().max() < error
    centre = flat[:, 4] / math.sqrt(float(law.covariance[4, 4]) * 7 / 9)
    assert stats.kstest(centre.numpy(), stats.t(9).cdf).pvalue > 1e-3
    one = law.sample(3, torch.Generator().manual_seed(1))
    assert torch.equal(one, law.sample(3, torch.Generator().manual_seed(1))) and one.shape == (
        3,
        3,
        3,
    )


def test_the_wick_gate_does_not_exist_and_the_samplewise_one_does():
    def law(grid):
        return StudentT(DirichletLaplacian(), grid, degrees=4)

    h = torch.ones(4, 2, 5, 5)
    with pytest.raises(ValueError, match="the Wick gate does not exist. Use SampleWise"):
        cg.Mechanism(law, Wick(0.5)).check((5, 5))
    gate = cg.Mechanism(law, SampleWise(0.5))(h)
    torch.testing.assert_close(gate.mean((2, 3)), torch.ones(4, 2))
    assert (gate > 0).all()
    signed = cg.Mechanism(law, Signed(0.5))
    torch.testing.assert_close(signed.site_energy((5, 5)), 0.25 * law((5, 5)).variance)


def test_a_known_table_of_strengths():
    # gamma = 0.1 at the fixed budget 6272 on the late grids of a 224 px ResNet, and on 7 x 7 at
    # beta = 1
    operator = DirichletLaplacian()
    for grid, log_std in [((28, 28), 0.30), ((14, 14), 0.55), ((7, 7), 1.01)]:
        tau = tau_from_gamma(0.1, beta_from_epsilon(operator, grid, 6272))
        assert log_std_from_tau(operator, grid, tau) == pytest.approx(log_std, abs=0.005)
    assert operator.mean_variance((7, 7)) == pytest.approx(0.397, abs=5e-4)
    assert log_std_from_tau(operator, (7, 7), tau_from_gamma(0.1)) == pytest.approx(0.063, abs=5e-4)
