"""The canonical gate and its injection: moments, strength, expansion, residual form (sec. gff-to-chaos, injection)."""

import math

import numpy as np
import torch
from torch import Tensor

from chaosgate.compat.log_ratio import random_pairs
from chaosgate.compat.verify.deployed import deployment
from chaosgate.compat.verify.finding import SINGLE, Finding, exact, means, never, vanishes
from chaosgate.compat.verify.subject import LogAffine, Subject
from chaosgate.field import (
    beta_from_epsilon,
    epsilon_from_beta,
    gamma_from_tau,
    log_std_from_tau,
    tau_from_gamma,
    tau_from_log_std,
)
from chaosgate.field.white import Noise
from chaosgate.gate import (
    CorrelatedGaussian,
    Gate,
    IIDGaussian,
    IIDLogNormal,
    SignedCorrelated,
    gate_kernel,
    small_gamma_expansion,
    wick_moment,
)

MODERATE = 0.5
"""Largest log_std at which gates are averaged: beyond it the mean of a product hangs on events too rare to draw."""

ENERGY_DRAWS, ESTIMATE = 1 << 15, 0.1
"""Draws for an energy that has no closed form, and the relative error allowed to it: ten standard deviations."""


def maxent_gff_chaos(s: Subject) -> list[Finding]:
    """Positive, mean one at every site, and all moments of the Wick gate."""
    gate, n, covariance = s.log_affine(s.wick()), s.sites, s.reference.covariance
    tuples: list[tuple[int, ...]] = [(x,) for x in range(n)] + [(x, (3 * x + 1) % n) for x in range(n)]
    tuples += [(x, x, (x + 1) % n) for x in range(0, n, 3)] + [(x, (x + 2) % n, (5 * x) % n, x) for x in range(0, n, 3)]
    sums = [sum(float(covariance[a, b]) for i, a in enumerate(sites) for b in sites[:i]) for sites in tuples]
    predicted = s.gamma**2 * torch.tensor(sums, dtype=torch.float64)
    found = torch.tensor([gate.log_moment(sites) for sites in tuples], dtype=torch.float64)
    formula = torch.stack([wick_moment(covariance, sites, s.gamma).log() for sites in tuples])
    return [
        exact("log-moments of up to four sites", predicted, found),
        exact("wick_moment", predicted, formula),
        vanishes("what is not affine in the log-gate", gate.residual),
        *_sampled_moments(s),
    ]


def _sampled_moments(s: Subject) -> list[Finding]:
    gamma = min(abs(s.gamma), s.gamma_at(MODERATE))
    pairs = random_pairs(s.sites, s.sites, Noise(s.key("moment pairs")))
    sums = torch.zeros(s.sites, dtype=torch.float64), torch.zeros(len(pairs), dtype=torch.float64)
    below = 0
    for gates in s.sample(s.wick(gamma), torch.ones(1, *s.grid), "moments"):
        flat = gates.flatten(1).double()
        below += int((flat <= 0).sum())
        sums[0].add_(flat.sum(0))
        sums[1].add_((flat[:, pairs[:, 0]] * flat[:, pairs[:, 1]]).sum(0))
    scaled = gamma**2 * s.reference.covariance
    single, couple = scaled.diagonal(), scaled[pairs[:, 0], pairs[:, 1]]
    log_variance = single[pairs[:, 0]] + single[pairs[:, 1]] + 2 * couple  # a product of two gates is log-normal again
    kernel = couple.exp()
    one = means("sampled mean", 1.0, sums[0] / s.draws, single.expm1().sqrt(), s.draws, _log_normal_skewness(single))
    two = means(
        "sampled two-point kernel",
        kernel,
        sums[1] / s.draws,
        kernel * log_variance.expm1().sqrt(),
        s.draws,
        _log_normal_skewness(log_variance),
    )
    return [one, two, never("values that are not positive", below, s.draws * s.sites)]


def _log_normal_skewness(log_variance: Tensor) -> Tensor:
    return (log_variance.exp() + 2) * log_variance.expm1().sqrt()


def effective_tau(s: Subject) -> list[Finding]:
    """Strengths of equal tau give the same gate from the same noise, however they are said."""
    noise, epsilon = s.white("effective tau", 64), s.reference.epsilon
    ones = torch.ones_like(noise)
    findings = []
    for realization in ("wick", "samplewise"):
        ways = (
            {"gamma": s.gamma, "beta": s.beta},
            {"gamma": 2 * s.gamma, "beta": 4 * s.beta},
            {"gamma": s.gamma / 3, "epsilon": 9 * epsilon},
            {"gamma": s.gamma / math.sqrt(s.beta)},
            {"log_std": s.log_std},
        )
        makes = [s.makers.chaos(operator=s.operator, realization=realization, **way) for way in ways]
        gates = [s.apply(gate, ones, noise) for gate in makes]
        for way, gate in zip(ways[1:4], gates[1:4], strict=True):
            findings.append(exact(f"{realization} gate at {' and '.join(way)}", gates[0], gate))
        mirrored = s.apply(makes[4], ones, noise if s.gamma > 0 else -noise)  # log_std has no sign to say
        findings.append(exact(f"{realization} gate at log_std", gates[0], mirrored))
    scaled = s.tau * s.reference.green
    return [
        exact("log-kernel tau G", scaled, s.log_affine(s.wick()).log_kernel),
        exact("gate_kernel", scaled, gate_kernel(s.reference.covariance, s.gamma).log()),
        *_conversions(s),
        *findings,
    ]


def _conversions(s: Subject) -> list[Finding]:
    """The units of strength, as functions of the library and as gates report them."""
    r, op, grid = s.reference, s.operator, s.grid
    said = {"gamma": s.gamma, "beta": s.beta, "tau": s.tau, "log_std": s.log_std}
    nominal = s.wick().nominal(grid)
    return [
        exact("tau_from_gamma", s.tau, tau_from_gamma(s.gamma, s.beta)),
        exact("gamma_from_tau", abs(s.gamma), gamma_from_tau(s.tau, s.beta)),
        exact("beta_from_epsilon", s.beta, beta_from_epsilon(op, grid, r.epsilon)),
        exact("epsilon_from_beta", r.epsilon, epsilon_from_beta(op, grid, s.beta)),
        exact("tau_from_log_std", s.tau, tau_from_log_std(op, grid, s.log_std)),
        exact("log_std_from_tau", s.log_std, log_std_from_tau(op, grid, s.tau)),
        exact("law.tau", s.tau, s.law.tau(s.gamma)),
        exact("law.log_std", s.log_std, s.law.log_std(s.gamma)),
        *(exact(f"{name} that the gate reports", value, nominal.get(name, math.nan)) for name, value in said.items()),
    ]


def small_gamma(s: Subject) -> list[Finding]:
    """The remainder of the second-order expansion in L2, by Gauss-Hermite quadrature, and that of the kernel."""
    findings = []
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(48))
    weights = weights / weights.sum()
    covariance = s.reference.covariance
    free = (covariance.diagonal() > 1e-9 * covariance.max()).nonzero()[:, 0]  # a pinned site has no remainder
    sites = free[[0, len(free) // 2, -1]]
    norms = []
    for halving in range(3):
        gamma = s.gamma_at(0.2) / 2**halving
        gate = s.wick(gamma)
        affine = s.log_affine(gate)
        norms.append(_remainder_norms(s, gate, affine, gamma, sites, nodes, weights))
        small = gamma**2 * covariance
        series = torch.stack([small.diagonal()[sites] ** k / math.factorial(k) for k in range(3, 16)]).sum(0)
        findings.append(exact(f"L2 remainder at log_std {0.2 / 2**halving:g}", series.sqrt(), norms[-1]))
        second = sum(small**k / math.factorial(k) for k in range(2, 16)) / gamma**4
        findings.append(exact("kernel remainder / gamma^4", second, (affine.log_kernel.expm1() - small) / gamma**4))
    order = (norms[1] / norms[2]).log2()
    return [Finding("order of the L2 remainder", 3.0, float(order.min()), error=_off(order, 3.0)), *findings]


def _off(order: Tensor, predicted: float) -> float:
    """Zero if the measured order is the predicted one, up to what the next order leaves at this strength."""
    gap = float((order - predicted).abs().max())
    return 0.0 if gap < 0.01 else gap


def _remainder_norms(
    s: Subject, gate: Gate, affine: LogAffine, gamma: float, sites: Tensor, nodes: Tensor, weights: Tensor
) -> Tensor:
    norms = []
    for x in sites.tolist():
        direction = affine.linear[:, x] / affine.linear[:, x].norm()
        noise = (nodes[:, None] * direction).view(-1, 1, *s.grid)
        xi = s.apply(gate, torch.ones_like(noise), noise).flatten(1)[:, x]
        v = s.reference.covariance[x, x]
        expansion = small_gamma_expansion(math.copysign(1.0, gamma) * nodes * v.sqrt(), v, abs(gamma))
        norms.append((weights * (xi - expansion).square()).sum().sqrt())
    return torch.stack(norms)


def injection(s: Subject) -> list[Finding]:
    """A gate multiplies every channel of a site alike; the residual form mixes it with one; energies are as stated."""
    noise, maps = s.white("injection", 8), s.maps("injection", 24).view(8, 3, *s.grid)
    samplewise = s.samplewise()
    gate = s.apply(samplewise, torch.ones_like(noise), noise)
    half = s.makers.chaos(operator=s.operator, gamma=s.gamma, beta=s.beta, realization="samplewise", alpha=0.3)
    awake = [g for g in (samplewise, s.dropout(), s.drop_block()) if not torch.equal(g.eval()(maps), maps)]
    ones = torch.ones_like(noise)
    single = s.apply(s.samplewise(), ones.float(), noise.float())
    return [
        exact("product with the gate, channel by channel", maps * gate, s.apply(s.samplewise(), maps, noise)),
        exact("residual form at alpha 0.3", maps * (1 + 0.3 * (gate - 1)), s.apply(half, maps, noise)),
        exact("gate in single precision", gate, single, 100 * SINGLE),
        never("gates that act in evaluation mode", len(awake), 3),
        *_energies(s, maps),
        *_baselines(s),
        *deployment(s),
    ]


def _energies(s: Subject, maps: Tensor) -> list[Finding]:
    """Expected injected energies: what makes methods comparable."""
    power, deleted = maps.square().sum(1), s.blocks.marginals
    closed = (
        ("the Wick gate", s.wick(), (s.gamma**2 * s.reference.covariance.diagonal()).expm1().view(s.grid)),
        ("dropout", s.dropout(), torch.full(s.grid, (1 - s.q) / s.q, dtype=torch.float64)),
        ("DropBlock", s.drop_block(), deleted / (1 - deleted)),
    )
    findings = [
        exact(f"expected energy of {name}", (power * site).sum((1, 2)), gate.expected_energy(maps))
        for name, gate, site in closed
    ]
    gate = s.makers.chaos(operator=s.operator, gamma=s.gamma_at(MODERATE), beta=s.beta, realization="samplewise")
    drawn = torch.zeros(s.grid, dtype=torch.float64)
    for gates in s.sample(gate, torch.ones(1, *s.grid), "energy", ENERGY_DRAWS):
        drawn += (gates.double() - 1).square().sum((0, 1)) / ENERGY_DRAWS
    predicted = (power * drawn).sum((1, 2))
    part = s.makers.chaos(operator=s.operator, gamma=s.gamma_at(MODERATE), beta=s.beta, realization="wick", alpha=0.3)
    residual = (s.gamma_at(MODERATE) ** 2 * s.reference.covariance.diagonal()).expm1().view(s.grid) * 0.09
    return [
        *findings,
        exact("expected energy of the residual form", (power * residual).sum((1, 2)), part.expected_energy(maps)),
        exact("expected energy of the sample-wise gate", predicted, gate.expected_energy(maps), ESTIMATE),
    ]


def _baselines(s: Subject) -> list[Finding]:
    """The Gaussian baselines and the controls: affine in the noise, of the stated covariance."""
    n, green, sigma = s.sites, s.reference.green, 0.4
    basis = torch.eye(n, dtype=torch.float64).view(n, 1, *s.grid)
    noise, maps = torch.cat([basis, 0 * basis[:1]]), s.maps("baselines", 1)[:, None]
    unit = sigma**2 * green / green.diagonal().mean()
    eye = sigma**2 * torch.eye(n, dtype=torch.float64)
    rms = maps.square().mean()
    findings = []
    for name, gate, covariance, before, after in (
        ("IIDGaussian", IIDGaussian(sigma), rms * eye, maps, lambda out: out),
        ("CorrelatedGaussian", CorrelatedGaussian(sigma, s.operator), rms * unit, maps, lambda out: out),
        ("SignedCorrelated", SignedCorrelated(sigma, s.operator), unit, torch.ones_like(maps), lambda out: out),
        ("IIDLogNormal", IIDLogNormal(sigma), eye, torch.ones_like(maps), torch.log),
    ):
        out = after(s.apply(gate, before.expand(n + 1, 1, *s.grid), noise)).flatten(1)
        linear, offset = out[:-1] - out[-1], out[-1]
        centre = after(before).flatten() - (0.5 * sigma**2 if name == "IIDLogNormal" else 0.0)
        findings.append(exact(f"covariance of {name}", covariance, linear.T @ linear))
        findings.append(exact(f"centre of {name}", centre, offset, scale=1.0))
    return findings
