"""The design layer: maximum entropy, the Green kernel, the Wick gate and its moments (sec. gch, app. green_kernel)."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from chaosgate.compat.log_ratio import random_pairs
from chaosgate.compat.verify.finding import EXACT, Finding, exact, means, never, vanishes, variances
from chaosgate.compat.verify.subject import LogAffine, Subject
from chaosgate.field import (
    Anisotropic,
    DirichletLaplacian,
    Identity,
    Massive,
    MaxEntLaw,
    Operator,
    gaussian_entropy_gap,
    laplace_entropy_gap,
    tau_from_log_std,
)
from chaosgate.field.white import Noise
from chaosgate.gate import Gate, Wick, gate_kernel, small_gamma_expansion, wick_moment

MODERATE = 0.5
"""Largest log_std at which gates are averaged: beyond it the mean of a product hangs on events too rare to draw."""


def maxent_logfield(s: Subject) -> list[Finding]:
    """The optimiser, its energy, its entropy, and the gap to other feasible laws."""
    gate = s.makers.chaos(operator=s.operator, gamma=s.gamma, epsilon=s.law.epsilon, realization="wick")
    covariance = s.log_affine(gate).covariance / s.gamma**2
    q = s.operator.matrix(s.grid)
    spectrum = torch.linalg.eigvalsh(covariance)[-s.law.rank :]
    entropy = 0.5 * float(s.law.rank * math.log(2 * math.pi * math.e) + spectrum.log().sum())
    gaps = [gaussian_entropy_gap(s.law, other) for other in _feasible(s)] + [laplace_entropy_gap(s.law)]
    return [
        exact("mean energy of the log-field", s.law.epsilon, 0.5 * float((q * covariance).sum())),
        exact("its covariance inverts (n / 2 eps) Q", q, s.law.beta * q @ covariance @ q),
        exact("its entropy", s.law.entropy(), entropy),
        *(exact("entropy gap = divergence", gap.kl, gap.gap) for gap in gaps),
        never("feasible laws of larger entropy", sum(g.gap < -EXACT for g in gaps), len(gaps)),
        _energy(s, gate, "maxent_logfield"),
    ]


def _energy(s: Subject, gate: Gate, name: str) -> Finding:
    r"""Sampled energy of the log-field: :math:`2\beta\,\mathcal E(\psi)` is chi-square with rank(Q) degrees."""
    total = 0.0
    draws = s.draws // 4
    shift = 0.5 * s.gamma**2 * s.law.variance
    for gates in s.sample(gate, torch.ones(1, *s.grid), name, draws):
        psi = (gates.double().log()[:, 0] + shift) / s.gamma
        total += float(s.operator.energy(psi).sum())
    degrees = draws * s.law.rank
    return variances("sampled mean energy", s.law.epsilon, s.law.rank * total / degrees, degrees)


def _feasible(s: Subject) -> list[Tensor]:
    """Covariances of the right mean energy that are not the optimal one."""
    q, optimal = s.operator.matrix(s.grid), s.law.covariance
    white = q @ s.operator.green(s.grid)  # the projection on the free directions
    weights = torch.linspace(0.5, 1.5, s.sites, dtype=torch.float64)
    bent = white @ (optimal * weights * weights[:, None]) @ white.T
    candidates = [(matrix + matrix.T) / 2 for matrix in (white, bent)]
    return [matrix * (2 * s.law.epsilon / float((q * matrix).sum())) for matrix in candidates]


def green_forcing(s: Subject) -> list[Finding]:
    """The Dirichlet instance, whatever operator the run is about: the matrix is built here, edge by edge."""
    dirichlet = replace(s, operator=DirichletLaplacian())
    height, width = s.grid
    epsilon = dirichlet.law.epsilon
    gate = s.makers.chaos(operator=dirichlet.operator, gamma=s.gamma, epsilon=epsilon, realization="wick")
    covariance = dirichlet.log_affine(gate).covariance / s.gamma**2
    scale = s.sites / (2 * epsilon)
    sine = [4 * torch.sin(torch.pi * torch.arange(1.0, m + 1).double() / (2 * (m + 1))) ** 2 for m in (height, width)]
    eigenvalues = (sine[0][:, None] + sine[1]).flatten().sort().values
    eye = torch.eye(s.sites, dtype=torch.float64)
    return [
        exact("covariance times (n / 2 eps) L_U", eye, scale * _dirichlet_by_edges(height, width) @ covariance),
        exact("spectrum of the precision", eigenvalues, torch.linalg.eigvalsh(covariance).flip(0).reciprocal() / scale),
        _site_variances(dirichlet, gate),
    ]


def _dirichlet_by_edges(height: int, width: int) -> Tensor:
    matrix = torch.zeros(height * width, height * width, dtype=torch.float64)
    for i in range(height):
        for j in range(width):
            x = i * width + j
            for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                matrix[x, x] += 1
                if 0 <= a < height and 0 <= b < width:
                    matrix[x, a * width + b] -= 1
    return matrix


def _site_variances(s: Subject, gate: Gate) -> Finding:
    total = torch.zeros(s.grid, dtype=torch.float64)
    shift = 0.5 * s.gamma**2 * s.law.variance
    for gates in s.sample(gate, torch.ones(1, *s.grid), "green_forcing"):
        total += ((gates.double().log()[:, 0] + shift) / s.gamma).square().sum(0)
    return variances("sampled site variances of the log-field", s.law.variance, total / s.draws, s.draws)


def maxent_gff_chaos(s: Subject) -> list[Finding]:
    """Positive, mean one at every site, and all moments of the Wick gate."""
    gate = s.log_affine(s.wick())
    n = s.sites
    tuples: list[tuple[int, ...]] = [(x,) for x in range(n)] + [(x, (3 * x + 1) % n) for x in range(n)]
    tuples += [(x, x, (x + 1) % n) for x in range(0, n, 3)] + [(x, (x + 2) % n, (5 * x) % n, x) for x in range(0, n, 3)]
    predicted = torch.stack([wick_moment(s.covariance, sites, s.gamma).log() for sites in tuples])
    found = torch.tensor([gate.log_moment(sites) for sites in tuples], dtype=torch.float64)
    return [
        exact("log-moments of up to four sites", predicted, found),
        vanishes("what is not affine in the log-gate", gate.residual),
        *_sampled_moments(s),
    ]


def _sampled_moments(s: Subject) -> list[Finding]:
    gamma = min(abs(s.gamma), math.sqrt(tau_from_log_std(s.operator, s.grid, MODERATE) * s.beta))
    pairs = random_pairs(s.sites, s.sites, Noise(s.key("moment pairs")))
    sums = torch.zeros(s.sites, dtype=torch.float64), torch.zeros(len(pairs), dtype=torch.float64)
    below = 0
    for gates in s.sample(s.wick(gamma), torch.ones(1, *s.grid), "moments"):
        flat = gates.flatten(1).double()
        below += int((flat <= 0).sum())
        sums[0].add_(flat.sum(0))
        sums[1].add_((flat[:, pairs[:, 0]] * flat[:, pairs[:, 1]]).sum(0))
    scaled = gamma**2 * s.covariance
    single = scaled.diagonal()
    couple = scaled[pairs[:, 0], pairs[:, 1]]
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
    noise = s.white("effective tau", 64)
    ones = torch.ones_like(noise)
    findings = []
    for realization in ("wick", "samplewise"):
        ways = (
            {"gamma": s.gamma, "beta": s.beta},
            {"gamma": 2 * s.gamma, "beta": 4 * s.beta},
            {"gamma": s.gamma / 3, "epsilon": 9 * s.law.epsilon},
            {"log_std": s.log_std},
        )
        makes = [s.makers.chaos(operator=s.operator, realization=realization, **way) for way in ways]
        gates = [s.apply(gate, ones, noise) for gate in makes]
        for way, gate in zip(ways[1:3], gates[1:3], strict=True):
            findings.append(exact(f"{realization} gate at {' and '.join(way)}", gates[0], gate))
        mirrored = s.apply(makes[3], ones, noise if s.gamma > 0 else -noise)  # log_std has no sign to say
        findings.append(exact(f"{realization} gate at log_std", gates[0], mirrored))
    kernel = gate_kernel(s.operator.green(s.grid), math.sqrt(s.tau))
    return [exact("kernel exp(tau G)", kernel, s.log_affine(s.wick()).log_kernel.exp()), *findings]


def small_gamma(s: Subject) -> list[Finding]:
    """The remainder of the second-order expansion in L2, by Gauss-Hermite quadrature, and that of the kernel."""
    findings = []
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(48))
    weights = weights / weights.sum()
    variance = s.covariance.diagonal()
    sites = torch.tensor([0, s.sites // 2, s.sites - 1])
    norms, kernels = [], []
    for halving in range(3):
        gamma = math.sqrt(tau_from_log_std(s.operator, s.grid, 0.2) * s.beta) / 2**halving
        gate = s.wick(gamma)
        affine = s.log_affine(gate)
        norms.append(_remainder_norms(s, gate, affine, gamma, sites, nodes, weights))
        small = gamma**2 * s.covariance
        kernels.append((affine.log_kernel.expm1() - small) / gamma**4)
        series = torch.stack([(gamma**2 * variance[sites]) ** k / math.factorial(k) for k in range(3, 16)]).sum(0)
        findings.append(exact(f"L2 remainder at log_std {0.2 / 2**halving:g}", series.sqrt(), norms[-1]))
        findings.append(exact("kernel remainder / gamma^4", (small.expm1() - small) / gamma**4, kernels[-1]))
    order = (norms[1] / norms[2]).log2()
    return [Finding("order of the L2 remainder", 3.0, float(order.min()), error=_beyond(order, 3.0)), *findings]


def _beyond(order: Tensor, predicted: float) -> float:
    """Zero if the measured order is at least the predicted one, less what the next order leaves at this strength."""
    return 0.0 if bool((order > predicted - 0.01).all()) else float((predicted - order).max())


def _remainder_norms(
    s: Subject, gate: Gate, affine: LogAffine, gamma: float, sites: Tensor, nodes: Tensor, weights: Tensor
) -> Tensor:
    norms = []
    for x in sites.tolist():
        direction = affine.linear[:, x] / affine.linear[:, x].norm()
        noise = (nodes[:, None] * direction).view(-1, 1, *s.grid)
        xi = s.apply(gate, torch.ones_like(noise), noise).flatten(1)[:, x]
        v = s.covariance[x, x]
        expansion = small_gamma_expansion(math.copysign(1.0, gamma) * nodes * v.sqrt(), v, abs(gamma))
        norms.append((weights * (xi - expansion).square()).sum().sqrt())
    return torch.stack(norms)


def operator_substitution(s: Subject) -> list[Finding]:
    """Another operator, another kernel: its inverse, through the general mechanism."""
    epsilon = s.law.epsilon
    operators: list[Operator] = [Massive(s.operator, 0.5), Anisotropic(2.0, 0.5), Identity()]
    if s.law.rank == s.sites:
        operators.insert(0, s.operator)
    findings = []
    for operator in operators:
        gate = s.makers.mechanism(MaxEntLaw(operator, s.grid, epsilon=epsilon), Wick(s.gamma))
        kernel = torch.linalg.inv(operator.matrix(s.grid)) * (2 * epsilon / s.sites)
        findings.append(exact(f"log-kernel of {operator}", s.gamma**2 * kernel, s.log_affine(gate).log_kernel))
    return findings
