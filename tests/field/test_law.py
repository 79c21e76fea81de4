import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from chaosgate.field import DirichletLaplacian, Graph, Identity, Massive, MaxEntLaw, Neumann, Periodic

from .oracle import close

FULL_RANK = [DirichletLaplacian(), Massive(Periodic(), 0.2), Identity(), Graph([(0, 11)], boundary=range(12))]
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
    reference = MultivariateNormal(torch.zeros(12, dtype=torch.float64), precision_matrix=law.precision)
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
    coordinates = torch.randn(5, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inside = (coordinates @ basis.T).view(5, 3, 4)
    close(law.log_prob(inside), reference.log_prob(coordinates))
    close(number(law.entropy()), reference.entropy())
    outside = inside + vectors[:, 0].view(3, 4)  # the fixed direction does not count
    close(law.log_prob(outside), law.log_prob(inside))


def test_normalizer_is_that_of_the_paper():
    law = MaxEntLaw(DirichletLaplacian(), (3, 4), beta=0.7)  # eq. gff-normalizer
    determinant = torch.linalg.det(0.7 * DirichletLaplacian().matrix((3, 4)))
    close(number(math.exp(law.log_normalizer())), (2 * math.pi) ** 6 * determinant**-0.5)


def test_density_of_two_free_sites_integrates_to_one():
    law = MaxEntLaw(Neumann(), (1, 2), beta=1.3)
    t = torch.linspace(-12, 12, 20001, dtype=torch.float64)
    direction = torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(2)  # the only one of mean zero
    density = law.log_prob((t[:, None] * direction).view(-1, 1, 2)).exp()
    assert float(torch.trapezoid(density, t)) == pytest.approx(1.0, abs=1e-9)


def test_precision_inverts_the_covariance_and_color_samples_it():
    law = MaxEntLaw(DirichletLaplacian(), (4, 5), beta=3.0)
    close(law.precision @ law.covariance, torch.eye(20, dtype=torch.float64))
    root = law.color(torch.eye(20, dtype=torch.float64).view(20, 4, 5)).view(20, 20)
    close(root.T @ root, law.covariance)
    close(law.variance.flatten(), law.covariance.diagonal())


def test_tau_and_log_std_of_a_law():
    law = MaxEntLaw(DirichletLaplacian(), (7, 7), epsilon=6272)
    assert law.tau(-0.1) == law.tau(0.1) == pytest.approx(0.01 * 2 * 6272 / 49)  # eq. effective_tau
    assert law.log_std(0.1) == pytest.approx(float((0.01 * law.covariance.diagonal()).mean().sqrt()), rel=1e-12)


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
    # 2 beta E is chi-square with rank degrees of freedom, so energy / epsilon has variance 2 / rank; 4 standard errors.
    mean_energy = float(operator.energy(fields).mean()) / law.epsilon
    assert abs(mean_energy - 1) < 4 * math.sqrt(2 / law.rank / count)
    flat = fields.flatten(1)
    error = (flat.T @ flat / count - law.covariance).abs()
    spread = law.variance.flatten()
    # Var of a product of Gaussians: G(x,x) G(y,y) + G(x,y)^2; 5 standard errors over 144 correlated entries.
    allowed = 5 * ((torch.outer(spread, spread) + law.covariance**2) / count).sqrt()
    assert bool((error <= allowed).all())


def test_a_law_says_what_it_is():
    assert repr(MaxEntLaw(Neumann(), [2, 3], epsilon=5)) == "MaxEntLaw(Neumann(), grid=(2, 3), beta=0.5)"
