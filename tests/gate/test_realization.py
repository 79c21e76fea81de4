import pytest
import torch

from chaosgate.field import DirichletLaplacian, MaxEntLaw
from chaosgate.gate import gate_kernel, samplewise, signed, small_gamma_expansion, wick, wick_moment


@pytest.fixture
def law():
    return MaxEntLaw(DirichletLaplacian(), (3, 5), beta=0.7)


def test_samplewise_is_the_exponential_over_its_spatial_mean():
    psi = torch.randn(6, 1, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = torch.exp(0.8 * psi)
    expected = plain / plain.mean((-2, -1), keepdim=True)
    assert torch.allclose(samplewise(psi, 0.8), expected, rtol=1e-14, atol=0)


def test_samplewise_has_mean_one_and_does_not_overflow():
    psi = 1e4 * torch.randn(4, 1, 7, 7, generator=torch.Generator().manual_seed(1))
    gate = samplewise(psi, 1.0)
    assert torch.isfinite(gate).all()
    assert torch.allclose(gate.mean((-2, -1)), torch.ones(4, 1), atol=1e-5)


def test_wick_mean_is_one_by_quadrature():
    # E exp(gamma psi - gamma^2 v / 2) at one site, psi ~ N(0, v), by Gauss-Hermite: exact to rounding here.
    import numpy as np

    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for variance, gamma in ((0.4, 0.5), (2.0, 1.3)):
        psi = torch.tensor(nodes) * variance**0.5
        values = wick(psi, torch.tensor(variance, dtype=torch.float64), gamma)
        mean = float((values * torch.tensor(weights)).sum() / weights.sum())
        assert mean == pytest.approx(1.0, abs=1e-12)


def test_wick_moments_are_the_gaussian_moment_generating_function(law):
    # Independent route: log E exp(sum gamma psi(x_r) - gamma^2 v(x_r)/2) = var(sum)/2 - sum of halves.
    covariance, gamma = law.covariance, 0.6
    for sites in ([4], [0, 7], [0, 7, 14], [3, 3, 9], [1, 1, 1, 1]):
        total = covariance[sites][:, sites].sum()
        diagonal = torch.stack([covariance[s, s] for s in sites]).sum()
        expected = torch.exp(0.5 * gamma**2 * (total - diagonal))
        assert torch.allclose(wick_moment(covariance, sites, gamma), expected, rtol=1e-12)


def test_gate_kernel_is_the_two_point_moment(law):
    kernel = gate_kernel(law.covariance, 0.6)
    for a, b in ((0, 0), (0, 7), (14, 2)):
        assert torch.allclose(kernel[a, b], wick_moment(law.covariance, [a, b], 0.6))


def test_small_gamma_expansion_is_third_order():
    psi = torch.linspace(-3, 3, 41, dtype=torch.float64)
    variance = torch.tensor(1.3, dtype=torch.float64)
    errors = [
        float((wick(psi, variance, g) - small_gamma_expansion(psi, variance, g)).abs().max())
        for g in (2e-2, 1e-2, 5e-3)
    ]
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(8, rel=0.1)


def test_signed_gate_is_the_first_order_proxy():
    psi = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.equal(signed(psi, 0.3), 1 + 0.3 * psi)
