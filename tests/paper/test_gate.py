"""The gate and its injection: sections 4.1, 5.4 and 5.6, appendices B and G of the paper."""

import math
from functools import reduce

import numpy as np
import pytest
import torch

from chaosgate.gate import (
    CorrelatedGaussian,
    DropBlock,
    Dropout,
    Gate,
    GaussianChaos,
    IIDGaussian,
    IIDLogNormal,
    SignedCorrelated,
    gate_kernel,
    small_gamma_expansion,
    wick_moment,
)
from tests.paper.reference import (
    GRIDS,
    basis,
    close,
    grid_matrix,
    log_affine,
    normals,
    positive_maps,
    push,
)

GAMMA, BETA = 0.9, 2.0
TAU = GAMMA**2 / BETA
REALIZATIONS = ("samplewise", "wick")


def green(grid):
    return torch.linalg.inv(grid_matrix(grid))


def chaos(realization, **changes):
    return GaussianChaos(**{"gamma": GAMMA, "beta": BETA, "realization": realization, **changes})


@pytest.mark.parametrize("realization", REALIZATIONS)
@pytest.mark.parametrize("grid", GRIDS)
def test_eq_mul_injection_and_eq_inject_gate_all_channels_get_the_same_gate(grid, realization):
    noise, h = (
        normals(4, 1, *grid),
        normals(4, 3, *grid, seed=2),
    )  # signed features are multiplied, too
    gate = push(chaos(realization), torch.ones_like(noise), noise)
    close(push(chaos(realization), h, noise), h * gate)


@pytest.mark.parametrize("realization", REALIZATIONS)
def test_eq_residual_mul_mixes_the_gate_with_one(
    realization,
):
    noise, h = normals(4, 1, 3, 4), positive_maps(4, 2, 3, 4)
    gate = push(chaos(realization), torch.ones_like(noise), noise)
    close(push(chaos(realization, alpha=0.3), h, noise), h * (1 + 0.3 * (gate - 1)))


@pytest.mark.parametrize("grid", GRIDS)
def test_thm_maxent_gff_chaos_all_moments_of_the_wick_gate(grid):
    """Mean one, the two-point kernel, and moments of up to four sites, from the Gaussian MGF."""
    n, covariance = math.prod(grid), green(grid) / BETA
    offset, linear = log_affine(chaos("wick"), grid)
    close(offset, -0.5 * GAMMA**2 * covariance.diagonal())  # eq. exact_gate
    close(linear.T @ linear, GAMMA**2 * covariance)
    tuples = [(x,) for x in range(n)] + [(x, (3 * x + 1) % n) for x in range(n)]
    tuples += [(x, x, (x + 1) % n) for x in range(n)]
    tuples += [(x, (x + 2) % n, 5 * x % n, x) for x in range(n)]
    for sites in map(list, tuples):
        moment = float(offset[sites].sum() + 0.5 * linear[:, sites].sum(1).square().sum())
        pairs = sum(float(covariance[a, b]) for i, a in enumerate(sites) for b in sites[:i])
        # eq. all_moments_gate, eq. chaos-mean1, eq. chaos-second
        close(1 + moment, 1 + GAMMA**2 * pairs)
        close(wick_moment(covariance, sites, GAMMA), math.exp(GAMMA**2 * pairs))
    close(gate_kernel(covariance, GAMMA), (GAMMA**2 * covariance).exp())  # eq. induced_gate_kernel


@pytest.mark.parametrize("grid", GRIDS)
def test_prop_effective_tau_only_gamma_squared_over_beta_matters(grid):
    n = math.prod(grid)
    log_std = math.sqrt(TAU * float(green(grid).diagonal().mean()))
    ways = [
        {"gamma": GAMMA, "beta": BETA},
        {"gamma": 2 * GAMMA, "beta": 4 * BETA},
        {"gamma": GAMMA / 3, "epsilon": 9 * n / (2 * BETA)},
        {"gamma": math.sqrt(TAU)},
        {"log_std": log_std},
    ]
    noise = normals(4, 1, *grid)
    for realization in REALIZATIONS:
        gates = [GaussianChaos(**way, realization=realization) for way in ways]
        found = [push(gate, torch.ones_like(noise), noise) for gate in gates]
        for gate, values in zip(gates, found, strict=True):
            close(values, found[0])
            nominal = gate.nominal(grid)
            close((nominal["tau"], nominal["log_std"]), (TAU, log_std))
    offset, linear = log_affine(chaos("wick"), grid)
    mean = offset + 0.5 * linear.square().sum(0)
    close(mean[:, None] + mean + linear.T @ linear, TAU * green(grid))  # eq. kernel_tau
    law = chaos("wick").field_on(grid).law
    close((law.tau(-GAMMA), law.log_std(-GAMMA)), (TAU, log_std))  # eq. effective_tau


def test_prop_small_gamma_the_remainder_is_of_third_order():
    """In L2 by Gauss-Hermite quadrature along the direction of one site, and for the kernel."""
    grid, site = (3, 4), 5
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(48))
    covariance, norms = green(grid), []
    for gamma in (0.1, 0.05, 0.025):
        gate = GaussianChaos(gamma=gamma, realization="wick")
        offset, linear = log_affine(gate, grid)
        direction = linear[:, site] / linear[:, site].norm()
        noise = (nodes[:, None] * direction).view(-1, 1, *grid)
        xi = push(gate, torch.ones_like(noise), noise).flatten(1)[:, site]
        v = covariance[site, site]
        expansion = small_gamma_expansion(nodes * v.sqrt(), v, gamma)
        norms.append(float((weights / weights.sum() * (xi - expansion).square()).sum().sqrt()))
        series = sum((gamma**2 * float(v)) ** k / math.factorial(k) for k in range(3, 16))
        close(norms[-1], math.sqrt(series), 1e-8)
        second = sum((gamma**2 * covariance) ** k / math.factorial(k) for k in range(2, 16))
        mean = offset + 0.5 * linear.square().sum(0)
        kernel = (
            mean[:, None] + mean + linear.T @ linear
        ).expm1()  # eq. kernel_small_gamma, eq. cov_small_gamma
        close((kernel - gamma**2 * covariance) / gamma**4, torch.as_tensor(second) / gamma**4, 1e-8)
    assert math.log2(norms[1] / norms[2]) == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize("grid", GRIDS)
def test_eq_samplewise_gate_is_the_exponential_over_its_spatial_mean(grid):
    noise = normals(16, 1, *grid)
    gate = push(chaos("samplewise"), torch.ones_like(noise), noise)[:, 0].flatten(1)
    linear = log_affine(chaos("wick"), grid)[1]  # gamma psi, as the canonical gate has it
    powers = (noise.flatten(1) @ linear).exp()
    close(gate, powers / powers.mean(1, keepdim=True))
    close(gate.mean(1), torch.ones(16))  # eq. samplewise_meanone
    assert bool((gate > 0).all())


def test_app_norm_the_two_normalizations_differ_by_more_than_a_constant():
    """Sitewise means of the sample-wise gate are not one: its moment formulas are those of no Wick
    gate.
    """
    noise = normals(4000, 1, 9)
    means = push(chaos("samplewise", gamma=3.0), torch.ones_like(noise), noise).mean(0)
    assert float((means - 1).abs().max()) > 0.1


@pytest.mark.parametrize("grid", [(7,), (5, 4), (3, 5, 4)])
def test_app_theory_a_field_of_a_base_resolution_is_resized(grid):
    """Implementation note 2: the log-field is resized, so its kernel is resized on both sides."""
    base = tuple((side + 1) // 2 for side in grid)
    resize = reduce(torch.kron, [_linear_resize(m, n) for m, n in zip(base, grid, strict=True)])
    kernel = resize @ green(base) @ resize.T
    noise = basis(base)
    for strength, scale in (
        ({"gamma": GAMMA, "beta": BETA}, TAU),
        ({"log_std": 0.7}, 0.49 / float(kernel.diagonal().mean())),
    ):
        gate = GaussianChaos(**strength, realization="wick", base_size=list(base))
        logs = push(gate, torch.ones(1, 1, *grid, dtype=torch.float64), noise).log().flatten(1)
        linear = logs[1:] - logs[0]
        close(linear.T @ linear, scale * kernel)
        close(logs[0], -0.5 * scale * kernel.diagonal())


def _linear_resize(m, n):
    """Linear interpolation (n, m) between centers of m cells, constant beyond the outer ones."""
    matrix = torch.zeros(n, m, dtype=torch.float64)
    for i in range(n):
        at = min(max((i + 0.5) * m / n - 0.5, 0.0), m - 1.0)
        low = min(int(at), max(m - 2, 0))
        matrix[i, low] += 1 - (at - low)
        matrix[i, min(low + 1, m - 1)] += at - low
    return matrix


def test_app_theory_channels_may_have_gates_of_their_own():
    """Implementation note 1; and note 3: no noise at inference."""
    noise, h = normals(4, 3, 3, 4), positive_maps(4, 3, 3, 4)
    found = push(chaos("samplewise", channels="independent"), h, noise)
    for c in range(3):
        close(found[:, c : c + 1], push(chaos("samplewise"), h[:, c : c + 1], noise[:, c : c + 1]))
    assert torch.equal(chaos("samplewise").eval()(h), h)


@pytest.mark.parametrize(
    "make",
    [
        lambda part: chaos("samplewise", gamma=part * GAMMA),
        lambda part: chaos("wick", gamma=part * GAMMA),
        lambda part: SignedCorrelated(part * 0.4),
        lambda part: Dropout(part * 0.4, mask="site"),
        lambda part: DropBlock(part * 0.4),
    ],
    ids=["samplewise", "wick", "signed", "dropout", "dropblock"],
)
def test_a_schedule_scales_the_strength(make):
    """Not in the paper, but every statement must hold at the strength that a schedule leaves."""
    half, weaker, h = make(1.0), make(0.5), positive_maps(8, 1, 3, 4)
    half.factor = torch.tensor(0.5, dtype=torch.float64)
    noise = normals(8, 1, 3, 4)
    if isinstance(half, Dropout | DropBlock):
        noise = torch.special.ndtr(noise)
    close(push(half, h, noise), push(weaker, h, noise), 1e-6)
    close(half.expected_energy(h), weaker.expected_energy(h), 0.02)


def test_dropout_drops_single_numbers_or_whole_sites():
    h, noise = positive_maps(2, 3, 3, 4), torch.special.ndtr(normals(2, 3, 3, 4))
    close(push(Dropout(0.4), h, noise), h * (noise >= 0.4) / 0.6, 1e-6)
    sites = noise[:, :1]
    close(push(Dropout(0.4, mask="site"), h, sites), h * (sites >= 0.4) / 0.6, 1e-6)
    found = push(DropBlock(0.4, channels="independent"), h, noise)
    for c in range(3):  # blocks of its own for every channel, as if it were alone
        close(found[:, c : c + 1], push(DropBlock(0.4), h[:, c : c + 1], noise[:, c : c + 1]))


def test_sec_main_imagenet_gaussian_baselines_have_the_stated_noise():
    """Additive noise relative to the features: iid for every channel, or one correlated field for
    all.
    """
    h, sigma = positive_maps(1, 2, 3, 4), 0.4
    rms = float(h.square().mean().sqrt())
    kernel = green((3, 4)) / green((3, 4)).diagonal().mean()
    iid, correlated = IIDGaussian(sigma), CorrelatedGaussian(sigma)
    noise = normals(3, 2, 3, 4)
    close(push(iid, h, noise), h + sigma * rms * noise)
    moved = (push(correlated, h, basis((3, 4))) - h).flatten(2)
    assert not moved[0].any()
    close(moved[:, 0], moved[:, 1])
    close(moved[1:, 0].T @ moved[1:, 0], (sigma * rms) ** 2 * kernel)
    for gate, shape in ((iid, (1, 2, 3, 4)), (correlated, (1, 1, 3, 4))):
        leaf = h.clone().requires_grad_()
        push(gate, leaf, normals(*shape)).sum().backward()

        assert torch.equal(leaf.grad, torch.ones_like(h))  # the noise passes no gradient
        close(gate.expected_energy(h), sigma**2 * h.square().sum())


def test_sec_main_imagenet_matched_baselines_inject_the_energy_of_the_gate():
    """Exactly, on features of uneven strength: from a basis of the noise."""
    grid, partner = (3, 4), chaos("wick")
    h = positive_maps(1, 1, *grid)
    target = (h.square().flatten() * (TAU * green(grid).diagonal()).expm1()).sum()
    close(partner.expected_energy(h), target)
    for kind in (IIDGaussian, CorrelatedGaussian, SignedCorrelated, IIDLogNormal):
        values = push(kind(match=partner), h, basis(grid))
        if kind is IIDLogNormal:  # the log-gate is affine in the noise, with mean one
            variance = (values / values[:1]).log().square().sum(0)
            close((h[0].square() * variance.expm1()).sum(), target)
        else:
            close((values - values[:1]).square().sum(), target)


def test_a_custom_gate_reports_the_energy_that_it_injects():
    class Doubled(Gate):
        def perturb(self, h, noise):
            return 2 * h

    h = positive_maps(3, 2, 3, 4)
    close(Doubled().expected_energy(h), h.square().flatten(1).sum(1), 1e-6)
