"""What the sample-wise gate does to positive maps: log-ratios, rankings, roughness (paper, sec. geometry_theory)."""

import math
from itertools import combinations

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import (
    all_pairs,
    green_metric,
    lift,
    log_margin,
    log_ratio_covariance,
    log_ratio_deformation,
    log_ratio_variance,
    positive_share,
    random_pairs,
    ranking_preserved,
    ranking_probability,
    ranking_tail_bound,
)
from chaosgate.compat.roughness import grid_graph, intrinsic_energy, roughness_budget
from chaosgate.compat.verify.finding import SINGLE, Finding, exact, frequencies, means, never, variances
from chaosgate.compat.verify.reference import grid_matrix, normal_cdf
from chaosgate.compat.verify.subject import Subject
from chaosgate.field.white import Noise
from chaosgate.gate import Gate


def samplewise_meanone(s: Subject) -> list[Finding]:
    """The gate is positive, has spatial mean one in every sample, and is no other multiple of the exponential."""
    gate, noise = s.samplewise(), s.white("mean one", 256)
    xi = s.apply(gate, torch.ones_like(noise), noise).flatten(1)
    logs = noise.flatten(1) @ s.log_affine(gate, up_to_constant=True).linear  # gamma psi up to a spatial constant
    powers = (logs - logs.amax(1, keepdim=True)).exp()
    off, below, draws = 0.0, 0, s.draws // 16
    for gates in s.sample(gate, torch.ones(1, *s.grid), "mean one", draws):
        off = max(off, float((gates.double().mean((-2, -1)) - 1).abs().max()))
        below += int((gates <= 0).sum())
    return [
        exact("spatial mean of every sample", 1.0, xi.mean(1)),
        exact("exp(gamma psi) over its spatial mean", powers / powers.mean(1, keepdim=True), xi),
        exact("spatial mean in single precision", 1.0, 1.0 + off, SINGLE),
        never("values that are not positive", below, draws * s.sites),
    ]


def samplewise_logratio(s: Subject) -> list[Finding]:
    """The deformation is a difference of the log-field, so it is Gaussian with a known joint covariance."""
    r = s.reference
    pairs = random_pairs(s.sites, 200, Noise(s.key("pairs")))
    gate, noise = s.samplewise(), s.white("logratio", 64)
    maps = s.maps("logratio", 64)[:, None]
    deformed = log_ratio_deformation(maps, s.apply(gate, maps, noise), pairs)
    linear = s.log_affine(gate, up_to_constant=True).linear
    signs = r.incidence(pairs)
    joint = s.tau * signs @ r.green @ signs.T
    every = all_pairs(s.sites)
    return [
        *_sampled_logratios(s),
        exact("deformation = gamma (psi(x) - psi(y))", noise.flatten(1) @ linear @ signs.T, deformed[:, 0]),
        exact("joint covariance of 200 pairs", joint, signs @ linear.T @ linear @ signs.T),
        exact("log_ratio_covariance", joint, log_ratio_covariance(r.green, pairs, s.tau)),
        exact("log_ratio_variance", joint.diagonal(), log_ratio_variance(r.green, pairs, s.tau)),
        exact("green_metric of all pairs", r.metric(every), green_metric(r.green, every)),
        exact("all_pairs", torch.tensor(list(combinations(range(s.sites), 2))), every, scale=1),
        *_positive_domain(maps),
        never("pairs with negative R_G", int((r.metric(every) < 0).sum()), len(every)),
    ]


def _positive_domain(maps: Tensor) -> list[Finding]:
    """What is done to maps with zeros, so that they have logarithms."""
    clipped = torch.where(maps > 1, maps, 0.0)
    share = torch.tensor([float((one > 0).sum()) / one.numel() for one in clipped])
    lifted = torch.stack([one + 0.2 * one.sum() / one.numel() for one in clipped])
    return [exact("positive_share", share, positive_share(clipped), SINGLE), exact("lift", lifted, lift(clipped, 0.2))]


def _sampled_logratios(s: Subject) -> list[Finding]:
    """Variances pair by pair, then all deformations against one site, whitened: unit covariance, kurtosis three."""
    r = s.reference
    pairs = random_pairs(s.sites, 64, Noise(s.key("sampled pairs")))
    spokes = torch.stack([torch.arange(1, s.sites), torch.zeros(s.sites - 1, dtype=torch.int64)], 1)
    signs = r.incidence(spokes)
    root = torch.linalg.cholesky(s.tau * signs @ r.green @ signs.T)
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
        variances("sampled variance of log-ratios", s.tau * r.metric(pairs), squares / s.draws, s.draws),
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
    """Orderings survive with the normal probability of their margin; the tail bound has a sharp exponent."""
    units = torch.tensor(MARGINS, dtype=torch.float64)
    findings = []
    for pair in (torch.tensor([0, s.sites - 1]), torch.tensor([s.sites // 2, s.sites // 2 - 1])):
        deviation = (s.tau * s.reference.metric(pair[None])).sqrt()
        margins = units * deviation
        maps = margin_maps(s, margins, pair, "ranking")
        counts = count_kept(s, s.samplewise(), maps, pair, f"ranking {pair.tolist()}")
        name = f"kept orderings of sites {int(pair[0])} and {int(pair[1])}"
        findings.append(frequencies(name, normal_cdf(units), counts, s.draws))
        findings.append(
            exact("ranking_probability", normal_cdf(units), ranking_probability(margins, deviation.square()))
        )
        findings.append(exact("log_margin", margins, log_margin(maps, pair.flip(0)[None])[:, 0]))
    steps = torch.tensor([*MARGINS, 5.0, 8.0, 30.0], dtype=torch.float64)
    bound = ranking_tail_bound(steps, torch.ones_like(steps))
    lost = normal_cdf(-steps)
    return [
        *findings,
        _wick_ranking(s),
        exact("log of the tail bound", -0.5 * steps.square(), bound.log()),
        never("losses above the tail bound", int((lost > bound).sum()), len(steps)),
        never("margins at which a bound of exponent 1.02 would hold", int(lost[-1] <= bound[-1] ** 1.02), 1),
    ]


def _wick_ranking(s: Subject) -> Finding:
    """The correction of the Wick gate differs between sites, and tilts the orderings of pairs by that difference."""
    pairs = random_pairs(s.sites, 32, Noise(s.key("wick ranking")))
    gate, (first, second) = s.log_affine(s.wick()), pairs.T
    deviation = (gate.linear[:, first] - gate.linear[:, second]).norm(dim=0)
    site = s.reference.covariance.diagonal()
    kept = normal_cdf((0.3 + gate.offset[first] - gate.offset[second]) / deviation)
    shift = -0.5 * s.gamma**2 * (site[first] - site[second])
    margin = torch.full_like(shift, 0.3)
    found = ranking_probability(margin, s.tau * s.reference.metric(pairs), shift)
    return exact("ranking_probability under the Wick gate", kept, found)


def count_kept(s: Subject, gate: Gate, maps: Tensor, pair: Tensor, name: str) -> Tensor:
    """In how many draws each map (k, H, W) keeps the ordering of the pair, shape (k,)."""
    counts = torch.zeros(len(maps), dtype=torch.int64)
    before = maps.float()
    for gated in s.sample(gate, maps, name):
        counts += ranking_preserved(before, gated, pair[None])[..., 0].sum(0)
    return counts


def samplewise_intrinsic(s: Subject) -> list[Finding]:
    """The gate adds a fixed expected roughness to any log-map."""
    maps = s.maps("roughness", 3)
    budget = s.reference.roughness_budget
    return [
        _sampled_roughness(s, maps, "samplewise_intrinsic"),
        exact("added roughness gamma^2 eps_int", s.gamma**2 * budget, added_roughness(s, maps)),
        exact("roughness_budget", budget, roughness_budget(s.reference.covariance, s.graph)),
        exact("intrinsic_energy", s.reference.roughness(maps), intrinsic_energy(maps, s.graph)),
        exact("interior Laplacian", s.reference.laplacian, s.graph.laplacian()),
        exact("grid_graph", grid_matrix(s.grid, (1.0, 1.0), "free"), grid_graph(s.grid).laplacian()),
    ]


def added_roughness(s: Subject, maps: Tensor) -> Tensor:
    """Expected roughness that the gate adds to the logarithms of maps (k, H, W), exactly, shape (k,).

    Each vector of the noise's basis is pushed through the gate with both signs. The cross term cancels, the constant of
    the normaliser does not count, and the sum over the basis is the expectation.
    """
    n = s.sites
    basis = torch.eye(n, dtype=torch.float64).view(n, 1, *s.grid)
    added = torch.zeros(len(maps), dtype=torch.float64)
    for sign in (1, -1):
        gated = s.apply(s.samplewise(), maps.expand(n, *maps.shape), sign * basis)
        added += 0.5 * (intrinsic_energy(gated.log(), s.graph) - intrinsic_energy(maps.log(), s.graph)).sum(0)
    return added


def _sampled_roughness(s: Subject, maps: Tensor, name: str) -> Finding:
    """Mean roughness of gated log-maps; its variance is that of a quadratic form of a Gaussian vector."""
    draws, r = s.draws // 4, s.reference
    total = torch.zeros(len(maps), dtype=torch.float64)
    for gated in s.sample(s.samplewise(), maps, name, draws):
        total += intrinsic_energy(gated.double().log(), s.graph).sum(0)
    spread, logs = s.gamma**2 * r.laplacian @ r.covariance, maps.log().flatten(1)
    tilt = torch.einsum("kx,xy,ky->k", logs @ spread, r.laplacian, logs)
    deviation = (0.5 * float((spread * spread.T).sum()) + tilt).sqrt()
    predicted = r.roughness(maps.log()) + s.gamma**2 * r.roughness_budget
    return means("sampled roughness of gated log-maps", predicted, total / draws, deviation, draws)


def scale_compatibility(s: Subject) -> list[Finding]:
    """Rescaling a map changes neither the deformation nor the added roughness: both keep their values."""
    pairs = random_pairs(s.sites, 100, Noise(s.key("scale pairs")))
    maps, noise = s.maps("scale", 64)[:, None], s.white("scale", 64)
    gate = s.samplewise()
    signs = s.reference.incidence(pairs)
    predicted = noise.flatten(1) @ s.log_affine(gate, up_to_constant=True).linear @ signs.T
    findings = []
    for scale in (1e-3, 1e3):
        deformed = log_ratio_deformation(scale * maps, s.apply(gate, scale * maps, noise), pairs)
        findings.append(exact(f"deformation of the map times {scale:g}", predicted, deformed[:, 0]))
        added = added_roughness(s, scale * maps[:2, 0])
        budget = s.gamma**2 * s.reference.roughness_budget
        findings.append(exact(f"roughness added to the map times {scale:g}", budget, added))
    return findings


def perfect_coherence(s: Subject) -> list[Finding]:
    """A constant map gets exactly the budget."""
    constant = torch.full((1, *s.grid), math.exp(1.3), dtype=torch.float64)
    return [
        _sampled_roughness(s, constant, "gch_perfect_coherence"),
        exact("roughness of a gated constant", s.gamma**2 * s.reference.roughness_budget, added_roughness(s, constant)),
    ]
