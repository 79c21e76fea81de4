"""Which gate meets which desideratum: every cell is a number measured on the gate, and its mark follows from it.

All gates inject the same energy into a map of ones. What a gate samples is read off it: by pushing a basis of the noise
through it where it is affine in the noise (in the logarithm, if it is positive), by drawing where it is not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.compat.probe.matching import METHODS, matched_gates
from chaosgate.compat.roughness import grid_graph
from chaosgate.compat.verify.subject import Prescribed
from chaosgate.field import DirichletLaplacian, Grid, Operator
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import Gate, GaussianChaos, Mechanism

CHUNK = 1 << 13
ATOMS = 1e-3
"""A law whose value at a site repeats from draw to draw more often than this has atoms, so no density."""

SINGULAR = 1e-9
"""A ratio of eigenvalues below this is zero: fields are drawn in float64."""

SMOOTH = 0.99
"""A field counts as coherent below this share of the roughness of white noise."""

STANDARD_ERRORS = 5.0
"""How many standard errors a measured bias may be away from zero."""


@dataclass(frozen=True)
class GateMeasurement:
    """What one gate does to a map of ones.

    Attributes:
        name: Of the method.
        gate: The module in words.
        entropy_gap: Entropy below the maximum at the same Dirichlet budget, in nats per direction of the differences
            between sites; infinite for a law with atoms.
        not_positive: Share of values that are zero or negative.
        site_bias: Largest distance of a site's mean from one.
        site_error: Its standard error.
        sample_bias: Largest distance of a sample's spatial mean from one.
        roughness: Energy of the (log-)field over that of white noise of the same variance; infinite where sites are
            deleted, not a number without noise.
        smallest_eigenvalue: Of the operator, over its largest, from the covariance of fields that the gate drew; not a
            number for a gate without a field.
    """

    name: str
    gate: str
    entropy_gap: float
    not_positive: float
    site_bias: float
    site_error: float
    sample_bias: float
    roughness: float
    smallest_eigenvalue: float


@dataclass(frozen=True)
class Column:
    """A desideratum as it is measured: its number, the rule for its mark, and the rule in words."""

    title: str
    number: Callable[[GateMeasurement], float]
    holds: Callable[[GateMeasurement], bool]
    rule: str


COLUMNS = (
    Column("D1 entropy gap", lambda m: m.entropy_gap, lambda m: m.entropy_gap < 1e-6, "below 1e-6 nats per direction"),
    Column("D2 share <= 0", lambda m: m.not_positive, lambda m: m.not_positive == 0, "no value is at or below zero"),
    Column(
        "D3 bias per site",
        lambda m: m.site_bias,
        lambda m: m.site_bias <= STANDARD_ERRORS * m.site_error,
        f"within {STANDARD_ERRORS:g} standard errors of zero",
    ),
    Column("D3 bias per sample", lambda m: m.sample_bias, lambda m: m.sample_bias < 1e-5, "below 1e-5"),
    Column("D4 roughness", lambda m: m.roughness, lambda m: m.roughness < SMOOTH, f"below {SMOOTH}; white noise has 1"),
    Column(
        "D5 spectrum",
        lambda m: m.smallest_eigenvalue,
        lambda m: m.smallest_eigenvalue > SINGULAR,
        f"the smallest eigenvalue of the operator over its largest, from drawn fields, is above {SINGULAR:g}",
    ),
)


def desiderata_matrix(
    grid: Grid = (7, 7), log_std: float = 0.5, operator: Operator | None = None, draws: int = 1 << 18
) -> list[GateMeasurement]:
    """Every shipped gate and control, at the energy of the sample-wise gate at ``log_std``; no noise first."""
    operator = operator or DirichletLaplacian()
    ones = torch.ones(1, 1, *grid)
    energy = float(GaussianChaos(log_std=log_std, operator=operator).expected_energy(ones)) / ones.numel()
    gates: dict[str, Gate | None] = {"none": None, **matched_gates(ones, energy, tuple(METHODS), operator)}
    return [measure(name, gate, grid, operator, draws) for name, gate in sorted(gates.items(), key=_order)]


def _order(item: tuple[str, Gate | None]) -> int:
    names = ["none", "dropout", "dropout_element", "dropblock", "iid_gaussian", "correlated_gaussian"]
    names += ["signed_correlated", "iid_lognormal", "gch_wick", "gch"]
    return names.index(item[0]) if item[0] in names else len(names)


def measure(name: str, gate: Gate | None, grid: Grid, operator: Operator, draws: int) -> GateMeasurement:
    """All numbers of one gate; None is no noise."""
    n = math.prod(grid)
    if gate is None:
        return GateMeasurement(name, "no noise", math.inf, 0.0, 0.0, 0.0, 0.0, math.nan, math.nan)
    total, squares = torch.zeros(2, *grid, dtype=torch.float64)
    below, ties, drift = 0, 0, 0.0
    key = torch.tensor(fold("desiderata", name))
    for i in range(draws // CHUNK):
        values = gate.perturb(torch.ones(CHUNK, 1, *grid), Noise(advance(key, i)))[:, 0].double()
        total += values.sum(0)
        squares += (values - 1).square().sum(0)
        below += int((values <= 0).sum())
        ties += int((values[1:] == values[:-1]).sum())
        drift = max(drift, float((values.mean((1, 2)) - 1).abs().max()))
    count = CHUNK * (draws // CHUNK)
    bias = (total / count - 1).abs()
    error = ((squares / count - bias.square()).clamp_min(0) / count).sqrt()
    site = int((bias / error.clamp_min(1e-12)).argmax())
    gap, roughness = math.inf, math.inf
    if ties <= ATOMS * count * n:
        gap, roughness = _geometry(gate, grid, operator, logarithm=below == 0)
    return GateMeasurement(
        name,
        f"{type(gate).__name__}({gate.extra_repr()})",
        gap,
        below / (count * n),
        float(bias.flatten()[site]),
        float(error.flatten()[site]),
        drift,
        roughness,
        _smallest_eigenvalue(gate, grid, draws, key),
    )


def _geometry(gate: Gate, grid: Grid, operator: Operator, logarithm: bool) -> tuple[float, float]:
    """Entropy gap and relative roughness of the field that the gate samples, from its differences to the first site."""
    linear = _differences(gate, grid, logarithm)
    n = linear.shape[1]
    green = operator.green(grid)
    kernel = green[1:, 1:] - green[1:, :1] - green[:1, 1:] + green[0, 0]
    covariance = linear[:, 1:].T @ linear[:, 1:]
    # The largest entropy at this mean energy belongs to the multiple of the kernel that has it.
    scale = float(torch.linalg.solve(kernel, covariance).trace()) / (n - 1)
    gap = 0.5 * (math.log(scale) + float(torch.logdet(kernel) - torch.logdet(covariance)) / (n - 1))
    laplacian = grid_graph(grid).laplacian()
    centred = linear - linear.mean(1, keepdim=True)
    energy = float((centred @ laplacian * centred).sum() / laplacian.trace())
    return abs(gap) if abs(gap) < 1e-9 else gap, energy / (float(centred.square().sum()) / (n - 1))


def _differences(gate: Gate, grid: Grid, logarithm: bool) -> Tensor:
    """The field minus its value at the first site, for every vector of the noise's basis: (coordinates, n)."""
    n = math.prod(grid)
    basis = torch.eye(n, dtype=torch.float64).view(n, 1, *grid)
    noise = torch.cat([torch.zeros_like(basis[:1]), basis])
    values = gate.perturb(torch.ones_like(noise), Prescribed(noise)).flatten(1)
    fields = values.log() if logarithm else values
    fields = fields - fields[:, :1]
    return fields[1:] - fields[0]


def _smallest_eigenvalue(gate: Gate, grid: Grid, draws: int, key: Tensor) -> float:
    """The operator is the inverse of the covariance, so the ratio is that of the covariance's eigenvalues."""
    if not isinstance(gate, Mechanism):
        return math.nan
    field, n = gate.field_on(grid), math.prod(grid)
    moments = torch.zeros(n, n, dtype=torch.float64)
    for i in range(draws // CHUNK):
        fields = field.sample(Noise(advance(key, -1 - i)), CHUNK, 1, torch.float64).flatten(1)
        moments += fields.T @ fields
    spectrum = torch.linalg.eigvalsh(moments)
    return max(0.0, float(spectrum[0] / spectrum[-1]))
