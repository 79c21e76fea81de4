"""Gates as training uses them: resized, scheduled, on many channels, matched in energy, as layers (sec. injection)."""

import math
from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from chaosgate.compat.verify.finding import SINGLE, Finding, exact, never
from chaosgate.compat.verify.reference import grid_matrix
from chaosgate.compat.verify.subject import LogAffine, Subject
from chaosgate.field import DirichletLaplacian
from chaosgate.field.white import Noise, advance
from chaosgate.gate import CorrelatedGaussian, Gate, IIDGaussian, IIDLogNormal, SignedCorrelated

HALF = torch.tensor(0.5)
"""A schedule that has come half way."""

INTERPOLATED = 0.01
"""Relative error allowed to an energy without closed form that is interpolated over the schedule."""

STEPS = 1024
"""Steps of a training whose noise is compared."""


def deployment(s: Subject) -> list[Finding]:
    """All of it, on the grid and at the strength of the subject."""
    return [*_resized(s), *_scheduled(s), *_channels(s), *_control_energies(s), *_layers(s)]


def _resized(s: Subject) -> list[Finding]:
    """A log-field that is drawn on a coarser grid and resized keeps mean one; its kernel is resized on both sides."""
    base = tuple((side + 1) // 2 for side in s.grid)
    resize = reduce(torch.kron, (_linear_resize(m, n) for m, n in zip(base, s.grid, strict=True)))
    green = torch.linalg.inv(grid_matrix(base, (1.0,) * len(base), "zero"))
    kernel = resize @ green @ resize.T
    sites = math.prod(base)
    noise = torch.cat([torch.zeros(1, sites), torch.eye(sites)]).double().view(-1, 1, *base)
    common = {"operator": DirichletLaplacian(), "realization": "wick", "base_size": list(base)}
    findings = []
    for name, strength, scale in (
        ("gamma", {"gamma": s.gamma, "beta": s.beta}, s.tau),
        ("log_std", {"log_std": 0.7}, 0.49 / float(kernel.diagonal().mean())),
    ):
        gate = s.makers.chaos(**common, **strength)
        logs = s.apply(gate, torch.ones(len(noise), 1, *s.grid, dtype=torch.float64), noise).log().flatten(1)
        affine = LogAffine(logs[0], logs[1:] - logs[0], 0.0)
        findings.append(exact(f"log-kernel of a resized field at {name}", scale * kernel, affine.log_kernel))
    return findings


def _linear_resize(m: int, n: int) -> Tensor:
    """Linear interpolation (n, m) between the centres of m cells, constant beyond the outermost ones."""
    matrix = torch.zeros(n, m, dtype=torch.float64)
    for i in range(n):
        at = min(max((i + 0.5) * m / n - 0.5, 0.0), m - 1.0)
        low = min(int(at), max(m - 2, 0))
        matrix[i, low] += 1 - (at - low)
        matrix[i, min(low + 1, m - 1)] += at - low
    return matrix


def _scheduled(s: Subject) -> list[Finding]:
    """A gate whose dial stands at one half is the gate of half the strength, and injects its energy."""
    noise, maps = s.white("schedule", 16), s.maps("schedule", 16)[:, None]
    uniform = 0.5 * (1 + torch.erf(noise / math.sqrt(2)))
    chaos = {"operator": s.operator, "beta": s.beta}
    pairs: list[tuple[str, Callable[[float], Gate], Tensor]] = [
        ("Wick", lambda part: s.makers.chaos(gamma=part * s.gamma, realization="wick", **chaos), noise),
        ("sample-wise", lambda part: s.makers.chaos(gamma=part * s.gamma, realization="samplewise", **chaos), noise),
        ("signed", lambda part: SignedCorrelated(0.4 * part, s.operator), noise),
        ("dropout", lambda part: s.makers.dropout(p=part * (1 - s.q), mask="site"), uniform),
        ("DropBlock", lambda part: s.makers.drop_block(p=part * (1 - s.q)), uniform),
    ]
    findings = []
    for name, make, given in pairs:
        dialled, weaker = make(1.0), make(0.5)
        dialled.dial = HALF
        weak, dial = (s.apply(gate, maps, given) for gate in (weaker, dialled))
        findings.append(exact(f"{name} gate at half the dial", weak, dial, SINGLE))
        near = INTERPOLATED if name == "sample-wise" else SINGLE
        wanted, found = (gate.expected_energy(maps) for gate in (weaker, dialled))
        findings.append(exact(f"expected energy of the {name} gate at half the dial", wanted, found, near))
    return findings


def _channels(s: Subject) -> list[Finding]:
    """Gates that differ from channel to channel treat each channel as a shared gate would."""
    noise, maps = s.white("channels", 24).view(8, 3, *s.grid), s.maps("channels", 24).view(8, 3, *s.grid)
    uniform = 0.5 * (1 + torch.erf(noise / math.sqrt(2)))
    chaos = {"operator": s.operator, "gamma": s.gamma, "beta": s.beta, "realization": "samplewise"}
    rate = 1 - s.q
    pairs = (
        ("sample-wise", s.samplewise(), s.makers.chaos(**chaos, channels="independent"), noise),
        ("DropBlock", s.drop_block(), s.makers.drop_block(p=rate, block_size=3, channels="independent"), uniform),
        ("dropout", s.dropout(), s.makers.dropout(p=rate, mask="element"), uniform),
    )
    findings = []
    for name, shared, independent, given in pairs:
        single = [s.apply(shared, maps[:, c : c + 1], given[:, c : c + 1]) for c in range(maps.shape[1])]
        found = s.apply(independent, maps, given)
        findings.append(exact(f"{name} gate of its own for every channel", torch.cat(single, 1), found))
    return findings


def _control_energies(s: Subject) -> list[Finding]:
    """The baselines inject the energy that they state; matched to another gate, they inject that gate's."""
    sigma, maps = 0.4, s.maps("energies", 3)
    site = (s.gamma**2 * s.reference.covariance.diagonal()).expm1().view(s.grid)
    wanted = (maps.square() * site).sum((1, 2))
    findings = []
    for name, fixed, matched in (
        ("IIDGaussian", IIDGaussian(sigma), IIDGaussian(match=s.wick())),
        ("CorrelatedGaussian", CorrelatedGaussian(sigma, s.operator), CorrelatedGaussian(None, s.operator, s.wick())),
        ("SignedCorrelated", SignedCorrelated(sigma, s.operator), SignedCorrelated(None, s.operator, s.wick())),
        ("IIDLogNormal", IIDLogNormal(sigma), IIDLogNormal(match=s.wick())),
    ):
        pushed = _pushed_energy(s, fixed, maps, logarithm=name == "IIDLogNormal")
        findings.append(exact(f"expected energy of {name}", pushed, fixed.expected_energy(maps[:, None])))
        found = _pushed_energy(s, matched, maps, logarithm=name == "IIDLogNormal")
        findings.append(exact(f"energy of {name} matched to the Wick gate", wanted, found))
    own = _Doubled().expected_energy(maps[:, None])
    return [*findings, exact("energy of a gate without a closed form", maps.square().sum((1, 2)), own, SINGLE)]


def _pushed_energy(s: Subject, gate: Gate, maps: Tensor, logarithm: bool) -> Tensor:
    """Expected energy that a gate injects into maps (k, H, W), from a basis of the noise, shape (k,).

    Perturbations are linear in the noise, or log-gates are affine in it and of mean one.
    """
    basis = torch.eye(s.sites, dtype=torch.float64).view(-1, 1, *s.grid)
    energies = []
    for h in maps:
        still = s.apply(gate, h.expand_as(basis), torch.zeros_like(basis))
        moved = s.apply(gate, h.expand_as(basis), basis)
        if logarithm:
            energies.append((h.square() * (moved / still).log().square().sum(0)[0].expm1()).sum())
        else:
            energies.append((moved - still).square().sum())
    return torch.stack(energies)


class _Doubled(Gate):
    """A gate of somebody's own, of which only the perturbation is known."""

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        return 2 * h


def _layers(s: Subject) -> list[Finding]:
    """Every step has noise of its own, and a layer replays its noise from its seed."""
    ones = torch.ones(4, 2, *s.grid)
    runs = [[gate(ones) for _ in range(3)] for gate in (_seeded(s, 5), _seeded(s, 5), _seeded(s, 6))]
    alike = sum(torch.equal(runs[0][i], runs[0][j]) for i in range(3) for j in range(i))
    alike += sum(torch.equal(first, other) for first, other in zip(runs[0], runs[2], strict=True))
    key = s.key("steps")
    repeated = STEPS - len({int(advance(key, step)) for step in range(STEPS)})
    noise = Noise(key)
    draws = [noise.normal(s.grid) for _ in range(4)]
    repeated += sum(torch.equal(draws[i], draws[j]) for i in range(4) for j in range(i))
    return [
        exact("a layer of the same seed", torch.stack(runs[0]), torch.stack(runs[1]), 0.0),
        never("calls of a layer, or seeds, with the same gate", alike, 6),
        never("steps or draws with the same noise", repeated, STEPS + 6),
    ]


def _seeded(s: Subject, seed: int) -> Gate:
    settings = {"operator": s.operator, "gamma": s.gamma, "beta": s.beta, "realization": "samplewise"}
    return s.makers.chaos(**settings, seed=seed).train()
