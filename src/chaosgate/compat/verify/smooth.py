"""What the sample-wise gate does to positive maps: log-ratios, rankings, roughness (paper, sec. geometry_theory)."""

import math

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import (
    all_pairs,
    green_metric,
    log_ratio_covariance,
    log_ratio_deformation,
    log_ratio_variance,
    random_pairs,
    ranking_preserved,
    ranking_probability,
    ranking_tail_bound,
)
from chaosgate.compat.roughness import intrinsic_energy, roughness_budget
from chaosgate.compat.verify.finding import Finding, exact, frequencies, means, never, variances
from chaosgate.compat.verify.subject import Subject
from chaosgate.field.white import Noise
from chaosgate.gate import Gate


def samplewise_logratio(s: Subject) -> list[Finding]:
    """The deformation is a difference of the log-field, so it is Gaussian with a known joint covariance."""
    pairs = random_pairs(s.sites, 200, Noise(s.key("pairs")))
    gate, noise = s.samplewise(), s.white("logratio", 64)
    maps = s.maps("logratio", 64)[:, None]
    deformed = log_ratio_deformation(maps, s.apply(gate, maps, noise), pairs)
    psi = s.law.color(noise).flatten(1)
    linear = s.log_affine(gate, up_to_constant=True).linear
    differences = linear[:, pairs[:, 0]] - linear[:, pairs[:, 1]]
    green = s.operator.green(s.grid)
    metric = green_metric(green, all_pairs(s.sites))
    identity = s.gamma * (psi[:, pairs[:, 0]] - psi[:, pairs[:, 1]])
    return [
        *_sampled_logratios(s),
        exact("deformation = gamma (psi(x) - psi(y))", identity, deformed[:, 0]),
        exact("joint covariance of 200 pairs", log_ratio_covariance(green, pairs, s.tau), differences.T @ differences),
        never("pairs with negative R_G", int((metric < 0).sum()), len(metric)),
    ]


def _sampled_logratios(s: Subject) -> list[Finding]:
    """Variances pair by pair, then all deformations against one site, whitened: unit covariance, kurtosis three."""
    pairs = random_pairs(s.sites, 64, Noise(s.key("sampled pairs")))
    spokes = torch.stack([torch.arange(1, s.sites), torch.zeros(s.sites - 1, dtype=torch.int64)], 1)
    green = s.operator.green(s.grid)
    root = torch.linalg.cholesky(log_ratio_covariance(green, spokes, s.tau))
    maps = s.maps("sampled logratio", 1)
    squares = torch.zeros(len(pairs), dtype=torch.float64)
    products, fourth = torch.zeros_like(root), 0.0
    for gated in s.sample(s.samplewise(), maps, "samplewise_logratio"):
        squares += log_ratio_deformation(maps, gated.double()[:, 0], pairs).square().sum(0)
        white = torch.linalg.solve_triangular(
            root, log_ratio_deformation(maps, gated.double()[:, 0], spokes).T, upper=False
        )
        products += white @ white.T
        fourth += float(white.pow(4).sum())
    rows, columns = torch.triu_indices(len(root), len(root), offset=1)
    values = s.draws * len(root)
    off_diagonal = 1 + products[rows, columns] / s.draws  # one more than the covariance, so that errors are relative
    return [
        variances(
            "sampled variance of log-ratios", log_ratio_variance(green, pairs, s.tau), squares / s.draws, s.draws
        ),
        variances("all pairs together", 1.0, float(products.trace()) / values, values),
        means("independence of whitened log-ratios", 1.0, off_diagonal, 1.0, s.draws),
        means("fourth moment of a Gaussian", 3.0, fourth / values, math.sqrt(96), values, 99 / math.sqrt(96)),
    ]


MARGINS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Log-margins at which rankings are counted, in standard deviations of the log-ratio."""


def margin_maps(s: Subject, margins: Tensor, pair: Tensor, name: str) -> Tensor:
    """Positive maps (k, H, W) in which the first site of the pair is stronger by the given log-margins (k,)."""
    maps = s.maps(name, len(margins)).flatten(1)
    maps[:, pair[0]] = maps[:, pair[1]] * margins.exp()
    return maps.view(-1, *s.grid)


def ranking_stability(s: Subject) -> list[Finding]:
    """Orderings survive with the normal probability of their margin."""
    units = torch.tensor(MARGINS, dtype=torch.float64)
    green = s.operator.green(s.grid)
    findings = []
    for pair in (torch.tensor([0, s.sites - 1]), torch.tensor([s.sites // 2, s.sites // 2 - 1])):
        variance = log_ratio_variance(green, pair[None], s.tau)
        margins = units * variance.sqrt()
        counts = count_kept(
            s, s.samplewise(), margin_maps(s, margins, pair, "ranking"), pair, f"ranking {pair.tolist()}"
        )
        name = f"kept orderings of sites {int(pair[0])} and {int(pair[1])}"
        findings.append(frequencies(name, ranking_probability(margins, variance), counts, s.draws))
        lost = 1 - ranking_probability(margins, variance)
        above = int((lost > ranking_tail_bound(margins, variance)).sum())
        findings.append(never("losses above the tail bound", above, len(margins)))
    return findings


def count_kept(s: Subject, gate: Gate, maps: Tensor, pair: Tensor, name: str) -> Tensor:
    """In how many draws each map (k, H, W) keeps the ordering of the pair, shape (k,)."""
    counts = torch.zeros(len(maps), dtype=torch.int64)
    before = maps.float()
    for gated in s.sample(gate, maps, name):
        counts += ranking_preserved(before, gated, pair[None])[..., 0].sum(0)
    return counts


def samplewise_intrinsic(s: Subject) -> list[Finding]:
    """The gate adds a fixed expected roughness to any log-map."""
    return [
        _sampled_roughness(s, s.maps("roughness", 3), "samplewise_intrinsic"),
        exact("added roughness gamma^2 eps_int", _budget(s), _pushed_budget(s)),
    ]


def _budget(s: Subject) -> float:
    return s.gamma**2 * roughness_budget(s.covariance, s.graph)


def _pushed_budget(s: Subject) -> float:
    """Half the trace of L_int times the covariance of the log-gate, read off the module."""
    linear = s.log_affine(s.samplewise(), up_to_constant=True).linear
    return float(intrinsic_energy(linear.view(-1, *s.grid), s.graph).sum())


def _sampled_roughness(s: Subject, maps: Tensor, name: str) -> Finding:
    """Mean roughness of gated log-maps; its variance is that of a quadratic form of a Gaussian vector."""
    draws = s.draws // 4
    total = torch.zeros(len(maps), dtype=torch.float64)
    for gated in s.sample(s.samplewise(), maps, name, draws):
        total += intrinsic_energy(gated.double().log(), s.graph).sum(0)
    laplacian, logs = s.graph.laplacian(), maps.log().flatten(1)
    spread = s.gamma**2 * laplacian @ s.covariance
    tilt = torch.einsum("kx,xy,ky->k", logs @ spread, laplacian, logs)
    deviation = (0.5 * float((spread * spread.T).sum()) + tilt).sqrt()
    predicted = intrinsic_energy(maps.log(), s.graph) + _budget(s)
    return means("sampled roughness of gated log-maps", predicted, total / draws, deviation, draws)


def scale_compatibility(s: Subject) -> list[Finding]:
    """Rescaling a map changes neither the deformation nor the added roughness."""
    pairs = random_pairs(s.sites, 100, Noise(s.key("scale pairs")))
    maps, noise = s.maps("scale", 64)[:, None], s.white("scale", 64)
    gate = s.samplewise()
    findings = []
    for scale in (1e-3, 1e3):
        gated, rescaled = s.apply(gate, maps, noise), s.apply(gate, scale * maps, noise)
        once, again = (log_ratio_deformation(*both, pairs) for both in ((maps, gated), (scale * maps, rescaled)))
        findings.append(exact(f"deformation of the map times {scale:g}", once, again))
        once, again = (
            intrinsic_energy(after.log(), s.graph) - intrinsic_energy(before.log(), s.graph)
            for before, after in ((maps, gated), (scale * maps, rescaled))
        )
        findings.append(exact(f"roughness added to the map times {scale:g}", once, again))
    return findings


def perfect_coherence(s: Subject) -> list[Finding]:
    """A constant map gets exactly the budget."""
    constant = torch.full((1, *s.grid), math.exp(1.3), dtype=torch.float64)
    return [
        _sampled_roughness(s, constant, "gch_perfect_coherence"),
        exact("roughness of a gated constant", _budget(s), _pushed_budget(s)),
    ]
