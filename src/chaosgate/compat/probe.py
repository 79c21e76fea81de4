"""Measure the observables inside a network, for the gate of the run and reference gates at equal
energy.

:class:`Probe` records the feature maps of the stages, applies gates to them and measures
log-ratios, orderings, roughness and topology before and after, together with the paper's
predictions. The result is plain data (:meth:`ProbeReading.rows`), a table (:func:`as_markdown`) and
a figure (:func:`probe_figure`).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

from chaosgate.compat.matching import DEFAULT_METHODS as DEFAULT_METHODS
from chaosgate.compat.matching import METHODS as METHODS
from chaosgate.compat.matching import check_methods, matched_gates
from chaosgate.compat.observables import (
    betti_numbers,
    chaos_operator,
    coherence,
    dropout_amplification,
    grid_graph,
    intrinsic_energy,
    is_signed,
    log_ratio_law,
    log_ratios,
    pair_differences,
    pair_variances,
    positive_pairs,
    random_pairs,
    ranking_probability,
    superlevel,
    weighted_mass,
)
from chaosgate.field import Grid
from chaosgate.field.operator import grid_text
from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import Dropout, Gate, GaussianChaos, SampleWise
from chaosgate.inject.attachment import Attachment
from chaosgate.inject.dryrun import eager, evaluation
from chaosgate.inject.effect import relative_change, relative_energy
from chaosgate.inject.stages import STAGES, resolve_sites

NAN = math.nan
MOST_EDGES = 512
"""Maximal number of edges for the roughness of log-maps; larger grids use every n-th edge."""

TOPOLOGY_SITES = 1 << 20
"""Maximal number of sites in superlevel sets per gate; further maps are left out.
"""


@dataclass(frozen=True)
class StageReading:
    r"""A stage without gates. A map is one channel of one image.

    Attributes:
        stage: Its name.
        module: Its module.
        grid: Sites along each axis.
        maps: Number of maps.
        signed: Whether any value is negative; then there are no log-ratios, and their numbers are
            NaN.
        positive_share: Share of sites with a positive value.
        coherence: :math:`\kappa` of all maps together, mass over roughness.
        coherence_median: Median of :math:`\kappa` over the maps.
        coherence_pooled: :math:`\kappa` after average pooling to the coarsest grid of the stages.
            Kappa compares neighbors, which are further apart on a coarse grid; with pooling all
            stages are compared at the same distance.
        roughness: Intrinsic energy divided by the squared norm.
        margin_low: 10 % quantile of the log-margins between positive sites.
        margin_median: Their median.
        margin_high: Their 90 % quantile.
    """

    stage: str
    module: str
    grid: Grid
    maps: int
    signed: bool
    positive_share: float
    coherence: float
    coherence_median: float
    coherence_pooled: float
    roughness: float
    margin_low: float = NAN
    margin_median: float = NAN
    margin_high: float = NAN


@dataclass(frozen=True)
class MethodReading:
    """A gate at a stage. A prediction is NaN if the paper makes none.

    Attributes:
        stage: Its name.
        method: Name of the method; the gate of the run ends with ``(attached)``.
        gate: The module as text, with its strength.
        energy: Measured injected energy over the energy of the features.
        deformation: Root mean square of the finite changes of log-ratios.
        deformation_predicted: By thm. samplewise_logratio.
        finite: Share of log-ratios that stay finite.
        finite_predicted: One, or q^2 for dropout.
        ranking: Share of orderings that are kept.
        ranking_predicted: By cor. ranking_stability, or q for dropout.
        inflation: Factor on the intrinsic energy.
        inflation_predicted: By cor. coherence_factor for dropout.
        added_roughness: Mean increase of the squared log-difference of neighbors; infinite if
            sites were deleted.
        added_roughness_predicted: By cor. samplewise_intrinsic.
        topology: Share of superlevel sets (at the mean of each map) whose Betti numbers stay the
            same.
        components: Number of components after, over before.
        loops: Number of independent cycles after, over before.
        logit_change: Relative change of the network's output.
        agreement: Share of images whose top class stays the same.
    """

    stage: str
    method: str
    gate: str
    energy: float
    deformation: float = NAN
    deformation_predicted: float = NAN
    finite: float = NAN
    finite_predicted: float = NAN
    ranking: float = NAN
    ranking_predicted: float = NAN
    inflation: float = NAN
    inflation_predicted: float = NAN
    added_roughness: float = NAN
    added_roughness_predicted: float = NAN
    topology: float = NAN
    components: float = NAN
    loops: float = NAN
    logit_change: float = NAN
    agreement: float = NAN


@dataclass(frozen=True)
class ProbeReading:
    """All stages and methods of one measurement."""

    stages: tuple[StageReading, ...]
    methods: tuple[MethodReading, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Plain data for JSON: a row per stage (``kind: stage``) and one per method (``kind:
        method``).
        """
        rows: list[dict[str, Any]] = [{"kind": "stage", **asdict(s)} for s in self.stages]
        rows += [{"kind": "method", **asdict(m)} for m in self.methods]
        for row in rows:  # JSON has neither NaN nor infinity: null and "inf" stand for them
            for name, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    row[name] = None if math.isnan(value) else str(value)
        return rows

    def scalars(self) -> dict[str, float]:
        """The finite numbers, by names for a logger: ``L4/coherence``, ``L4/dropout/ranking``."""
        named = [(s.stage, asdict(s)) for s in self.stages]
        named += [(f"{m.stage}/{m.method}", asdict(m)) for m in self.methods]
        return {
            f"{prefix}/{name}": value
            for prefix, values in named
            for name, value in values.items()
            if isinstance(value, float) and math.isfinite(value)
        }

    def of(self, stage: str, method: str) -> MethodReading:
        """The reading of one method at one stage."""
        return next(m for m in self.methods if (m.stage, m.method) == (stage, method))

    def method_names(self) -> list[str]:
        return list(dict.fromkeys(m.method for m in self.methods))


class StageMaps:
    r"""The maps of one stage, and their properties that do not depend on a gate.

    Args:
        stage: Its name.
        module: Its module.
        h: Maps (B, C, \*grid).
        num_pairs: Number of pairs of sites to compare.
        key: Selects the pairs, and the noise of the gates.
    """

    def __init__(self, stage: str, module: str, h: Tensor, num_pairs: int, key: Tensor) -> None:
        self.stage, self.module, self.h, self.key = stage, module, h, key
        self.grid: Grid = tuple(h.shape[2:])
        self.axes = len(self.grid)
        self.graph = grid_graph(self.grid)
        self.energy = intrinsic_energy(h, self.graph).double().sum()
        self.coherence = float(weighted_mass(h, self.graph).double().sum() / (2 * self.energy))
        self.pairs = random_pairs(self.graph.num_sites, num_pairs, Noise(advance(key, 0)))
        self.edges = self.graph.edges[:: math.ceil(len(self.graph.edges) / MOST_EDGES)].to(h.device)
        self.signed = is_signed(h)
        if not self.signed:
            self.positive = positive_pairs(h, self.pairs, self.axes)
            self.joined = positive_pairs(h, self.edges, self.axes)
            self.ratios = log_ratios(h, self.pairs, self.axes)
            self.steps = log_ratios(h, self.edges, self.axes)[self.joined].double()
            self.order = pair_differences(h, self.pairs, self.axes).sign()
            self.ordered = self.positive & (self.order != 0)

    def reading(self, coarsest: Grid) -> StageReading:
        """The stage without gates; ``coarsest`` is the smallest grid of the compared stages."""
        kappa = coherence(self.h, self.graph)
        pool: Any = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[self.axes - 1]
        pooled, graph = pool(self.h, coarsest), grid_graph(coarsest)
        mass, energy = (f(pooled, graph).double().sum() for f in (weighted_mass, intrinsic_energy))
        margins: dict[str, float] = {}
        if not self.signed and bool(self.positive.any()):
            found = self.ratios[self.positive].abs().double()
            step = math.ceil(len(found) / (1 << 20))  # torch.quantile takes at most 16 million
            values = torch.quantile(found[::step], found.new_tensor([0.1, 0.5, 0.9])).tolist()
            names = ("margin_low", "margin_median", "margin_high")
            margins = dict(zip(names, values, strict=True))
        return StageReading(
            self.stage,
            self.module,
            self.grid,
            self.h.shape[0] * self.h.shape[1],
            self.signed,
            positive_share=float((self.h > 0).double().mean()),
            coherence=self.coherence,
            coherence_median=float(kappa.nanmedian()),
            coherence_pooled=float(mass / (2 * energy)),
            roughness=float(self.energy / self.h.double().square().sum()),
            **margins,
        )

    def behind(self, method: str, gate: Gate, draws: int, metric: Tensor | None) -> MethodReading:
        """The stage with a gate.

        Args:
            method: Name of the method.
            gate: The gate.
            draws: Number of gates per image.
            metric: :math:`R_G` of ``pairs`` and ``edges`` under the gate's operator, from
                :func:`pair_variances`; None makes no prediction.
        """
        gated = [gate.perturb(self.h, Noise(advance(self.key, draw + 1))) for draw in range(draws)]
        injected = sum(float((after - self.h).double().square().sum()) for after in gated) / draws
        energies = [float(intrinsic_energy(after, self.graph).double().sum()) for after in gated]
        numbers = {"energy": injected / max(float(self.h.double().square().sum()), 1e-300)}
        if float(self.energy) > 0:
            numbers["inflation"] = sum(energies) / draws / float(self.energy)
        keep = keep_probability(gate)
        if keep is not None:
            numbers["inflation_predicted"] = float(dropout_amplification(self.coherence, keep))
        if not self.signed:
            numbers |= self._log_geometry(gated) | self._topology(gated[0])
            if keep is not None:  # thm. binary_mask_singularity, cor. dropout_margin_blind
                numbers |= {"finite_predicted": keep**2, "ranking_predicted": keep}
                numbers["added_roughness_predicted"] = math.inf
            elif metric is not None:
                numbers |= self._predicted(gate, metric)
        text = f"{type(gate).__name__}({gate.extra_repr()})"
        return MethodReading(stage=self.stage, method=method, gate=text, **numbers)

    def _log_geometry(self, gated: Sequence[Tensor]) -> dict[str, float]:
        squares, finite, kept, growth = 0.0, 0, 0, 0.0
        for after in gated:
            logs = after.log()
            moved = pair_differences(logs, self.pairs, self.axes) - self.ratios
            deformation = moved[self.positive].double()
            is_finite = deformation.isfinite()
            finite += int(is_finite.sum())
            squares += float(deformation[is_finite].square().sum())
            differences = pair_differences(after, self.pairs, self.axes)
            kept += int(((differences * self.order > 0) & self.ordered).sum())
            steps = pair_differences(logs, self.edges, self.axes)[self.joined].double()
            grown = steps.square().nan_to_num(math.inf, math.inf)
            growth += float(grown.sum() - self.steps.square().sum())
        return {
            "deformation": math.sqrt(squares / finite) if finite else NAN,
            "finite": _share(finite, int(self.positive.sum()) * len(gated)),
            "ranking": _share(kept, int(self.ordered.sum()) * len(gated)),
            "added_roughness": _share(growth, len(self.steps) * len(gated)),
        }

    def _predicted(self, gate: Gate, metric: Tensor) -> dict[str, float]:
        """Predictions for a gate with Gaussian log-ratios (thm. samplewise_logratio)."""
        if not bool(self.ordered.any()) or not bool(self.joined.any()):
            return {}
        law = log_ratio_law(gate, self.grid, torch.cat([self.pairs, self.edges]).cpu(), metric)
        m = len(self.pairs)
        mean, variance = (part[:m].to(self.ratios) for part in law)
        chances = ranking_probability(self.ratios.abs(), variance, self.order * mean)
        second = (mean.square() + variance).expand_as(self.ratios)[self.positive]
        # E (s + d)^2 - s^2 with a step s and its deformation d; the sample-wise d has mean zero.
        tilt, spread = (p[m:].to(self.steps).expand_as(self.joined)[self.joined] for p in law)
        growth = 2 * self.steps * tilt + tilt.square() + spread
        return {
            "deformation_predicted": math.sqrt(float(second.double().mean())),
            "finite_predicted": 1.0,
            "ranking_predicted": float(chances[self.ordered].double().mean()),
            "added_roughness_predicted": float(growth.double().mean()),
        }

    def _topology(self, after: Tensor) -> dict[str, float]:
        """Betti numbers of superlevel sets at the mean of each map, before and after one gate."""
        most = max(1, TOPOLOGY_SITES // self.graph.num_sites)
        maps, behind = (f.flatten(0, 1)[:most] for f in (self.h, after))
        level = maps.mean(tuple(range(1, maps.ndim)))
        alive = level > 0
        if not bool(alive.any()):
            return {}
        maps, behind, level = maps[alive], behind[alive], level[alive]
        components, loops = betti_numbers(superlevel(maps, level), self.graph)
        components_after, loops_after = betti_numbers(superlevel(behind, level), self.graph)
        same = (components == components_after) & (loops == loops_after)
        return {
            "topology": float(same.double().mean()),
            "components": float(components_after.sum().double() / components.sum()),
            "loops": float(loops_after.sum().double() / loops.sum()),
        }


def _share(part: float, whole: int) -> float:
    return part / whole if whole else NAN


def keep_probability(gate: Gate) -> float | None:
    """The q of a gate that keeps every site of a channel independently, else None."""
    if not isinstance(gate, Dropout):
        return None
    return 1 - gate.p * (1.0 if gate.factor is None else float(gate.factor))


class _Recorder(Gate):
    """Changes nothing and keeps the features it sees."""

    seen: Tensor | None = None

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        self.seen = h.detach()
        return h


@dataclass
class Probe:
    """What to measure. Random numbers are a function of ``seed``; the model does not change.

    Attributes:
        stages: Names of stages or modules.
        methods: Reference gates at equal energy: gch, gch_wick, dropout, dropout_element,
            dropblock, iid_gaussian, correlated_gaussian, signed_correlated, iid_lognormal.
        channels: Number of channels, evenly spaced.
        draws: Gates per image.
        pairs: Pairs of sites compared in every map.
        logit_draws: Forward passes of the network per gate, for the change at the output; 0 skips
            them.
        energy: Injected energy relative to the features, equal for all methods; None takes that of
            the gate where it is attached, or at the last stage if it is not attached.
        seed: Selects noise and pairs.
    """

    stages: Sequence[str] = STAGES
    methods: Sequence[str] = DEFAULT_METHODS
    channels: PositiveInt = 32
    draws: PositiveInt = 4
    pairs: PositiveInt = 256
    logit_draws: NonNegativeInt = 0
    energy: PositiveFloat | None = None
    seed: int = 0
    _metrics: dict[tuple[str, str], Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_methods(self.methods)

    def __call__(
        self,
        model: nn.Module,
        batch: Tensor,
        gate: Gate | None = None,
        gate_stages: Sequence[str] = (),
    ) -> ProbeReading:
        """Measure every stage of ``model`` on one batch, in evaluation mode.

        Args:
            model: The backbone.
            batch: Images as the backbone expects them.
            gate: Sets the energy of the comparison at all stages; None is
                ``GaussianChaos(log_std=1)``.
            gate_stages: Where ``gate`` is attached in training; there it is measured, too.
        """
        methods: list[MethodReading] = []
        with evaluation(model), torch.no_grad(), eager():
            attached: set[str] = set()
            if gate is not None:
                attached = set(resolve_sites(model, gate_stages, batch[:1]).values())
            plain, stages = self._stages(model, batch)
            home = next((maps for maps in stages if maps.module in attached), stages[-1])
            reference = gate or GaussianChaos(log_std=1.0)
            reference.check(home.grid)
            energy = relative_energy(reference, home.h) if self.energy is None else self.energy
            for maps in stages:
                gates: dict[str, Gate] = {}
                if maps.module in attached:
                    gates[f"{type(reference).__name__} (attached)"] = reference
                if energy > 1e-9:  # a schedule may hold the gate at zero: nothing to match then
                    gates |= self._references(maps, reference, energy, maps is home)
                for name, other in gates.items():
                    reading = maps.behind(name, other, self.draws, self._metric(maps, other))
                    if self.logit_draws:
                        change, agreement = self._logits(model, batch, plain, maps.module, other)
                        reading = replace(reading, logit_change=change, agreement=agreement)
                    methods.append(reading)
            coarsest = min((maps.grid for maps in stages), key=math.prod)
            return ProbeReading(tuple(maps.reading(coarsest) for maps in stages), tuple(methods))

    def _stages(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, list[StageMaps]]:
        """The output of the network, and the maps of every stage."""
        modules = resolve_sites(model, self.stages, batch[:1])
        recorders = {module: _Recorder() for module in modules.values()}
        with Attachment(model, recorders, measuring=True) as attachment, attachment.forced(draw=0):
            plain = model(batch)
        stages = []
        for asked, module in modules.items():
            if (h := recorders[module].seen) is None:
                raise RuntimeError(f"stage '{asked}': module '{module}' was never called.")
            if math.prod(h.shape[2:]) < 4:
                raise ValueError(
                    f"stage {asked} ({module}) has a {grid_text(h.shape[2:])} grid: too few sites. "
                    "Use larger images, or leave the stage out."
                )
            count = min(self.channels, h.shape[1])
            chosen = torch.linspace(0, h.shape[1] - 1, count).round().long()
            h = h[:, chosen.to(h.device)].float()
            key = torch.tensor(fold(self.seed, "probe", asked), device=h.device)
            stages.append(StageMaps(asked, module, h, self.pairs, key))
        return plain, stages

    def _references(
        self, maps: StageMaps, gate: Gate, energy: float, at_home: bool
    ) -> dict[str, Gate]:
        """The methods at equal energy; a sample-wise gate that sets it stands for itself."""
        is_gch = isinstance(gate, GaussianChaos) and isinstance(gate.realization, SampleWise)
        known = {"gch": gate} if is_gch and at_home and self.energy is None else {}
        try:
            operator = chaos_operator(gate, maps.grid)
        except ValueError:  # made for another grid
            operator = None
        names = [name for name in self.methods if name not in known]
        found = known | matched_gates(maps.h, energy, names, operator)
        return {name: found[name] for name in self.methods}

    def _metric(self, maps: StageMaps, gate: Gate) -> Tensor | None:
        """R_G of pairs and edges; cached, because a callback measures the same stages again and
        again.
        """
        operator = None if maps.signed else chaos_operator(gate, maps.grid)
        if operator is None:
            return None
        at = (maps.stage, f"{operator} {maps.grid}")
        if at not in self._metrics:
            pairs = torch.cat([maps.pairs, maps.edges]).cpu()
            self._metrics[at] = pair_variances(operator, maps.grid, pairs)
        return self._metrics[at]

    def _logits(
        self, model: nn.Module, batch: Tensor, plain: Tensor, module: str, gate: Gate
    ) -> tuple[float, float]:
        """Mean relative change of the output, and share of images that keep their top class."""
        change, agreement = 0.0, 0.0
        with Attachment(model, {module: gate}, self.seed, measuring=True) as attachment:
            for draw in range(self.logit_draws):
                with attachment.forced(draw=draw + 1):
                    gated = model(batch)
                change += relative_change(plain, gated) / self.logit_draws
                same = gated.argmax(-1) == plain.argmax(-1)
                agreement += float(same.double().mean()) / self.logit_draws
        return change, agreement


COLUMNS = {
    "energy": ("energy", ".2f"),
    "log-ratio std": ("deformation", ".2f"),
    "finite": ("finite", ".0%"),
    "orderings kept": ("ranking", ".1%"),
    "roughness x": ("inflation", ".2f"),
    "Betti kept": ("topology", ".0%"),
    "top-1 kept": ("agreement", ".0%"),
}
"""Quantities in the table of :func:`as_markdown`, and their formats."""

NOTE = (
    "In brackets: predicted by the paper. log-ratio std: root mean square change of the finite "
    "log-ratios, on positive sites. roughness x: factor on the intrinsic energy. Betti kept: "
    "superlevel sets at the mean of each map with the same components and cycles."
)


def strength(gate: str) -> str:
    """The strength as it is printed in the text of a gate.

    >>> strength("IIDGaussian(Plain(sigma=1.24239), operator=Identity())")
    'sigma=1.24'
    """
    found = re.search(r"\b(gamma|log_std|sigma|p)=([-+.\de]+)", gate)
    return f"{found[1]}={float(found[2]):.3g}" if found else "matched"


def _number(value: float, form: str, predicted: float = NAN) -> str:
    nothing = form == ".2f" and value < 1e-6  # rounding errors of what does not change
    text = "-" if math.isnan(value) else "0" if nothing else format(value, form)
    return text if math.isnan(predicted) else f"{text} ({predicted:{form}})"


def as_markdown(reading: ProbeReading) -> str:
    """For the terminal, a README or an issue."""
    lines = []
    for s in reading.stages:
        where = s.stage if s.stage == s.module else f"{s.stage} ({s.module})"
        margin = f"median log-margin {_number(s.margin_median, '.2f')}"
        lines.append(
            f"- {where}: {grid_text(s.grid)}, kappa {s.coherence:.2f} ({s.coherence_pooled:.2f} on "
            f"the coarsest grid), {s.positive_share:.0%} of the sites positive, "
            + ("signed maps, so no log-ratios" if s.signed else margin)
        )
    lines += ["", "| " + " | ".join(["stage", "method", "strength", *COLUMNS]) + " |"]
    lines += ["|" + "---|" * 3 + "---:|" * len(COLUMNS)]
    for m in reading.methods:
        numbers = [
            _number(getattr(m, name), form, getattr(m, f"{name}_predicted", NAN))
            for name, form in COLUMNS.values()
        ]
        lines.append("| " + " | ".join([m.stage, m.method, strength(m.gate), *numbers]) + " |")
    lines += ["", NOTE, "", "The late-stage prediction, from first to last stage:", ""]
    return "\n".join([*lines, *(f"- {line}" for line in verdict(reading)), ""])


def verdict(reading: ProbeReading) -> list[str]:
    """Whether the premises and consequences of the paper's late-stage prediction hold here.

    Premises: toward the last stage, coherence (kappa) and log-margins grow. Consequences at equal
    energy: compared with dropout, the smooth gate keeps more orderings and adds less roughness.
    """
    stages = reading.stages
    found = {
        "premise, coherence kappa": [s.coherence for s in stages],
        "premise, kappa of maps pooled to one grid": [s.coherence_pooled for s in stages],
        "premise, median log-margin": [s.margin_median for s in stages],
    }
    if {"gch", "dropout"} <= set(reading.method_names()):
        pairs = [(reading.of(s.stage, "gch"), reading.of(s.stage, "dropout")) for s in stages]
        found["consequence, orderings kept by gch minus dropout"] = [
            gch.ranking - dropout.ranking for gch, dropout in pairs
        ]
        found["consequence, roughness under dropout over gch"] = [
            dropout.inflation / gch.inflation for gch, dropout in pairs
        ]
        found["at the output, change of the logits under dropout over gch"] = [
            dropout.logit_change / gch.logit_change for gch, dropout in pairs
        ]
    lines = []
    for name, values in found.items():
        if all(map(math.isfinite, values)):
            rises = [later > earlier for earlier, later in pairwise(values)]
            trend = "does not grow towards the last stage: does not hold"
            if values[-1] > values[0]:
                trend = "grows from first to last, not at every step: holds in part"
            if all(rises):
                trend = "grows at every step: holds" if rises else "one stage has no trend"
            lines.append(f"{name}: {', '.join(f'{value:.3g}' for value in values)}; {trend}")
    return lines


# Okabe and Ito's palette, for the common color-vision deficiencies; markers work in gray.
_COLORS = "#D55E00 #CC79A7 #E69F00 #009E73 #7a7a7a #8C564B #F0E442 #56B4E9 #0072B2".split()
STYLES = dict(zip(METHODS, zip(_COLORS, "XPs^v<Dho", strict=True), strict=True))
PANELS = {
    "ranking": "orderings kept",
    "finite": "log-ratios that stay finite",
    "inflation": "roughness after / before",
    "topology": "superlevel sets with the same Betti numbers",
}


def probe_figure(reading: ProbeReading, title: str = "") -> Figure:
    """Depth profiles: coherence and log-margins of the network, then every method at equal injected
    energy.

    Filled markers are measured, rings are predicted by the paper. The global state of matplotlib
    does not change.
    """
    figure = Figure(figsize=(11.5, 6.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).flatten()
    stages = [s.stage for s in reading.stages]
    axes[0].plot([s.coherence for s in reading.stages], "ko-", label="all maps")
    pooled = [s.coherence_pooled for s in reading.stages]
    axes[0].plot(pooled, "ks--", mfc="white", label="pooled to one grid")
    axes[0].set(title="coherence kappa of the maps", yscale="log")
    for place, s in enumerate(reading.stages):
        axes[3].vlines(place, s.margin_low, s.margin_high, color="#9a9a9a", linewidth=5)
    axes[3].plot([s.margin_median for s in reading.stages], "ko-", label="median, 10-90 %")
    axes[3].set_title("log-margins between positive sites")
    for axis, (quantity, label) in zip(axes[[1, 2, 4, 5]], PANELS.items(), strict=True):
        for name in reading.method_names():
            color, marker = STYLES.get(name, ("black", "*"))
            methods = [m for m in reading.methods if m.method == name]
            places = [stages.index(m.stage) for m in methods]
            measured = [getattr(m, quantity) for m in methods]
            predicted = [getattr(m, f"{quantity}_predicted", NAN) for m in methods]
            axis.plot(places, measured, color=color, marker=marker, label=name)
            axis.plot(places, predicted, "o", markersize=10, mfc="none", mec=color)
        axis.set_title(label)
        if quantity == "inflation":
            axis.set_yscale("log")
        else:
            axis.set_ylim(-0.03, 1.03)
    for axis in axes:
        axis.set_xticks(range(len(stages)), stages)
        axis.title.set_fontsize(10)
        axis.grid(axis="y", color="#e6e6e6")
    for axis in axes[[0, 3]]:
        axis.legend(fontsize=8, frameon=False)
    handles, labels = axes[1].get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": 4, "frameon": False}
    figure.legend(handles, labels, title="ring: predicted", **where)
    figure.suptitle(title)
    return figure
