"""Which gate meets which desideratum: every cell has a number measured on the gate, and a mark that
follows from the number.

All gates inject the same energy into a map of ones. If a gate (or its logarithm, if positive) is
affine in the noise, its field is computed exactly from a basis of the noise; otherwise from
samples.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.compat.matching import METHODS, matched_gates
from chaosgate.compat.observables import grid_graph
from chaosgate.compat.verify import GivenNoise
from chaosgate.field import DirichletLaplacian, Grid, Operator
from chaosgate.field.operator import grid_text
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import Gate, GaussianChaos, Mechanism
from chaosgate.gate.desiderata import DESIDERATA

CHUNK = 1 << 13
ATOMS = 1e-3
"""A law whose value at a site repeats more often than this between draws has atoms, so no density.
"""

SINGULAR = 1e-9
"""A ratio of eigenvalues below this is zero: fields are drawn in float64."""

SMOOTH = 0.99
"""A field counts as coherent below this share of the roughness of white noise."""

STANDARD_ERRORS = 5.0
"""How many standard errors a measured bias may be away from zero."""


@dataclass(frozen=True)
class GateMeasurement:
    """The effect of one gate on a map of ones; the defaults mean no noise.

    Attributes:
        name: Name of the method.
        gate: The module as text.
        entropy_gap: Entropy below the maximum at the same Dirichlet budget, in nats per direction
            of the differences between sites; infinite for a law with atoms.
        not_positive: Share of values that are zero or negative.
        site_bias: Largest distance of a site's mean from one.
        site_error: Its standard error.
        sample_bias: Largest distance of a sample's spatial mean from one.
        roughness: Energy of the (log-)field over that of white noise of the same variance; infinite
            if sites are deleted, NaN without noise.
        smallest_eigenvalue: Smallest over largest eigenvalue of the operator, from the covariance
            of sampled fields; NaN for a gate without a field.
    """

    name: str
    gate: str = "no noise"
    entropy_gap: float = math.inf
    not_positive: float = 0.0
    site_bias: float = 0.0
    site_error: float = 0.0
    sample_bias: float = 0.0
    roughness: float = math.nan
    smallest_eigenvalue: float = math.nan


@dataclass(frozen=True)
class Column:
    """How a desideratum is measured: the field with its number, the rule for its mark, the rule
    as text.
    """

    title: str
    number: str
    holds: Callable[[GateMeasurement], bool]
    rule: str


COLUMNS = (
    Column(
        "D1 entropy gap",
        "entropy_gap",
        lambda m: m.entropy_gap < 1e-6,
        "below 1e-6 nats per direction",
    ),
    Column(
        "D2 share <= 0",
        "not_positive",
        lambda m: m.not_positive == 0,
        "no value is at or below zero",
    ),
    Column(
        "D3 bias per site",
        "site_bias",
        lambda m: m.site_bias <= STANDARD_ERRORS * m.site_error,
        f"within {STANDARD_ERRORS:g} standard errors of zero",
    ),
    Column("D3 bias per sample", "sample_bias", lambda m: m.sample_bias < 1e-5, "below 1e-5"),
    Column(
        "D4 roughness",
        "roughness",
        lambda m: m.roughness < SMOOTH,
        f"below {SMOOTH}; white noise has 1",
    ),
    Column(
        "D5 spectrum",
        "smallest_eigenvalue",
        lambda m: m.smallest_eigenvalue > SINGULAR,
        "the smallest eigenvalue of the operator over its largest, from drawn fields, is above "
        f"{SINGULAR:g}",
    ),
)


def desiderata_matrix(
    grid: Grid = (7, 7),
    log_std: float = 0.5,
    operator: Operator | None = None,
    draws: int = 1 << 18,
) -> list[GateMeasurement]:
    """No noise, then all gates and controls at the energy of the sample-wise gate."""
    operator = operator or DirichletLaplacian()
    ones = torch.ones(1, 1, *grid)
    reference = GaussianChaos(log_std=log_std, operator=operator)
    energy = float(reference.expected_energy(ones)) / ones.numel()
    gates = matched_gates(ones, energy, tuple(METHODS), operator)
    measured = [measure(name, gates[name], grid, operator, draws) for name in METHODS]
    return [GateMeasurement("none"), *measured]


def measure(name: str, gate: Gate, grid: Grid, operator: Operator, draws: int) -> GateMeasurement:
    """All numbers of one gate."""
    n, count = math.prod(grid), CHUNK * (draws // CHUNK)
    total, squares = torch.zeros(2, *grid, dtype=torch.float64)
    moments = torch.zeros(n, n, dtype=torch.float64)
    below, ties, drift = 0, 0, 0.0
    key = torch.tensor(fold("desiderata", name))
    for i in range(draws // CHUNK):
        values = gate.perturb(torch.ones(CHUNK, 1, *grid), Noise(advance(key, i)))[:, 0].double()
        total += values.sum(0)
        squares += (values - 1).square().sum(0)
        below += int((values <= 0).sum())
        ties += int((values[1:] == values[:-1]).sum())
        drift = max(drift, float((values.mean(tuple(range(1, values.ndim))) - 1).abs().max()))
        if isinstance(gate, Mechanism):
            noise = Noise(advance(key, -1 - i))
            fields = gate.field_on(grid).sample(noise, CHUNK, 1, torch.float64).flatten(1)
            moments += fields.T @ fields
    bias = (total / count - 1).abs()
    error = ((squares / count - bias.square()).clamp_min(0) / count).sqrt()
    site = int((bias / error.clamp_min(1e-12)).argmax())
    gap, roughness = math.inf, math.inf
    if ties <= ATOMS * count * n:
        gap, roughness = _geometry(gate, grid, operator, logarithm=below == 0)
    spectrum = torch.linalg.eigvalsh(moments)  # of the covariance, the inverse of the operator
    return GateMeasurement(
        name,
        f"{type(gate).__name__}({gate.extra_repr()})",
        entropy_gap=gap,
        not_positive=below / (count * n),
        site_bias=float(bias.flatten()[site]),
        site_error=float(error.flatten()[site]),
        sample_bias=drift,
        roughness=roughness,
        smallest_eigenvalue=max(0.0, float(spectrum[0] / spectrum[-1]))
        if isinstance(gate, Mechanism)
        else math.nan,
    )


def _geometry(gate: Gate, grid: Grid, operator: Operator, logarithm: bool) -> tuple[float, float]:
    """Entropy gap and relative roughness of the field that the gate samples, from its differences
    to the first site.
    """
    n = math.prod(grid)
    noise = torch.cat([torch.zeros(1, n), torch.eye(n)]).double().view(n + 1, 1, *grid)
    values = gate.perturb(torch.ones_like(noise), GivenNoise(noise)).flatten(1)
    fields = values.log() if logarithm else values
    fields = fields - fields[:, :1]
    linear: Tensor = fields[1:] - fields[0]
    green = operator.green(grid)
    kernel = green[1:, 1:] - green[1:, :1] - green[:1, 1:] + green[0, 0]
    covariance = linear[:, 1:].T @ linear[:, 1:]
    # The largest entropy at this mean energy belongs to the multiple of the kernel that has it.
    scale = float(torch.linalg.solve(kernel, covariance).trace()) / (n - 1)
    gap = 0.5 * (math.log(scale) + float(torch.logdet(kernel) - torch.logdet(covariance)) / (n - 1))
    laplacian = grid_graph(grid).laplacian()
    centered = linear - linear.mean(1, keepdim=True)
    energy = float((centered @ laplacian * centered).sum() / laplacian.trace())
    return abs(gap) if abs(gap) < 1e-9 else gap, energy / (float(centered.square().sum()) / (n - 1))


def cell(column: Column, row: GateMeasurement) -> str:
    """The number of a cell and its mark."""
    value = getattr(row, column.number)
    number = "none" if math.isnan(value) else f"{value:.2g}" if abs(value) < 1e4 else str(value)
    error = f" ± {row.site_error:.1g}" if column.title == "D3 bias per site" else ""
    return f"{'✓' if column.holds(row) else '✗'} {number}{error}"


def as_markdown(rows: Sequence[GateMeasurement], grid: Grid, log_std: float) -> str:
    """The matrix with its rules, for the documentation."""
    wishes = ", ".join(f"{text} ({name})" for name, text in DESIDERATA.items())
    lines = [
        "# Which gate meets which desideratum",
        "",
        f"The paper's desiderata: {wishes}.",
        "",
        f"Measured on {grid_text(grid)} by `chaosgate design --matrix`, all gates at the injected "
        f"energy of Gaussian Chaos at log_std {log_std:g}.",
        "",
        "| gate | " + " | ".join(column.title for column in COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for row in rows:
        lines.append(f"| {row.name} | " + " | ".join(cell(one, row) for one in COLUMNS) + " |")
    lines += ["", "A mark follows from its number:", ""]
    lines += [f"- **{column.title}** holds if {column.rule}." for column in COLUMNS]
    lines += ["", "The gates, at the strengths that give them this energy:", ""]
    return "\n".join([*lines, *(f"- `{row.name}`: `{row.gate}`" for row in rows), ""])
