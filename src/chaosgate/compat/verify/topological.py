"""Superlevel sets under gates and masks (paper, app. topology)."""

import math

import torch
from torch import Tensor

from chaosgate.compat.roughness import SiteGraph, cycle_graph
from chaosgate.compat.topology import (
    betti_numbers,
    cycle_fracture,
    oscillation,
    sandwich_violations,
    sandwich_width,
    superlevel,
)
from chaosgate.compat.verify import reference
from chaosgate.compat.verify.finding import Finding, exact, frequencies, never
from chaosgate.compat.verify.masks import mask_probability
from chaosgate.compat.verify.subject import Subject

THRESHOLDS = (0.3, 0.7, 1.0, 1.5, 3.0)
NARROWER = 1e-6
"""By this share a band is made narrower to see it fail."""


def superlevel_sandwich(s: Subject) -> list[Finding]:
    """No site leaves the threshold band of its gate; a narrower band fails; outside the band topology stays."""
    noise, maps = s.white("sandwich", 512), s.maps("sandwich", 512)[:, None]
    findings = []
    for name, gate in (("sample-wise", s.samplewise()), ("Wick", s.wick())):
        gated = s.apply(gate, maps, noise)
        logs = (gated / maps).log()
        width = torch.maximum(logs.amax((-2, -1)), -logs.amin((-2, -1)))
        wide, narrow = width * (1 + 1e-12), width * (1 - NARROWER)  # the bound may be attained, and is rounded
        broken = sum(_outside(maps, gated, t, wide) for t in THRESHOLDS)
        findings.append(never(f"sites outside the band of the {name} gate", broken, len(THRESHOLDS) * gated.numel()))
        level = _sharpest_level(maps, gated, logs)
        held = int((sandwich_violations(maps, gated, level, narrow) == 0).sum())
        findings.append(never(f"narrower bands that hold for the {name} gate", held, len(maps)))
        findings.append(exact(f"sandwich_width of the {name} gate", width, sandwich_width(gated / maps)))
        counted = torch.stack([sandwich_violations(maps, gated, t, 0.3 * width) for t in THRESHOLDS])
        expected = torch.stack([_sites_outside(maps, gated, t, 0.3 * width) for t in THRESHOLDS])
        findings.append(exact("sandwich_violations at a band too narrow", expected, counted, scale=1))
    top = superlevel(maps, maps.amax((-2, -1))).sum((-2, -1))
    return [*findings, exact("sites of the superlevel set at the maximum", 1.0, top), *_betti_consequence(s)]


def _sites_outside(h: Tensor, gated: Tensor, t: float, eta: Tensor) -> Tensor:
    """Sites that break an inclusion, per map, by the definition."""
    lower, upper = (t * (sign * eta[..., None, None]).exp() for sign in (-1, 1))
    return (((h >= upper) & (gated < t)) | ((gated >= t) & (h < lower))).sum((-2, -1))


def _outside(h: Tensor, gated: Tensor, t: float, eta: Tensor) -> int:
    return int(_sites_outside(h, gated, t, eta).sum())


def _sharpest_level(h: Tensor, gated: Tensor, logs: Tensor) -> Tensor:
    """For each map the threshold at which the site with the largest log-gate decides: just above or just below it."""
    site = logs.abs().flatten(-2).argmax(-1, keepdim=True)
    value, down = (t.flatten(-2).gather(-1, site)[..., 0] for t in (gated, (logs < 0)))
    return torch.where(down, value * (1 + 1e-9), value * (1 - 1e-9))


def _betti_consequence(s: Subject) -> list[Finding]:
    """Maps without a value in the band keep their Betti numbers; with values there, some change."""
    count, edges = 256, s.reference.edges
    noise = s.white("betti", count)
    high = s.white("betti pattern", count) > 0
    gates = s.apply(s.samplewise(), torch.ones_like(noise), noise)
    width = gates.log().abs().amax((-2, -1), keepdim=True)
    kept = high[:, 0].flatten(1).tolist()
    expected = torch.tensor([reference.betti_numbers(row, edges) for row in kept])
    findings = []
    for factor in (1.001, 0.05):
        maps = torch.where(high, (factor * width).exp(), (-factor * width).exp())
        after = superlevel(s.apply(s.samplewise(), maps, noise), 1.0)[:, 0]
        found = torch.stack(betti_numbers(after, s.graph), 1)
        if factor > 1:
            findings.append(exact("Betti numbers of maps outside the band", expected, found, scale=1))
            before = torch.stack(betti_numbers(superlevel(maps, 1.0)[:, 0], s.graph), 1)
            findings.append(exact("betti_numbers", expected, before, scale=1))
        else:
            unchanged = bool((found == expected).all())
            findings.append(never("runs in which maps inside the band keep all of theirs", int(unchanged), 1))
    return findings


def gch_random_sandwich(s: Subject) -> list[Finding]:
    """The band is as wide as the log-field says, no wider than its oscillation, and that bound is sharp."""
    gate = s.samplewise()
    linear = s.log_affine(gate, up_to_constant=True).linear
    n, noise = s.sites, s.white("random sandwich", 512)
    # A field that stands out at one site uses the bound up to log(n) / height.
    height = 40 * math.log(n)
    spike = torch.zeros(2, n, dtype=torch.float64)
    spike[0, n // 2], spike[1, n // 2] = height, -height
    spiked = (spike @ torch.linalg.pinv(linear)).view(2, 1, *s.grid)
    noise = torch.cat([noise, spiked])
    logs = noise.flatten(1) @ linear  # gamma psi up to a spatial constant
    span = logs.amax(1) - logs.amin(1)
    centred = logs - logs.logsumexp(1, keepdim=True) + math.log(n)
    maps = s.maps("random sandwich", len(noise))[:, None]
    gated = s.apply(gate, maps, noise)
    width = sandwich_width(gated / maps)[:, 0]
    broken = sum(_outside(maps, gated, t, span[:, None] * (1 + 1e-12)) for t in THRESHOLDS)
    return [
        exact("width of the band", centred.abs().amax(1), width),
        exact("|gamma| osc(psi)", span, abs(s.gamma) * oscillation(s.law.color(noise))[:, 0]),
        never("gates wider than |gamma| osc(psi)", int((width > span * (1 + 1e-12)).sum()), len(maps)),
        never("sites outside that band", broken, len(THRESHOLDS) * gated.numel()),
        never("spikes for which 0.95 |gamma| osc(psi) would do", int((width < 0.95 * span)[-1]), 1),
    ]


def fractured_cycle(s: Subject) -> list[Finding]:
    """A cycle keeps its loop only if every site is kept."""
    findings = []
    gate = s.dropout()
    for n in (4, 8, 12):
        graph, height, predicted = cycle_graph(n), 1.3, 1 - s.q**n
        level = 0.5 * height / s.q
        masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * n).view(-1, 1, 1, n)
        masked = s.apply(gate, torch.full_like(masks, height), masks)[:, 0]
        kept = (masked > 0).sum((-2, -1))
        loops = betti_numbers(superlevel(masked, level), graph)[1]
        broken = (mask_probability(s.q, kept, n) * (loops == 0)).sum()
        draws, count = s.draws // 4, 0
        for gated in s.sample(gate, torch.full((1, 1, n), height), f"cycle {n}", draws):
            count += int((betti_numbers(superlevel(gated[:, 0], level), graph)[1] == 0).sum())
        findings += [
            frequencies(f"sampled broken {n}-cycles", predicted, count, draws),
            exact(f"broken {n}-cycles over all masks", predicted, broken),
            exact(f"cycle_fracture of {n} sites", predicted, cycle_fracture(s.q, n)),
        ]
    return findings


def block_arcs(s: Subject) -> list[Finding]:
    """A block that takes an arc out of a loop destroys the loop, and DropBlock does so as often as it meets it."""
    ring = _border(s)
    edges = torch.tensor([[ring[i - 1], ring[i]] for i in range(len(ring))])
    graph = SiteGraph(s.sites, edges, torch.ones(len(edges), dtype=torch.float64))
    shape = torch.full((s.sites,), 1e-6, dtype=torch.float64)
    shape[ring] = 1.0
    gate, maps = s.drop_block(), shape.view(1, *s.grid)
    # One seed at a time: uniform noise of zero starts a block there, noise of one starts none.
    noise = (1 - torch.eye(s.sites, dtype=torch.float64)).view(-1, 1, *s.grid)
    masked = superlevel(s.apply(gate, maps.expand(s.sites, 1, *s.grid), noise)[:, 0], 0.5)
    loops = betti_numbers(masked, graph)[1]
    meets = s.blocks.reach[:, ring].any(1)
    draws, count = s.draws // 4, 0
    for gated in s.sample(gate, maps, "arcs", draws):
        count += int((betti_numbers(superlevel(gated[:, 0], 0.5), graph)[1] == 0).sum())
    return [
        frequencies("sampled loops broken by DropBlock", 1 - s.blocks.all_kept(ring), count, draws),
        exact("loops left by one block", ~meets, loops, scale=1),
        exact("sites left by one block", ~s.blocks.reach[:, ring], masked.flatten(1)[:, ring], scale=1),
    ]


def _border(s: Subject) -> list[int]:
    """Sites on the rim of the grid, in order around it; a line is closed to a ring."""
    height, width = s.grid
    if min(height, width) < 2:
        return list(range(s.sites))
    top = [(0, j) for j in range(width)] + [(i, width - 1) for i in range(1, height)]
    bottom = [(height - 1, j) for j in range(width - 2, -1, -1)] + [(i, 0) for i in range(height - 2, 0, -1)]
    return [i * width + j for i, j in top + bottom]
