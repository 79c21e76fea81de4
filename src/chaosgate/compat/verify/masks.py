"""What hard masks do to the same maps: singular log-ratios, blind rankings, amplified roughness (geometry_theory)."""

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import (
    dropout_ranking_probability,
    log_ratio_deformation,
    log_ratio_variance,
    random_pairs,
    ranking_preserved,
    ranking_probability,
)
from chaosgate.compat.roughness import (
    coherence,
    dropout_amplification,
    dropout_energy,
    intrinsic_energy,
    roughness_budget,
    weighted_mass,
)
from chaosgate.compat.verify.finding import SINGLE, Finding, exact, frequencies, means, never
from chaosgate.compat.verify.smooth import count_kept, margin_maps
from chaosgate.compat.verify.subject import Subject
from chaosgate.field.white import Noise
from chaosgate.gate import DropBlock

PAIR_PATTERNS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
"""Uniform noise that drops (0) or keeps (1) each of two things."""


def _pair(s: Subject) -> Tensor:
    return torch.tensor([s.sites // 3, s.sites - 1])


def _enumerated(s: Subject, maps: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (4, C, H, W) under the four masks of two sites, all others kept, and the probabilities of the masks (4,)."""
    noise = torch.ones(4, 1, s.sites, dtype=torch.float64)
    noise[:, 0, pair] = PAIR_PATTERNS
    masked = s.apply(s.dropout(), maps.expand(4, *maps.shape), noise.view(4, 1, *s.grid))
    kept = (masked[:, 0].flatten(1)[:, pair] > 0).sum(1)
    return masked, mask_probability(s.q, kept, 2)


def mask_probability(q: float, kept: Tensor, sites: int) -> Tensor:
    """Probability of one mask of so many independent sites, given how many it keeps."""
    kept = kept.double()
    return q**kept * (1 - q) ** (sites - kept)


def mask_singularity(s: Subject) -> list[Finding]:
    """Log-ratios are finite only where nothing was deleted."""
    maps, pair, q = s.maps("singularity", 1), _pair(s), s.q
    masked, weight = _enumerated(s, maps, pair)
    finite = log_ratio_deformation(maps, masked, pair[None])[:, 0, 0].isfinite()
    predicted = torch.tensor([1 - q**2, 2 * q * (1 - q), (1 - q) ** 2], dtype=torch.float64)
    zeros = (masked[:, 0].flatten(1)[:, pair] == 0).sum(1)
    events = torch.stack([weight[~finite].sum(), weight[zeros == 1].sum(), weight[zeros == 2].sum()])
    ratio = (masked[:, 0] / maps[0]).flatten()
    values = torch.tensor([0.0, 1 / q], dtype=torch.float64)
    return [
        *_sampled_singularity(s, predicted),
        exact("probabilities of the four masks of a pair", predicted, events),
        exact("a kept site is divided by q", values[(ratio > 0).long()], ratio, SINGLE),
        _drop_block(s),
    ]


def _sampled_singularity(s: Subject, predicted: Tensor) -> list[Finding]:
    pair, counts = _pair(s), torch.zeros(3, dtype=torch.int64)
    maps = s.maps("singularity", 1).float()
    for masked in s.sample(s.dropout(), maps, "mask_singularity"):
        zeros = (masked.flatten(2)[:, 0, pair] == 0).sum(1)
        singular = ~log_ratio_deformation(maps, masked, pair[None]).isfinite().flatten()
        counts += torch.stack([singular.sum(), (zeros == 1).sum(), (zeros == 2).sum()])
    return [
        frequencies("sampled singular log-ratios", predicted[0], counts[0], s.draws),
        frequencies("sampled one-sided and joint deletions", predicted[1:], counts[1:], s.draws),
    ]


def _drop_block(s: Subject) -> Finding:
    """DropBlock deletes every site with its own known probability, so no pair of sites is safe."""
    gate = s.makers.drop_block(p=1 - s.q, block_size=3)
    reference = DropBlock(p=1 - s.q, block_size=3).marginal(s.grid)[1]
    counts = torch.zeros(s.grid, dtype=torch.int64)
    for masked in s.sample(gate, torch.ones(1, *s.grid), "drop_block"):
        counts += (masked[:, 0] == 0).sum(0)
    return frequencies("sampled deletions by DropBlock", reference, counts, s.draws)


def margin_blind(s: Subject) -> list[Finding]:
    """Dropout keeps an ordering with probability q, at any margin."""
    margins, pair = torch.tensor([1e-3, 0.1, 1.0, 10.0], dtype=torch.float64), _pair(s)
    maps = margin_maps(s, margins, pair, "margin blind")
    masked, weight = _enumerated(s, maps, pair)
    kept = (ranking_preserved(maps, masked, pair[None])[..., 0] * weight[:, None]).sum(0)
    predicted = dropout_ranking_probability(s.q)
    counts = count_kept(s, s.dropout(), maps, pair, "margin_blind")
    return [
        frequencies("kept orderings at margins 0.001 to 10", predicted, counts, s.draws),
        exact("the same over the four masks of the pair", predicted, kept),
    ]


def expected_mask_energy(s: Subject, maps: Tensor) -> Tensor | None:
    r"""Exact :math:`E\,\mathcal E_{int}(m\odot h)` of maps (k, H, W) through the module, or None.

    Roughness adds up over edges. Where the sites split into two colours such that every edge joins different colours,
    as on any grid with free borders, four masks (each colour dropped or kept as a whole) show every edge all its four
    cases, and their weighted sum is the expectation.
    """
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in s.grid), indexing="ij")
    colour = ((rows + columns) % 2).flatten()
    first, second = s.graph.edges.T
    if bool((colour[first] == colour[second]).any()):
        return None
    noise = PAIR_PATTERNS[:, colour].view(4, 1, *s.grid)
    masked = s.apply(s.dropout(), maps.expand(4, *maps.shape), noise)
    weight = mask_probability(s.q, PAIR_PATTERNS.sum(1), 2)
    return (weight[:, None] * intrinsic_energy(masked, s.graph)).sum(0)


def _sampled_energy(s: Subject, maps: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the roughness of masked maps, over an eighth of the draws."""
    draws = s.draws // 8
    total = torch.zeros(2, len(maps), dtype=torch.float64)
    for masked in s.sample(s.dropout(), maps, name, draws):
        energy = intrinsic_energy(masked.double(), s.graph)
        total += torch.stack([energy.sum(0), energy.square().sum(0)])
    mean = total[0] / draws
    return mean, (total[1] / draws - mean.square()).clamp_min(0).sqrt()


def mask_energy(s: Subject) -> list[Finding]:
    """Dropout adds roughness in proportion to the mass of the map, signed or not."""
    maps = torch.cat([s.maps("energy", 2), s.white("signed", 1)[:, 0]])
    predicted = dropout_energy(maps, s.q, s.graph)
    mean, deviation = _sampled_energy(s, maps, "dropout_energy")
    findings = [means("sampled roughness of masked maps", predicted, mean, deviation, s.draws // 8)]
    pushed = expected_mask_energy(s, maps)
    return findings if pushed is None else [*findings, exact("over all masks of an edge", predicted, pushed, SINGLE)]


def _coherent(s: Subject, steps: int) -> Tensor:
    """Maps (steps, H, W) that keep their mass and lose their roughness: a constant plus ever less of a rough map."""
    rough = s.maps("coherent", 1)
    return torch.cat([2 + rough * 2.0**-step for step in range(steps)])


def coherence_factor(s: Subject) -> list[Finding]:
    """The factor is explicit in the coherence of the map."""
    maps = _coherent(s, 4)
    energy = intrinsic_energy(maps, s.graph)
    predicted = torch.as_tensor(dropout_amplification(coherence(maps, s.graph), s.q))
    mean, deviation = _sampled_energy(s, maps, "coherence_factor")
    findings = [means("sampled amplification", predicted, mean / energy, deviation / energy, s.draws // 8)]
    pushed = expected_mask_energy(s, maps)
    return (
        findings
        if pushed is None
        else [*findings, exact("over all masks of an edge", predicted, pushed / energy, SINGLE)]
    )


def mask_perfect_coherence(s: Subject) -> list[Finding]:
    """A constant map has no roughness; one mask gives it some."""
    constant = torch.full((1, *s.grid), 1.7, dtype=torch.float64)
    predicted = (1 - s.q) / (2 * s.q) * 1.7**2 * s.graph.degrees().sum()
    mean, deviation = _sampled_energy(s, constant, "dropout_perfect_coherence")
    findings = [
        means("roughness of a masked constant", predicted, mean, deviation, s.draws // 8),
        never("roughness before", int(intrinsic_energy(constant, s.graph).count_nonzero()), 1),
    ]
    pushed = expected_mask_energy(s, constant)
    return findings if pushed is None else [*findings, exact("over all masks of an edge", predicted, pushed, SINGLE)]


def coherence_mismatch(s: Subject) -> list[Finding]:
    """Along ever more coherent maps the relative distortion grows like one over their roughness."""
    maps = _coherent(s, 12)
    energy = intrinsic_energy(maps, s.graph)
    pushed = expected_mask_energy(s, maps)
    after = dropout_energy(maps, s.q, s.graph) if pushed is None else pushed
    distortion = (after - energy) / energy
    mass = (1 - s.q) / (2 * s.q) * weighted_mass(maps, s.graph)
    growth = distortion[1:] / distortion[:-1]
    return [
        exact("distortion of the most coherent map", (mass / energy)[-1], distortion[-1], SINGLE),
        exact("distortion times roughness = odds times mass", mass, distortion * energy, SINGLE),
        never("steps towards coherence that do not distort more", int((growth <= 1).sum()), len(growth)),
    ]


def margin_growth(s: Subject) -> list[Finding]:
    """As margins grow the gate keeps the ordering ever more surely; dropout stays where it was."""
    pair = _pair(s)
    variance = log_ratio_variance(s.operator.green(s.grid), pair[None], s.tau)
    margins = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64) * variance.sqrt()
    maps = margin_maps(s, margins, pair, "margin growth")
    smooth = count_kept(s, s.samplewise(), maps, pair, "margin_growth")
    hard = count_kept(s, s.dropout(), maps, pair, "margin_growth")
    return [
        frequencies("orderings kept by the gate", ranking_probability(margins, variance), smooth, s.draws),
        frequencies("orderings kept by dropout", dropout_ranking_probability(s.q), hard, s.draws),
        never("larger margins kept less often by the gate", int((smooth.diff() < 0).sum()), len(margins) - 1),
    ]


def compatibility_dichotomy(s: Subject) -> list[Finding]:
    """Both on the same coherent maps: finite against singular log-ratios, a fixed against a diverging cost."""
    maps = _coherent(s, 8)
    pairs = random_pairs(s.sites, 32, Noise(s.key("dichotomy")))
    broken = {"gate": 0, "mask": 0}
    draws = s.draws // 4
    for kind, gate in (("gate", s.samplewise()), ("mask", s.dropout())):
        for gated in s.sample(gate, maps[-1:], f"dichotomy {kind}", draws):
            singular = ~log_ratio_deformation(maps[-1:], gated.double(), pairs).isfinite()
            broken[kind] += int(singular[:, 0, 0].sum() if kind == "mask" else singular.sum())
    linear = s.log_affine(s.samplewise(), up_to_constant=True).linear.view(-1, 1, *s.grid)
    logs = maps.log()
    # Antithetic pairs of the pushed basis cancel the cross term: the mean over signs is the expectation over the field.
    added = 0.5 * sum(intrinsic_energy(logs + sign * linear, s.graph) for sign in (1, -1)) - intrinsic_energy(
        logs, s.graph
    )
    cost = torch.as_tensor(added).sum(0)
    energy = intrinsic_energy(maps, s.graph)
    pushed = expected_mask_energy(s, maps)
    relative = ((dropout_energy(maps, s.q, s.graph) if pushed is None else pushed) - energy) / energy
    return [
        frequencies("log-ratios made singular by dropout", 1 - s.q**2, broken["mask"], draws),
        never("log-ratios made singular by the gate", broken["gate"], draws * len(pairs)),
        exact("roughness added by the gate, map by map", s.gamma**2 * roughness_budget(s.covariance, s.graph), cost),
        never("steps towards coherence that dropout does not punish", int((relative.diff() <= 0).sum()), len(maps) - 1),
    ]
