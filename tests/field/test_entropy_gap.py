import math

import pytest
import torch
from scipy import integrate, stats

from chaosgate.field import (
    Anisotropic,
    DirichletLaplacian,
    Graph,
    Massive,
    MaxEntLaw,
    Neumann,
    gaussian_entropy_gap,
    laplace_entropy_gap,
)

OPERATORS = [
    DirichletLaplacian(),
    Anisotropic(0.5, 2.0),
    Massive(Neumann(), 0.1),
    Neumann(),
    Graph([(i, i + 1) for i in range(11)], pinned=0),
]
GRID = (3, 4)


def feasible_covariance(law, seed):
    """A random covariance in the subspace of the law, scaled to its budget."""
    generator = torch.Generator().manual_seed(seed)
    half = law.color(torch.randn(30, *law.grid, dtype=torch.float64, generator=generator)).flatten(
        1
    )
    covariance = half.T @ half
    return covariance * law.epsilon / (0.5 * (law.operator.matrix(law.grid) @ covariance).trace())


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_gap_of_a_feasible_gaussian_is_its_divergence(operator, seed):
    law = MaxEntLaw(operator, GRID, epsilon=3.0)
    both = gaussian_entropy_gap(law, feasible_covariance(law, seed))
    assert both.gap == pytest.approx(both.kl, rel=1e-9)
    assert both.gap > 0.1


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_the_gap_closes_at_the_optimum_and_only_there(operator):
    law = MaxEntLaw(operator, GRID, epsilon=3.0)
    at_optimum = gaussian_entropy_gap(law, law.covariance)
    assert abs(at_optimum.gap) < 1e-10 and abs(at_optimum.kl) < 1e-10
    other = feasible_covariance(law, 2)
    gaps = [
        gaussian_entropy_gap(law, (1 - t) * law.covariance + t * other).gap for t in (0.1, 0.5, 1.0)
    ]
    assert 0 < gaps[0] < gaps[1] < gaps[2]


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_the_gap_of_independent_laplace_coefficients_is_their_divergence(operator):
    law = MaxEntLaw(operator, GRID, beta=0.8)
    alike = laplace_entropy_gap(law)
    assert alike.gap == pytest.approx(alike.kl, rel=1e-10)
    assert alike.gap == pytest.approx(law.rank * 0.5 * (math.log(math.pi) - 1), rel=1e-10)
    eigenvalues = operator.spectrum(GRID).sort().values[-law.rank :]
    shares = torch.arange(1, law.rank + 1).double() / (
        law.rank * (law.rank + 1) / 2
    )  # of the budget
    both = laplace_entropy_gap(law, 2 * law.epsilon * shares / eigenvalues)
    assert both.gap == pytest.approx(both.kl, rel=1e-10)
    assert both.gap > alike.gap


def test_closed_forms_agree_with_quadrature():
    # One site: Q = 4, everything is an integral over the line.
    law = MaxEntLaw(DirichletLaplacian(), (1, 1), beta=0.6)
    both = laplace_entropy_gap(law)
    variance = 1 / (4 * 0.6)
    p, q = stats.laplace(scale=math.sqrt(variance / 2)), stats.norm(scale=math.sqrt(variance))
    kl = 2 * integrate.quad(lambda t: p.pdf(t) * (p.logpdf(t) - q.logpdf(t)), 0, 40)[0]
    assert both.kl == pytest.approx(kl, rel=1e-7)
    assert both.entropy == pytest.approx(float(p.entropy()), rel=1e-12)


def test_gaussian_entropy_and_divergence_agree_with_torch():
    law = MaxEntLaw(DirichletLaplacian(), GRID, epsilon=3.0)
    covariance = feasible_covariance(law, 3)
    zero = torch.zeros(12, dtype=torch.float64)
    p = torch.distributions.MultivariateNormal(zero, covariance)
    q = torch.distributions.MultivariateNormal(zero, law.covariance)
    both = gaussian_entropy_gap(law, covariance)
    assert both.entropy == pytest.approx(float(p.entropy()), rel=1e-12)
    assert both.kl == pytest.approx(float(torch.distributions.kl_divergence(p, q)), rel=1e-10)


def test_infeasible_laws_are_refused():
    law = MaxEntLaw(DirichletLaplacian(), GRID, epsilon=3.0)
    with pytest.raises(ValueError, match="not a feasible law"):
        gaussian_entropy_gap(law, 1.01 * law.covariance)
    with pytest.raises(ValueError, match="not a feasible law"):
        laplace_entropy_gap(law, torch.ones(12))
    with pytest.raises(ValueError, match="12 positive variances"):
        laplace_entropy_gap(law, torch.ones(11))
    flat = torch.ones(12, 12, dtype=torch.float64)
    flat *= 3.0 / DirichletLaplacian().energy(torch.ones(GRID, dtype=torch.float64))
    with pytest.raises(ValueError, match="not positive definite"):
        gaussian_entropy_gap(law, flat)
    gauged = MaxEntLaw(Neumann(), GRID, epsilon=3.0)
    with pytest.raises(ValueError, match="stay in the 11 directions"):
        gaussian_entropy_gap(gauged, gauged.covariance + 1.0)
    with pytest.raises(ValueError, match="must be"):
        gaussian_entropy_gap(law, torch.eye(5))
