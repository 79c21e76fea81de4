r"""Compare one gate on one grid with the paper's formulas: predicted, measured, tolerance.

:func:`verify` reads operator, strength and realization from the gate. It checks

* **every gate**: it is the identity in evaluation mode; a map of ones keeps its mean, per sample or
  at every site; the injected energy equals the reported energy.
* **a sample-wise or Wick gate** (:class:`~chaosgate.gate.GaussianChaos`, or a
  :class:`~chaosgate.gate.Mechanism` with a Gaussian law on the same grid that multiplies): the
  operator's matrix is symmetric without negative eigenvalues, and ``energy`` agrees with it;
  covariance, mean energy and entropy of the log-field are those of :math:`(\beta Q)^{-1}`;
  positivity, mean one, and the two-point kernel of the Wick gate; log-ratios, orderings, added
  roughness, independence of the map's scale and the threshold band of the sample-wise gate.
* **dropout**: values, singular log-ratios, kept orderings, added roughness and broken cycles.

The reference is dense algebra in float64 with the operator's own ``matrix``. Exact rows apply
the gate to a basis of the noise in float64. Sampled rows draw in float32, as in training, and allow
six standard errors: a correct gate fails with probability 2e-9 per compared number. Operators and
functions of chaosgate are tested on other grids in ``tests/paper``, not here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chaosgate.compat.observables import (
    betti_numbers,
    chaos_operator,
    coherence,
    cycle_fracture,
    cycle_graph,
    dropout_amplification,
    green_metric,
    grid_graph,
    intrinsic_energy,
    log_ratio_deformation,
    log_ratio_law,
    pair_differences,
    random_pairs,
    ranking_preserved,
    ranking_probability,
    roughness_budget,
)
from chaosgate.field import Grid, Operator
from chaosgate.field.operator import as_grid, grid_text
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import Dropout, Gate, Mechanism, SampleWise, Wick

EXACT, SINGLE = 1e-9, 1e-5
"""Relative tolerance of exact rows, and of those computed in single precision."""

STANDARD_ERRORS = 6.0
ESTIMATE = 0.02
"""Relative error allowed for a reported energy that is an estimate, without closed form."""

_CHUNK_SITES = 1 << 22
Number = Tensor | float


@dataclass(frozen=True)
class Check:
    """One formula: predicted value, measured value, and tolerance.

    If a formula is about many numbers, the one with the largest difference is shown. ``draws``
    is the number of sampled gates, 0 for an exact row.
    """

    statement: str
    predicted: float
    measured: float
    tolerance: float
    draws: int = 0

    @property
    def passed(self) -> bool:
        return abs(self.measured - self.predicted) <= self.tolerance  # false for NaN


def exact(
    statement: str,
    predicted: Number,
    measured: Number,
    tolerance: float = EXACT,
    scale: float | None = None,
) -> Check:
    """Numbers that agree up to rounding, relative to ``scale`` or to the largest prediction."""
    size = float(torch.as_tensor(predicted).abs().max()) if scale is None else scale
    return _worst(statement, predicted, measured, tolerance * size, 0)


def sampled(statement: str, predicted: Number, mean: Number, error: Number, draws: int) -> Check:
    """Means over draws that agree up to six standard errors."""
    return _worst(statement, predicted, mean, STANDARD_ERRORS * torch.as_tensor(error), draws)


def _worst(name: str, predicted: Number, measured: Number, allowed: Number, draws: int) -> Check:
    """The entry whose difference is largest, relative to what is allowed."""
    shape = torch.as_tensor(measured).shape
    expected, found, tolerance = (
        torch.as_tensor(value, dtype=torch.float64).expand(shape).flatten()
        for value in (predicted, measured, allowed)
    )
    excess = (found - expected).abs() / tolerance.clamp_min(1e-300)
    at = int(excess.nan_to_num(math.inf, math.inf).argmax())
    return Check(name, float(expected[at]), float(found[at]), float(tolerance[at]), draws)


class GivenNoise(Noise):
    """Given noise instead of random draws: a basis, or chosen masks."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(torch.tensor(0))
        self.values = values

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self.values.to(dtype).reshape(tuple(shape))

    uniform = normal


def verify(gate: Gate, grid: Sequence[int], draws: int = 1 << 16, seed: int = 0) -> list[Check]:
    """Check the paper's formulas for ``gate`` on ``grid``; the module's docstring lists them.

    >>> from chaosgate.gate import GaussianChaos
    >>> checks = verify(GaussianChaos(log_std=1.0), (5, 5), draws=2000)
    >>> all(check.passed for check in checks)
    True

    Args:
        gate: Any gate, at full strength.
        grid: One, two or three axes with at least four sites.
        draws: Gates per sampled row.
        seed: Selects the noise.
    """
    sites = as_grid(grid)
    if math.prod(sites) < 4 or draws < 1024:
        raise ValueError(
            "verify needs a grid of at least four sites and at least 1024 draws; got grid "
            f"{grid_text(sites)} and {draws} draws."
        )
    gate.check(sites)
    case = _Case(gate, sites, draws, torch.tensor(fold(seed, "verify", *sites)))
    mode = gate.training
    h = case.map()[None, None]
    unchanged = torch.equal(gate.eval()(h), h)
    gate.train(mode)
    checks = [exact("maps that change in evaluation mode", 0.0, float(not unchanged))]
    operator = chaos_operator(gate, sites)
    if operator is not None:
        checks += _chaos(case, operator)
    if isinstance(gate, Dropout):
        checks += _dropout(case, gate)
    if operator is None or not isinstance(getattr(gate, "realization", None), Wick):
        checks += _moments(case)  # the Wick gate has too heavy tails for it, and exact rows instead
    return checks


@dataclass(frozen=True)
class _Case:
    gate: Gate
    grid: Grid
    draws: int
    key: Tensor

    def push(self, maps: Tensor, noise: Tensor) -> Tensor:
        r"""The gate on one map, or one per noise, under given noise (b, 1, \*grid): (b, \*grid)."""
        h = maps.expand(len(noise), *self.grid)[:, None]
        return self.gate.perturb(h, GivenNoise(noise))[:, 0]

    def map(self) -> Tensor:
        """A rough positive map, float64."""
        return (0.7 * Noise(advance(self.key, 0)).normal(self.grid, torch.float64)).exp()

    def sample(self, h: Tensor) -> Iterator[Tensor]:
        r"""``draws`` gates on one float32 map, in chunks (b, \*grid)."""
        size, left, number = max(64, _CHUNK_SITES // h.numel()), self.draws, 0
        while left > 0:
            batch, number = min(size, left), number + 1
            maps = h.float().expand(batch, 1, *h.shape)
            yield self.gate.perturb(maps, Noise(advance(self.key, number)))[:, 0]
            left -= batch


def _moments(case: _Case) -> Iterator[Check]:
    """Mean and energy of the gate on a map of ones, sampled."""
    ones, draws = torch.ones(case.grid), case.draws
    total, squares = torch.zeros(2, *case.grid, dtype=torch.float64)
    means, injected = [], []
    for values in case.sample(ones):
        values = values.double()
        total += values.sum(0)
        squares += (values - 1).square().sum(0)
        means.append(values.flatten(1).mean(1))
        injected.append((values - 1).square().flatten(1).sum(1))
    spatial = torch.cat(means)
    if float(spatial.max() - spatial.min()) <= SINGLE:
        yield exact("mean one in every sample (eq. samplewise_meanone)", 1.0, spatial, SINGLE)
    else:
        error = (squares / draws - (total / draws - 1).square()).clamp_min(0).sqrt()
        yield sampled("mean one at every site", 1.0, total / draws, error / draws**0.5, draws)
    energy = torch.cat(injected)
    reported = float(case.gate.expected_energy(ones[None, None]))
    error = energy.std() / draws**0.5 + ESTIMATE / STANDARD_ERRORS * reported
    yield sampled("injected energy is the reported one", reported, energy.mean(), error, draws)


def _chaos(case: _Case, operator: Operator) -> Iterator[Check]:
    """A sample-wise or Wick gate against the dense law of its operator."""
    gate, grid = case.gate, case.grid
    assert isinstance(gate, Mechanism)
    n, axes, samplewise = math.prod(grid), len(grid), isinstance(gate.realization, SampleWise)
    law, nominal = gate.field_on(grid).law, gate.nominal(grid)
    gamma, tau = nominal["gamma"], nominal["gamma"] ** 2 / law.beta

    matrix = operator.matrix(grid).double()
    size = float(matrix.abs().max())
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    yield exact("asymmetry of the operator", 0.0, (matrix - matrix.T).abs().max(), scale=size)
    yield exact("negative eigenvalue of the operator", 0.0, values[0].clamp_max(0), scale=size)
    fields = Noise(advance(case.key, -1)).normal((16, *grid), torch.float64)
    form = 0.5 * (fields.flatten(1) @ matrix * fields.flatten(1)).sum(1)
    found = operator.energy(fields, axes)
    yield exact("energy is half the quadratic form (eq. general_budget)", form, found)

    free = values > 1e-10 * values[-1]
    values, vectors = values[free], vectors[:, free]
    green = (vectors / values) @ vectors.T
    entropy = 0.5 * float((2 * math.pi * math.e / (law.beta * values)).log().sum())
    name = "entropy of the law (eq. maxent_entropy_value)"
    yield exact(name, entropy, law.entropy(), scale=len(values))
    log_std = math.sqrt(tau * float(green.diagonal().mean()))
    yield exact("log_std is sqrt(tau mean G(x, x))", log_std, nominal["log_std"])

    # Zero noise and a basis: the log-gate is affine in the noise, for sample-wise up to a constant.
    eye = torch.eye(n, dtype=torch.float64)
    basis = torch.cat([0 * eye[:1], eye]).view(-1, 1, *grid)
    logs = case.push(torch.ones((), dtype=torch.float64), basis).log().flatten(1)
    center = eye - 1 / n if samplewise else eye
    linear = (logs[1:] - logs[0]) @ center
    covariance, expected = linear.T @ linear / gamma**2, center @ green @ center / law.beta
    name = "covariance of the log-field is (beta Q)^-1 (cor. green_forcing)"
    yield exact(name + ", centered" * samplewise, expected, covariance)
    if not samplewise:
        budget = 0.5 * (matrix * covariance).sum()
        name = "mean energy of the log-field is epsilon (eq. general_budget)"
        yield exact(name, law.epsilon, budget)
        mean = logs[0] + 0.5 * linear.square().sum(0)
        yield exact("expectation one at every site (eq. chaos-mean1)", 1.0, mean.exp())
        kernel = mean[:, None] + mean + linear.T @ linear
        yield exact("log of the two-point kernel is tau G (eq. kernel_tau)", tau * green, kernel)
        energy = float((tau * green.diagonal()).expm1().sum())
        found = gate.expected_energy(torch.ones(1, 1, *grid, dtype=torch.float64))
        yield exact("injected energy is exp(tau G(x, x)) - 1, summed", energy, found)

    h, pairs = case.map(), random_pairs(n, 64, Noise(advance(case.key, -2)))
    shift, variance = log_ratio_law(gate, grid, pairs, green_metric(green, pairs))
    moved = log_ratio_deformation(h, case.push(h, basis), pairs, axes)
    name = "mean change of log-ratios (thm. samplewise_logratio)"
    yield exact(name, shift, moved[0], scale=1.0)
    name = "variance of log-ratios is tau R_G (eq. samplewise_logratio_var)"
    yield exact(name, variance, (moved[1:] - moved[0]).square().sum(0))
    again = log_ratio_deformation(1e3 * h, case.push(1e3 * h, basis), pairs, axes)
    yield exact("rescaling the map changes no log-ratio (cor. scale_compatibility)", moved, again)
    if samplewise:
        graph = grid_graph(grid)
        both = torch.cat([case.push(h, sign * basis[1:]) for sign in (1, -1)])
        added = 0.5 * intrinsic_energy(both.log(), graph).sum()
        added -= n * intrinsic_energy(h.log(), graph)
        cost = gamma**2 * roughness_budget(green / law.beta, graph)
        yield exact("roughness added to a log-map (cor. samplewise_intrinsic)", cost, added)
    # Sampled in float32, with noise that the gate draws.
    draws, margin, h = case.draws, variance[0].sqrt(), h.clone()
    h.view(-1)[pairs[0, 0]] = h.view(-1)[pairs[0, 1]] * margin.exp()
    squares, total = (torch.zeros(k, dtype=torch.float64) for k in (len(pairs), n))
    kept, below, outside = 0, 0, 0
    for gated in case.sample(h):
        moved = log_ratio_deformation(h, gated.double(), pairs, axes)
        squares += (moved - shift).square().sum(0)
        kept += int(ranking_preserved(h.float(), gated, pairs[:1], axes).sum())
        below += int((gated <= 0).sum())
        logs = (gated.double() / h.float().double()).log().flatten(1)
        total += logs.sum(0)
        outside += int((logs.abs().amax(1) > logs.amax(1) - logs.amin(1) + SINGLE).sum())
    yield exact("values that are not positive", 0.0, below)
    error = variance * math.sqrt(2 / draws)
    yield sampled("sampled variance of log-ratios", variance, squares / draws, error, draws)
    chance = ranking_probability(margin, variance[0], shift[0])
    name = "orderings kept at a margin of one deviation (cor. ranking_stability)"
    yield sampled(name, chance, kept / draws, (chance * (1 - chance) / draws).sqrt(), draws)
    if samplewise:
        name = "gates outside the band abs(gamma) osc(psi) (prop. gch_random_sandwich)"
        yield exact(name, 0.0, outside)
    else:
        name = "sampled mean of the log-gate is -tau G(x, x)/2 (eq. exact_gate)"
        spread = tau * green.diagonal()
        yield sampled(name, -0.5 * spread, total / draws, (spread / draws).sqrt(), draws)


def _dropout(case: _Case, gate: Dropout) -> Iterator[Check]:
    """Masks that keep every site independently with probability q."""
    q, draws, axes = 1 - gate.p, case.draws, len(case.grid)
    h, graph = case.map(), grid_graph(case.grid)
    # Neighbors differ in parity: four masks show every edge all its cases, with known weights.
    parity = torch.stack(torch.meshgrid(*map(torch.arange, case.grid), indexing="ij")).sum(0) % 2
    masks = [torch.where(parity == 0, a, b) for a in (0.0, 1.0) for b in (0.0, 1.0)]
    masked = case.push(h, torch.stack(masks)[:, None].double())
    weight = torch.tensor([(1 - q) ** 2, q * (1 - q), q * (1 - q), q**2], dtype=torch.float64)
    yield exact("kept sites are divided by q", torch.stack([0 * h, h / q]), masked[[0, 3]], SINGLE)
    factor = (weight * intrinsic_energy(masked, graph)).sum() / intrinsic_energy(h, graph)
    expected = dropout_amplification(coherence(h, graph), q)
    name = "roughness grows by 1 + kappa (1-q)/q (cor. coherence_factor)"
    yield exact(name, expected, factor, SINGLE)
    pair, singular, kept = torch.tensor([[0, h.numel() - 1]]), 0, torch.zeros(2)
    for number, margin in enumerate((1e-3, 10.0)):
        h.view(-1)[0] = h.view(-1)[-1] * math.exp(margin)
        for gated in case.sample(h):
            kept[number] += int((pair_differences(gated, pair, axes) > 0).sum())
            lost = ~log_ratio_deformation(h, gated, pair, axes).isfinite()
            singular += int(lost.sum()) * (number == 0)
    ring = cycle_graph(8)
    loops = sum(int(betti_numbers(x > 0, ring)[1].sum()) for x in case.sample(torch.ones(8)))
    for name, chance, share in (
        ("singular log-ratios: 1 - q^2 (thm. binary_mask_singularity)", 1 - q**2, singular / draws),
        ("orderings kept, margins .001 and 10: q (cor. dropout_margin_blind)", q, kept / draws),
        ("broken 8-cycles: 1 - q^8 (thm. cycle_fracture)", cycle_fracture(q, 8), 1 - loops / draws),
    ):
        yield sampled(name, chance, share, math.sqrt(chance * (1 - chance) / draws), draws)


def title(gate: Gate, grid: Sequence[int]) -> str:
    """The gate, its grid and its strength in one line."""
    strength = ", ".join(f"{name} {v:.4g}" for name, v in gate.nominal(as_grid(grid)).items())
    return f"{type(gate).__name__}({gate.extra_repr()}) on {grid_text(grid)}: {strength}"


def as_markdown(checks: Sequence[Check], heading: str) -> str:
    """For the terminal, a README or an issue."""
    lines = [f"**{heading}**", "", "| statement | predicted | measured | tolerance | draws | |"]
    lines.append("|---|" + "---:|" * 4 + "---|")
    for c in checks:
        draws, result = f"{c.draws:,}" if c.draws else "exact", "pass" if c.passed else "FAIL"
        numbers = f"{c.predicted:.6g} | {c.measured:.6g} | {c.tolerance:.2g}"
        lines.append(f"| {c.statement} | {numbers} | {draws} | {result} |")
    return "\n".join([*lines, ""])
