"""Eq. entropy_gap_identity: the entropy that a feasible law gives away is its divergence."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from chaosgate.field import DirichletLaplacian, Massive, MaxEntLaw, Neumann, Periodic, StudentT

GRID = (3, 4)


def normal(covariance):
    return MultivariateNormal(torch.zeros(len(covariance), dtype=torch.float64), covariance)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_gap_of_a_gaussian_law_is_its_divergence(seed):
    law = MaxEntLaw(DirichletLaplacian(), GRID, epsilon=5.0)
    half = torch.randn(
        law.n, law.n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    covariance = half @ half.T + torch.eye(law.n, dtype=torch.float64)
    covariance *= law.epsilon / float(0.5 * (law.operator.matrix(GRID) * covariance).sum())
    other = normal(covariance)
    divergence = float(kl_divergence(other, normal(law.covariance)))
    assert law.entropy() - float(other.entropy()) == pytest.approx(divergence, rel=1e-9)
    assert divergence > 0.1


@pytest.mark.statistical
@pytest.mark.parametrize("operator", [Massive(Periodic(), 0.2), Neumann()], ids=str)
def test_the_gap_of_a_heavy_law_is_its_divergence(operator):
    law, heavy = MaxEntLaw(operator, GRID, epsilon=5.0), StudentT(operator, GRID, epsilon=5.0)
    fields = heavy.sample(50_000, torch.Generator().manual_seed(0), dtype=torch.float64)
    ratio = heavy.log_prob(fields) - law.log_prob(fields)
    error = float(ratio.std()) / math.sqrt(len(ratio))
    assert abs(law.entropy() - heavy.entropy() - float(ratio.mean())) < 5 * error
