"""What hard masks do to the same maps: singular log-ratios, blind rankings, amplified roughness (geometry_theory)."""

import torch
from torch import Tensor

from chaosgate.compat.log_ratio import (
    dropout_ranking_probability,
    log_ratio_deformation,
    positive_pairs,
    random_pairs,
    ranking_preserved,
)
from chaosgate.compat.roughness import coherence, dropout_amplification, dropout_energy, intrinsic_energy, weighted_mass
from chaosgate.compat.verify.finding import SINGLE, Finding, exact, frequencies, means, never
from chaosgate.compat.verify.reference import BlockMasks, normal_cdf
from chaosgate.compat.verify.smooth import added_roughness, count_kept, margin_maps
from chaosgate.compat.verify.subject import Subject
from chaosgate.field.white import Noise

PAIR_PATTERNS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
"""Uniform noise that drops (0) or keeps (1) each of two things."""

MOST_COLOURS = 8
"""Colours up to which the expectation over all masks is summed; a graph that needs more is left to sampling."""


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
    """Probability of one mask of independent sites, given how many of them it keeps."""
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
        exact("positive_pairs", zeros == 0, positive_pairs(masked[:, 0], pair[None])[:, 0], scale=1),
        *_drop_block(s),
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


def _drop_block(s: Subject) -> list[Finding]:
    """DropBlock deletes every site with its own known probability, so no pair of sites is safe."""
    gate, deleted, counts, kept = s.drop_block(), s.blocks.marginals, torch.zeros(s.grid, dtype=torch.int64), 0
    pair = _pair(s)
    values = torch.zeros(s.grid, dtype=torch.float64)
    for masked in s.sample(gate, torch.ones(1, *s.grid), "drop_block"):
        counts += (masked[:, 0] == 0).sum(0)
        kept += int((masked.flatten(1)[:, pair] > 0).all(1).sum())
        values = torch.maximum(values, masked[:, 0].double().amax(0))
    rate = torch.tensor([s.q, s.blocks.seed_rate], dtype=torch.float64)
    nominal = gate.nominal(s.grid)
    rates = torch.tensor([1 - nominal["p"], nominal["seed_rate"]], dtype=torch.float64)
    return [
        frequencies("sampled deletions by DropBlock", deleted, counts, s.draws),
        frequencies("pairs that DropBlock keeps", s.blocks.all_kept(pair.tolist()), kept, s.draws),
        exact("what DropBlock divides a kept site by", 1 / (1 - deleted), values, SINGLE),
        exact("rates that DropBlock reports", rate, rates),
        *(_block_shape(s, size) for size in (2, 4)),
    ]


def _block_shape(s: Subject, size: int) -> Finding:
    """The masks of one seed at a time: uniform noise of zero starts a block there, noise of one starts none."""
    blocks = BlockMasks(s.grid, 1 - s.q, size)
    noise = (1 - torch.eye(s.sites, dtype=torch.float64)).view(-1, 1, *s.grid)
    gate = s.makers.drop_block(p=1 - s.q, block_size=size)
    predicted = (~blocks.reach).double() / (1 - blocks.marginals.flatten())
    found = s.apply(gate, torch.ones_like(noise), noise).flatten(1)
    return exact(f"blocks of {size} by {size} sites from one seed", predicted, found, SINGLE)


def margin_blind(s: Subject) -> list[Finding]:
    """Dropout keeps an ordering with probability q, at any margin."""
    margins, pair = torch.tensor([1e-3, 0.1, 1.0, 10.0], dtype=torch.float64), _pair(s)
    maps = margin_maps(s, margins, pair, "margin blind")
    masked, weight = _enumerated(s, maps, pair)
    kept = (ranking_preserved(maps, masked, pair[None])[..., 0] * weight[:, None]).sum(0)
    counts = count_kept(s, s.dropout(), maps, pair, "margin_blind")
    return [
        frequencies("kept orderings at margins 0.001 to 10", s.q, counts, s.draws),
        exact("the same over the four masks of the pair", s.q, kept),
        exact("dropout_ranking_probability", s.q, dropout_ranking_probability(s.q)),
    ]


def expected_mask_energy(s: Subject, maps: Tensor) -> Tensor | None:
    r"""Exact :math:`E\,\mathcal E_{int}(m\odot h)` of maps (k, H, W) through the module, or None.

    Roughness adds up over edges. With colours such that every edge joins two of them, the masks that drop or keep each
    colour as a whole show every edge all its four cases, and their weighted sum is the expectation. A grid takes two
    colours, four masks; a torus of odd length takes three or four.
    """
    colour = s.reference.colours()
    count = int(colour.max()) + 1
    if count > MOST_COLOURS:
        return None
    patterns = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * count)
    masked = s.apply(s.dropout(), maps.expand(len(patterns), *maps.shape), patterns[:, colour].view(-1, 1, *s.grid))
    weight = mask_probability(s.q, patterns.sum(1), count)
    return (weight[:, None] * intrinsic_energy(masked, s.graph)).sum(0)


def predicted_mask_energy(s: Subject, maps: Tensor) -> Tensor:
    """The formula of prop. dropout_energy on the reference graph."""
    return s.reference.roughness(maps) + (1 - s.q) / (2 * s.q) * s.reference.mass(maps)


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
    predicted = predicted_mask_energy(s, maps)
    mean, deviation = _sampled_energy(s, maps, "dropout_energy")
    findings = [
        means("sampled roughness of masked maps", predicted, mean, deviation, s.draws // 8),
        exact("dropout_energy", predicted, dropout_energy(maps, s.q, s.graph)),
        exact("weighted_mass", s.reference.mass(maps), weighted_mass(maps, s.graph)),
    ]
    pushed = expected_mask_energy(s, maps)
    return findings if pushed is None else [*findings, exact("over all masks of an edge", predicted, pushed, SINGLE)]


def _coherent(s: Subject, steps: int) -> Tensor:
    """Maps (steps, H, W) that keep their mass and lose their roughness: a constant plus ever less of a rough map."""
    rough = s.maps("coherent", 1)
    return torch.cat([2 + rough * 2.0**-step for step in range(steps)])


def coherence_factor(s: Subject) -> list[Finding]:
    """The factor is explicit in the coherence of the map."""
    maps = _coherent(s, 4)
    energy = s.reference.roughness(maps)
    kappa = s.reference.mass(maps) / (2 * energy)
    predicted = 1 + (1 - s.q) / s.q * kappa
    mean, deviation = _sampled_energy(s, maps, "coherence_factor")
    findings = [
        means("sampled amplification", predicted, mean / energy, deviation / energy, s.draws // 8),
        exact("coherence", kappa, coherence(maps, s.graph)),
        exact("dropout_amplification", predicted, torch.as_tensor(dropout_amplification(kappa, s.q))),
    ]
    pushed = expected_mask_energy(s, maps)
    if pushed is not None:
        findings.append(exact("over all masks of an edge", predicted, pushed / energy, SINGLE))
    return findings


def mask_perfect_coherence(s: Subject) -> list[Finding]:
    """A constant map has no roughness; one mask gives it some."""
    constant = torch.full((1, *s.grid), 1.7, dtype=torch.float64)
    predicted = (1 - s.q) / (2 * s.q) * 1.7**2 * float(s.reference.laplacian.diagonal().sum())
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
    energy, mass = s.reference.roughness(maps), s.reference.mass(maps)
    distortion = (1 - s.q) / (2 * s.q) * mass / energy
    pushed = expected_mask_energy(s, maps)
    if pushed is None:
        mean, deviation = _sampled_energy(s, maps, "coherence_mismatch")
        found = (mean - energy) / energy
        findings = [means("sampled distortion", distortion, found, deviation / energy, s.draws // 8)]
    else:
        found = (pushed - intrinsic_energy(maps, s.graph)) / intrinsic_energy(maps, s.graph)
        findings = [
            exact(f"distortion of {what}", predicted, measured, SINGLE)
            for what, predicted, measured in (
                ("the most coherent map", distortion[-1], found[-1]),
                ("all maps, times roughness", distortion * energy, found * energy),
            )
        ]
    steps = found[1:] / found[:-1]
    return [
        *findings,
        never("steps towards coherence that do not distort more", int((steps <= 1).sum()), len(steps)),
        exact("distortion grows fourfold when variation halves", 4.0, steps[-1], 0.01),
    ]


def margin_growth(s: Subject) -> list[Finding]:
    """As margins grow the gate keeps the ordering ever more surely; dropout stays where it was."""
    pair = _pair(s)
    units = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    margins = units * (s.tau * s.reference.metric(pair[None])).sqrt()
    maps = margin_maps(s, margins, pair, "margin growth")
    smooth = count_kept(s, s.samplewise(), maps, pair, "margin_growth")
    hard = count_kept(s, s.dropout(), maps, pair, "margin_growth")
    return [
        frequencies("orderings kept by the gate", normal_cdf(units), smooth, s.draws),
        frequencies("orderings kept by dropout", s.q, hard, s.draws),
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
    budget = s.gamma**2 * s.reference.roughness_budget
    pushed = expected_mask_energy(s, maps)
    after = predicted_mask_energy(s, maps) if pushed is None else pushed
    relative = after / intrinsic_energy(maps, s.graph) - 1
    return [
        frequencies("log-ratios made singular by dropout", 1 - s.q**2, broken["mask"], draws),
        never("log-ratios made singular by the gate", broken["gate"], draws * len(pairs)),
        exact("roughness added by the gate, map by map", budget, added_roughness(s, maps)),
        never("steps towards coherence that dropout does not punish", int((relative.diff() <= 0).sum()), len(maps) - 1),
    ]
