"""Small faults, one at a time: a function, a piece of its source, and what stands there in the
mutant.
"""

import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A fault in one function.

    Attributes:
        target: ``module:function`` or ``module:Class.method``, below ``chaosgate``.
        old: The last place in its source where this stands ...
        new: ... says this instead.
    """

    target: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.target}: {self.old} -> {self.new}"


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Put the mutant in the place of the original, in every module and table that has it."""
    module = importlib.import_module("chaosgate." + mutant.target.partition(":")[0])
    *owners, name = mutant.target.partition(":")[2].split(".")
    owner = getattr(module, owners[0]) if owners else module
    original = vars(owner)[name]
    function = original.fget if isinstance(original, property) else original
    source = textwrap.dedent(inspect.getsource(function))
    source = source[source.index("def ") :]
    before, found, after = source.rpartition(mutant.old)
    if not found:
        raise LookupError(f"{mutant} does not apply any more: {mutant.target} reads\n{source}")
    if owners:
        parts = (before, after)
        before, after = (part.replace("super()", f"super({owners[0]}, self)") for part in parts)
    made: dict[str, Any] = {}
    late = __future__.annotations.compiler_flag  # types that only the type checker imports
    code = compile(before + mutant.new + after, f"<{mutant}>", "exec", flags=late)
    exec(code, vars(module), made)
    fault = property(made[name]) if isinstance(original, property) else made[name]
    if owners:
        setattr(owner, name, fault)
    loaded = [m for key, m in sys.modules.items() if key.startswith(("chaosgate", "tests"))]
    spaces = [vars(m) for m in loaded]  # of the modules, and the tables in them
    spaces += [value for space in spaces for value in space.values() if isinstance(value, dict)]
    places = [(space, key) for space in spaces for key in space if space[key] is original]
    for space, key in places:
        space[key] = fault
    try:
        yield
    finally:
        if owners:
            setattr(owner, name, original)
        for space, key in places:
            space[key] = original


def _table(text: str) -> list[Mutant]:
    """Read ``name: old -> new`` below the module of the function."""
    found, module = [], ""
    for line in text.strip().splitlines():
        if not line.startswith(" "):
            module = line
            continue
        name, _, change = line.strip().partition(": ")
        old, _, new = f"{change} ".partition(" -> ")
        found.append(Mutant(f"{module}:{name}", old, new.strip()))
    return found


FIELD = _table("""
field.law
  Law.__init__: (2 * value) -> (4 * value)
  Law.tau: gamma**2 -> abs(gamma)
  Law.covariance: / self.beta -> * self.beta
  MaxEntLaw.entropy: 0.5 * self.rank -> self.rank
  MaxEntLaw.log_prob: - self.log_normalizer() -> + self.log_normalizer()
  Law._color_rows: math.sqrt(self.beta) -> self.beta
  Law.sample: torch.randn( -> torch.rand(
  StudentT.fields: (self.degrees - 2) / -> self.degrees /
  StudentT.log_prob: 2 * self.beta * energy -> self.beta * energy
field.grids
  GridLaplacian.matrix: weight * (jump -> (jump
  GridLaplacian._jumps: grid[index + 1 :] -> grid[:index]
  GridLaplacian.energy: 0.5 * weight -> weight
  DirichletLaplacian.differences: 1, 1) -> 1, 0)
  Anisotropic.edge_weights: self.vertical, self.horizontal -> self.horizontal, self.vertical
  Neumann.differences: dim=1 -> dim=2
  Periodic.differences: roll(1, 1) -> roll(2, 1)
  ScalarFactor.shifted: self.scale + mu -> self.scale
  Spectral.matrix: factor.spectrum() @ -> factor.spectrum().sqrt() @
  MultiScale._cost: w / (eigenvalues + m) -> w / eigenvalues
  BandLimited._cost: inside, 1.0, self.outside -> inside, self.outside, 1.0
field.spectral
  Sine.eigenvalues: (2 * (self.n + 1)) -> (2 * self.n)
  Sine.basis: math.sqrt(2 / (self.n + 1)) -> math.sqrt(2 / self.n)
  Cosine.eigenvalues: 4 * -> 2 *
  Cosine._norms: 1 / self.n -> 2 / self.n
  Sine.transform: 1 : self.n + 1 -> 0 : self.n
  Cosine.phases: halves[0] *= 2 -> halves[0] *= 1
  Axis.synthesize: even.sub_(odd) -> even.add_(odd)
  Hartley.transform: spectrum.real + spectrum.imag -> spectrum.real - spectrum.imag
field.operator
  Factor.spectrum: .flip(0) ->
  Massive.matrix: self.mu * -> 2 * self.mu *
  Massive.factor: shifted(self.mu) -> shifted(self.mu**2)
field.pinned
  Pinned.free: = 0.0 -> = 1.0
  PinnedFactor.color: - fields[:, self.site -> + fields[:, self.site
  PinnedFactor.__init__: - math.log(n) -> + math.log(n)
field.cholesky
  CholeskyFactor._variance: - 2 * sums -> - sums
  CholeskyFactor._factorise: math.log(self.n) if self.centered else 0.0 -> 0.0
  CholeskyFactor._place: fields.mean(-1, keepdim=True) -> 0
field.graph
  Graph.laplacian: + self.boundary -> - self.boundary
  FeatureGraph.edge_weights_of: self.bandwidth**2 -> self.bandwidth
  FeatureGraph.edge_weights_of: h.detach() -> h
  FeatureGraph.color_by_features: scale.sqrt() -> scale
field.white
  _fill_on_host: *= -2.0 -> *= -1.9
  _fill_on_host: reshape(count, 2).T -> reshape(count, 2).T[:1]
  Noise._draw: self._calls += 1 -> self._calls += 0
  advance: mix((key + (counter + 1) -> mix((key + (counter // 2 + 1)
field.matrices
  CovarianceFunction.covariance: self.nugget -> 2 * self.nugget
  KernelFactor.inverse: kept / kept.square().sum(0) -> kept
""")

GATE = _table("""
gate.realization
  wick: - 0.5 * -> - 0.25 *
  samplewise: * sites.shape[-1] ->
  small_gamma_expansion: - variance -> + variance
  wick_moment: diagonal=1 -> diagonal=0
  gate_kernel: gamma**2 -> gamma
  signed: 1 + sigma -> sigma
  Multiplicative.__call__: (gate - 1) -> gate
  Multiplicative.energy: self.alpha**2 -> self.alpha
  Additive.__call__: .sqrt() ->
  _scaled: strength * factor -> strength
  Signed.site_energy: ** 2 ->
  Additive.__call__: h.detach() -> h
gate.dropout
  Dropout.perturb: kept / (1 - drop) -> kept
  Dropout.expected_energy: drop / (1 - drop) -> drop
  seed_rate: return rate -> return 2 * rate
  drop_probability: -torch.expm1 -> torch.exp
  block_coverage: + 1 -> + 0
  DropBlock.expected_energy: dropped / (1 - dropped) -> dropped
  Dropout._drop: self.p * self.factor -> self.p
  reach: (size - 1) // 2 -> size // 2
  reach: min(block_size, side) -> block_size
  DropBlock.perturb: kept.numel() / kept.sum() -> 1 / (1 - self.p) * torch.ones(())
  DropBlock.nominal: math.prod(grid) / inner -> 1
gate.base
  Gate.forward: if not self.training: -> if False:
  weighted_energy: .square() -> .abs()
  Gate.forward: self._calls.next( -> self._calls.now(
  Gate.expected_energy: .mean(0) -> .sum(0)
gate.gaussian
  UnitVarianceMechanism.__init__: beta=operator.mean_variance(grid) -> beta=1.0
  UnitVarianceMechanism.strength_for: weighted_energy(h, variance) -> weighted_energy(h, 0 * variance + 1)
  UnitVarianceMechanism.strength_for: .sqrt().view -> .view
  UnitVarianceMechanism.expected_energy: self.match.factor = self.factor -> pass
  IIDGaussian.__init__: = "independent" -> = "shared"
gate.gaussian_chaos
  GaussianChaos.__init__: "epsilon": epsilon -> "epsilon": None
gate.mechanism
  estimated_site_energy: (2 * batch * rounds) -> (batch * rounds)
  DeployedField.__init__: .square().sum((0, 1)) -> .square().mean((0, 1))
  DeployedField._resized: align_corners=False -> align_corners=True
  Mechanism.gate: else h.shape[1] -> else 1
  Mechanism.field_on: if grid in self -> if (grid := tuple(sorted(grid))) in self
gate.matched
  added_roughness: (roughness(gated) - roughness(h)) -> roughness(gated)
  changed_orderings: (before != 0) -> (before == before)
  Matched.solve: < target -> > target
  Matched._scaled: self.strength * one -> one
gate.desiderata
  AdmissibleClass.membership: best.entropy() - entropy -> 0.0
""")

COMPAT = _table("""
compat.observables
  SiteGraph.degrees: self.weights.repeat(2) -> 2 * self.weights.repeat(2)
  grid_graph: enumerate(sides) -> list(enumerate(sides))[-1:]
  cycle_graph: first + 1 -> first + 2
  intrinsic_energy: 0.5 * -> 1.0 *
  weighted_mass: .square() -> .abs()
  coherence: (2 * -> (1 *
  all_pairs: torch.arange(num_sites) -> torch.arange(num_sites - 1)
  pair_differences: ] - flat -> ] + flat
  log_ratio_deformation: - log_ratios(before -> + log_ratios(before
  green_metric: - 2 * -> -
  log_ratio_variance: tau * -> tau**2 *
  positive_pairs: & positive -> | positive
  ranking_probability: .sqrt() ->
  ranking_preserved: > 0 -> >= 0
  log_ratio_law: -0.5 * tau -> 0.5 * tau
  log_ratio_law: * factor ->
  pair_variances: new_zeros(len(basis), start) -> new_zeros(len(basis), 0)
  chaos_operator: law.grid == grid -> True
  sandwich_width: .abs() ->
  oscillation: - flat.amin -> + flat.amin
  betti_numbers: + components -> - components
  betti_numbers: np.arange(size) // n, maps -> np.arange(size) // n, True | maps
  cycle_fracture: 1 - q**n -> 1 - q ** (n - 1)
compat.matching
  _signed: math.sqrt( -> (
  _gch: )) / 2 -> ))
  _dropblock: power.sqrt() -> power
  _unit_variance: / operator.mean_variance(grid) ->
  _solve: < energy else -> > energy else
compat.probe
  StageMaps._topology: maps.mean( -> 0.5 * maps.mean(
  StageMaps._topology: superlevel(behind, level) -> superlevel(behind, behind.mean((1, 2)))
  StageMaps._log_geometry: * self.order > 0 -> * self.order >= 0
  StageMaps._predicted: 2 * self.steps * tilt -> 0
  StageMaps.behind: keep**2 -> keep
  StageMaps.reading: / (2 * energy) -> / energy
  keep_probability: float(gate.factor) -> 1.0
compat.verify
  Check.passed: <= self.tolerance -> <= 2 * abs(self.predicted) + self.tolerance
  _worst: .argmax() -> .argmin()
  sampled: STANDARD_ERRORS * -> 100 *
  exact: tolerance * size -> 1e6 * tolerance * size
  _moments: 1.0, spatial, SINGLE -> 1.0, 1.0, SINGLE
""")

METRICS = _table("""
metrics.functional
  split: .round_() -> .floor_()
  join: coarse + surplus -> coarse
  classification_scores: total**2 -> total
  classification_scores: total.log() + below_top -> total.log() - below_top
  target_rank: - 1) / 2 -> ) / 2
  bin_index: [1:-1] -> [:-1]
  bin_edges: k / num_bins -> k / (num_bins + 1)
  calibration_error: difference.sum(-1) / -> difference.mean(-1) /
  adaptive_bins: right=True -> right=False
  adaptive_bins: mean_of_ties(value, hit) -> hit
  mean_of_ties: total / size -> total
  classwise_calibration_error: (classes * len(probs)) -> len(probs)
  effective_counts: count**2 * accuracy -> count * accuracy
metrics.modules
  NegativeLogLikelihood.compute: nll / count -> nll
  BrierScore.compute: 2 * at_target -> at_target
  BrierScore.decomposition: mean_outcome - base_rate -> mean_outcome
  CellMetrics.update: top1, top5, nll -> top5, top1, nll
  CellMetrics.compute: confidence / n - top1 / n -> top1 / n - confidence / n
metrics.ranking
  risk_coverage: descending=True -> descending=False
  risk_coverage: mean_of_ties(value, error) -> error
  area_under_roc: (2 * len(low)) -> len(low)
metrics.aggregate
  collapsed: max(top1, confidence) -> min(top1, confidence)
metrics.temperature
  temperature_scaling: (1 / inverse -> (inverse
  scaled_scores: -slope -> slope
  scaled_scores: mean * confidence -> -mean * confidence
  fit_derivatives: curvature / temperature -> curvature
""")
