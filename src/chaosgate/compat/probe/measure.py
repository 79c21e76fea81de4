"""Measure the observables inside a network: features of one batch, the gate of the run, references at equal energy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from chaosgate.compat.log_ratio import is_signed, lift
from chaosgate.compat.probe.evidence import RatioMetric, chaos_operator, ratio_metric
from chaosgate.compat.probe.matching import DEFAULT_METHODS, check_methods, matched_gates
from chaosgate.compat.probe.reading import MethodReading, ProbeReading, StageMaps
from chaosgate.field import DirichletLaplacian, Grid, Operator
from chaosgate.field.white import Noise, fold
from chaosgate.gate import Gate, GaussianChaos, SampleWise
from chaosgate.inject.attachment import Attachment
from chaosgate.inject.effect import relative_change, relative_energy
from chaosgate.inject.stages import STAGES, eager, evaluation, resolve_sites


class Recorder(Gate):
    """Changes nothing; attached to stages, it lets the attachment record their features."""

    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        return h


@dataclass
class Probe:
    """How to look. Everything random is a function of ``seed``; nothing else is touched.

    Attributes:
        stages: Names of stages or modules.
        methods: Reference gates, see :data:`~chaosgate.compat.probe.matching.METHODS`.
        channels: Channels looked at, evenly spaced.
        draws: Gates per image.
        pairs: Pairs of sites compared in every map.
        lift: Lift maps by this share of their mean, so that zeros have logarithms; 0 keeps to positive sites.
        logit_draws: Passes of the whole network per gate, for the change at the output; 0 leaves that out.
        energy: Injected energy over energy of the features, at which methods are compared; None takes that of the gate
            where it is attached, or at the last stage if it is not attached anywhere.
        seed: Selects noise and pairs.
    """

    stages: Sequence[str] = STAGES
    methods: Sequence[str] = DEFAULT_METHODS
    channels: int = 32
    draws: int = 4
    pairs: int = 256
    lift: float = 0.0
    logit_draws: int = 0
    energy: float | None = None
    seed: int = 0
    _metrics: dict[tuple[str, str], RatioMetric] = field(default_factory=dict, init=False, repr=False)
    _default: Gate = field(default_factory=lambda: GaussianChaos(log_std=1.0), init=False, repr=False)

    def __post_init__(self) -> None:
        check_methods(self.methods)
        for name in ("channels", "draws", "pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"the probe needs at least one of its {name}; got {getattr(self, name)}.")
        if not 0 <= self.lift < math.inf or self.logit_draws < 0:
            raise ValueError(f"lift and logit_draws are zero or positive; got {self.lift} and {self.logit_draws}.")
        if self.energy is not None and not 0 < self.energy < math.inf:
            raise ValueError(f"energy is a positive number, a share of that of the features; got {self.energy}.")
        if not self.stages:
            raise ValueError("stages: name at least one stage to look at, e.g. L4.")
        if self.seed < 0:
            raise ValueError(f"seed is a whole number of at least 0; got {self.seed}.")

    def __call__(
        self, model: nn.Module, batch: Tensor, gate: Gate | None = None, gate_stages: Sequence[str] = ()
    ) -> ProbeReading:
        """Look at every stage of ``model`` on one batch.

        The model runs in evaluation mode and is left as it was found.

        Args:
            model: The backbone.
            batch: Images as the backbone wants them.
            gate: Sets the energy of the comparison, the same at all stages; None is ``GaussianChaos(log_std=1)``.
            gate_stages: Where ``gate`` is attached in training: there it is measured itself as well.
        """
        methods: list[MethodReading] = []
        with evaluation(model), torch.no_grad(), eager():
            modules = resolve_sites(model, self.stages, batch)
            attached = set(resolve_sites(model, gate_stages, batch).values()) if gate is not None else set()
            plain, features = self._features(model, batch, modules)
            every = [self._maps(asked, module, features[asked]) for asked, module in modules.items()]
            home = next((maps for maps in every if maps.module in attached), every[-1])
            reference = self._reference(gate, home)
            for maps in every:
                for name, other in self._gates(maps, reference, maps is home, maps.module in attached).items():
                    reading = maps.behind(name, other, self.draws, self._metric(maps, other))
                    methods.append(self._with_logits(reading, model, batch, plain, maps.module, other))
            coarsest = min((maps.grid for maps in every), key=math.prod)
            return ProbeReading(tuple(maps.reading(coarsest) for maps in every), tuple(methods))

    def _features(self, model: nn.Module, batch: Tensor, modules: dict[str, str]) -> tuple[Tensor, dict[str, Tensor]]:
        with Attachment(model, dict.fromkeys(modules.values(), Recorder()), measuring=True) as recorder:
            with recorder.forced(draw=0, record=True) as recorded:
                plain = model(batch)
        features = {}
        for asked, module in modules.items():
            if module not in recorded:
                raise RuntimeError(f"stage '{asked}' was not reached: module '{module}' was never called.")
            found = recorded[module][0]
            height, width = found.shape[-2:]
            if height * width < 4:
                raise ValueError(
                    f"stage {asked} ({module}) has a {height}x{width} grid: too few sites to compare. Use larger "
                    "images, or leave the stage out."
                )
            chosen = torch.linspace(0, found.shape[1] - 1, min(self.channels, found.shape[1])).round().long()
            features[asked] = found[:, chosen.to(found.device)].float()
        return plain, features

    def _maps(self, asked: str, module: str, h: Tensor) -> StageMaps:
        if self.lift and not is_signed(h):
            h = lift(h, self.lift)
        key = torch.tensor(fold(self.seed, "probe", asked), device=h.device)
        return StageMaps(asked, module, h, self.pairs, key)

    def _reference(self, gate: Gate | None, home: StageMaps) -> tuple[Gate, float]:
        """The gate that sets the energy, and that energy."""
        reference = self._default if gate is None else gate
        reference.check(home.grid)
        return reference, relative_energy(reference, home.h) if self.energy is None else self.energy

    def _gates(self, maps: StageMaps, reference: tuple[Gate, float], at_home: bool, attached: bool) -> dict[str, Gate]:
        """The gate of the run where it is attached, and the methods at equal energy."""
        gate, energy = reference
        gates = {f"{type(gate).__name__} (attached)": gate} if attached else {}
        if not energy > 1e-9:  # a schedule may hold the gate at zero; then there is nothing to match
            return gates
        is_gch = isinstance(gate, GaussianChaos) and isinstance(gate.realization, SampleWise) and self.energy is None
        known = {"gch": gate} if at_home and is_gch else {}
        solved = [name for name in self.methods if name not in known]
        found = known | matched_gates(maps.h, energy, solved, _operator(gate, maps.grid))
        return gates | {name: found[name] for name in self.methods}

    def _metric(self, maps: StageMaps, gate: Gate) -> RatioMetric | None:
        """Kept, because a probe looks at the same stages again and again."""
        operator = chaos_operator(gate, maps.grid)
        if operator is None or maps.evidence is None:
            return None
        at = (maps.stage, f"{operator} {maps.grid}")
        if at not in self._metrics:
            self._metrics[at] = ratio_metric(operator, maps.grid, maps.pairs, maps.evidence.edges)
        return self._metrics[at]

    def _with_logits(
        self, reading: MethodReading, model: nn.Module, batch: Tensor, plain: Tensor, module: str, gate: Gate
    ) -> MethodReading:
        if not self.logit_draws:
            return reading
        change, agreement = 0.0, 0.0
        with Attachment(model, {module: gate}, self.seed, measuring=True) as attachment:
            for draw in range(self.logit_draws):
                with attachment.forced(draw=draw + 1):
                    gated = model(batch)
                change += relative_change(plain, gated) / self.logit_draws
                agreement += float((gated.argmax(-1) == plain.argmax(-1)).double().mean()) / self.logit_draws
        return replace(reading, logit_change=change, agreement=agreement)


def _operator(gate: Gate, grid: Grid) -> Operator:
    """The operator of the gate, if it has one that lives on this grid."""
    try:
        return chaos_operator(gate, grid) or DirichletLaplacian()
    except ValueError:  # made for another grid
        return DirichletLaplacian()
