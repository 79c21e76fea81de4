"""Superlevel sets under gates and masks (paper, app. topology)."""

import torch

from chaosgate.compat.roughness import cycle_graph
from chaosgate.compat.topology import (
    betti_numbers,
    cycle_fracture,
    oscillation,
    sandwich_violations,
    sandwich_width,
    superlevel,
)
from chaosgate.compat.verify.finding import Finding, exact, frequencies, never
from chaosgate.compat.verify.masks import mask_probability
from chaosgate.compat.verify.subject import Subject

THRESHOLDS = (0.3, 0.7, 1.0, 1.5, 3.0)


def superlevel_sandwich(s: Subject) -> list[Finding]:
    """No site leaves the threshold band of its gate."""
    noise, maps = s.white("sandwich", 2048), s.maps("sandwich", 2048)[:, None]
    findings = []
    for name, gate in (("sample-wise", s.samplewise()), ("Wick", s.wick())):
        gated = s.apply(gate, maps, noise)
        width = sandwich_width(gated / maps) * (1 + 1e-12)  # the bound itself may be attained, and is rounded
        broken = sum(int(sandwich_violations(maps, gated, t, width).sum()) for t in THRESHOLDS)
        findings.append(never(f"sites outside the band of the {name} gate", broken, len(THRESHOLDS) * gated.numel()))
    return findings


def gch_random_sandwich(s: Subject) -> list[Finding]:
    """The band is no wider than the oscillation of the log-field."""
    noise, maps = s.white("random sandwich", 2048), s.maps("random sandwich", 2048)[:, None]
    gated = s.apply(s.samplewise(), maps, noise)
    bound = abs(s.gamma) * oscillation(s.law.color(noise))
    wider = sandwich_width(gated / maps) > bound * (1 + 1e-12)
    broken = sum(int(sandwich_violations(maps, gated, t, bound).sum()) for t in THRESHOLDS)
    return [
        never("gates wider than |gamma| osc(psi)", int(wider.sum()), len(maps)),
        never("sites outside that band", broken, len(THRESHOLDS) * gated.numel()),
    ]


def fractured_cycle(s: Subject) -> list[Finding]:
    """A cycle keeps its loop only if every site is kept."""
    findings = []
    gate = s.dropout()
    for n in (4, 8, 12):
        graph, height = cycle_graph(n), 1.3
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
            frequencies(f"sampled broken {n}-cycles", cycle_fracture(s.q, n), count, draws),
            exact(f"broken {n}-cycles over all masks", cycle_fracture(s.q, n), broken),
        ]
    return findings
