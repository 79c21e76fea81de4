"""The effect of a gate on the output, from one batch with the gate off and on."""

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from chaosgate.field.operator import grid_text
from chaosgate.gate import Gate, GaussianChaos
from chaosgate.inject.attachment import Attachment
from chaosgate.inject.dryrun import (
    SMALLEST_SHARE,
    DryRun,
    eager,
    example_input,
    preserved,
    same_stream,
    sharded,
)
from chaosgate.inject.layout import ChaosgateError, logits_of, mapped, refuse, tensors
from chaosgate.inject.stages import find_stages

MINIMAL_CHANGE = 1e-3
"""Least change of the output, relative to the difference between images and to the size of the
noise.
"""


@dataclass(frozen=True)
class Compared:
    """The map (B, C, *grid) before and after a gate, and the output without and with it."""

    before: Tensor
    after: Tensor
    plain: Tensor
    gated: Tensor

    @property
    def energy(self) -> float:
        """Injected energy relative to that of the features."""
        before, after = self.before.double(), self.after.double()
        return float((after - before).square().sum() / before.square().sum().clamp_min(1e-300))

    @property
    def change(self) -> float:
        """Change of the output relative to that between two images."""
        y = self.plain.double()
        size = (y - y.roll(1, 0)).norm() if y.ndim > 1 and len(y) > 1 else y.norm()
        return float((self.gated.double() - y).norm() / size) if size > 0 else math.nan

    @property
    def arrives(self) -> bool:
        """Whether the gate reaches the output; the threshold is lower for weak gates."""
        return self.change >= MINIMAL_CHANGE * min(1.0, math.sqrt(self.energy)) > 0


@contextmanager
def silent(model: nn.Module, train: bool) -> Iterator[None]:
    """Context with training or evaluation mode, without gradients and attached gates; restores
    weights, buffers, modes, counters and random streams.
    """
    with preserved(model), torch.no_grad(), eager(), ExitStack() as gates:
        for attachment in Attachment.on(model):
            gates.enter_context(attachment.forced(0, set()))
        if not (train and model.training):  # parts of a model that trains may be frozen
            model.train(train)
        yield


def output_of(model: nn.Module, args: Any, kwargs: Any, call: Any = None) -> Tensor:
    """The logits, or else all floating tensors concatenated; torch's random streams do not
    change.
    """
    with same_stream(model):
        output = (call or model)(*args, **kwargs)
    if (logits := logits_of(output)) is not None:
        return logits.detach()
    found = [t.detach().double().flatten() for t in tensors(output) if t.is_floating_point()]
    return torch.cat(found)


def compare(attachment: Attachment, args: Any, kwargs: Any, train: bool) -> dict[str, Compared]:
    """Run the model without gates and with each gate alone, all with the same noise.

    Evaluation mode uses the current strength, training mode full strength.
    """
    model, found = attachment.model, {}
    factors = {gate: gate.factor for gate in attachment.gates.values()}
    with silent(model, train):
        try:
            for gate in factors if train else ():
                gate.factor = None
            with attachment.forced(-1, set()):
                plain = output_of(model, args, kwargs)
            for site in attachment.sites:
                with attachment.forced(-1, {site.module}, record=True) as maps:
                    gated = output_of(model, args, kwargs)
                if site.module not in maps:
                    attachment.refuse_silence(site)
                before, after = maps[site.module]
                site.gate.check(tuple(before.shape[2:]))
                site.gate.prepare(tuple(before.shape[2:]), before.device)
                found[site.module] = Compared(before, after, plain, gated)
        finally:
            for gate, factor in factors.items():
                gate.factor = factor
    return found


def relative_change(plain: Tensor, gated: Tensor) -> float:
    r""":math:`\|y'-y\|/\|y\|`; infinite logits count as changed."""
    size = plain.double().norm()
    if size > 0:
        return float((gated.double() - plain.double()).norm() / size)
    return float((gated != plain).any())


def relative_energy(gate: Gate, before: Tensor) -> float:
    """Expected injected energy relative to that of the features (B, C, *grid), at the current
    strength.
    """
    total = before.double().square().sum().clamp_min(1e-300)
    return float(gate.expected_energy(before).double().sum() / total)


# -- how strong is it? ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteReport:
    r"""The effect of a gate at one module, measured on one batch in evaluation mode.

    ``energy`` is :math:`E\|\tilde h-h\|^2/E\|h\|^2`, the common unit of all methods: an
    expectation over the noise, on the features of ``images`` images; ``logit_change`` the relative
    change of the logits; ``positive_share`` the share of positive values (the log-geometry
    theorems need positive maps); ``gate_min``, ``gate_max`` and ``log_std`` describe the realized
    multiplicative gate if there is one; ``fired`` counts how often gates have acted in
    training; ``strength`` is the schedule's factor on the nominal strength.
    """

    stage: str
    module: str
    gate: str
    layout: str
    grid: tuple[int, ...]
    channels: int
    nominal: dict[str, float]
    energy: float
    logit_change: float
    positive_share: float
    gate_min: float
    gate_max: float
    log_std: float
    fired: int
    images: int
    strength: float = 1.0

    def __str__(self) -> str:
        nominal = ", ".join(f"{name} {value:.4g}" for name, value in self.nominal.items())
        spread = "" if math.isnan(self.log_std) else f" (log std {self.log_std:.2f})"
        where = self.stage if self.stage == self.module else f"{self.stage} -> {self.module}"
        return (
            f"noise at {where}, {self.channels} channels on {grid_text(self.grid)}: {self.gate} "
            f"{nominal}; gate {self.gate_min:.2g} to {self.gate_max:.2g}{spread}; injected energy "
            f"{self.energy:.3g} relative to the features; logits change by "
            f"{self.logit_change:.2g}; {self.positive_share:.0%} of the map is positive"
        )

    def scalars(self) -> dict[str, float]:
        """The finite numbers in it, for a logger."""
        flat = asdict(self) | {f"nominal_{k}": v for k, v in self.nominal.items()}
        return {k: float(v) for k, v in flat.items() if isinstance(v, float) and math.isfinite(v)}


def measure(attachment: Attachment, args: Any, kwargs: Any) -> list[SiteReport]:
    """The strength of every gate, in evaluation mode."""
    found = compare(attachment, args, kwargs, train=False)
    reports = []
    for site in attachment.sites:
        seen = found[site.module]
        before, grid = seen.before, tuple(seen.before.shape[2:])
        h = before.double()
        large = h.abs() > 1e-2 * h.square().mean().sqrt()
        ratio = seen.after.double()[large] / h[large]  # the gate, where the features are not small
        low, high = (float(x) for x in ratio.aminmax()) if ratio.numel() else (math.nan, math.nan)
        report = SiteReport(
            stage=site.stage,
            module=site.module,
            gate=type(site.gate).__name__,
            layout=site.layout.kind if site.layout is not None else "",
            grid=grid,
            channels=before.shape[1],
            nominal=site.gate.nominal(grid),
            energy=relative_energy(site.gate, before),
            images=len(before),
            logit_change=relative_change(seen.plain, seen.gated),
            positive_share=float((before > 0).double().mean()),
            gate_min=low,
            gate_max=high,
            log_std=float(ratio.log().std()) if low > 0 else math.nan,
            fired=attachment.fired,
            strength=attachment.strength,
        )
        reports.append(report)
    return reports


# -- does it reach the output? -------------------------------------------------------------------


def require_effect(attachment: Attachment, args: Any, kwargs: Any) -> None:
    """Raise an error with the measured cause if a gate at full strength does not reach the output
    in training mode; warn if weights that are zero at initialization hide its effect.
    """
    if sharded(attachment.model):
        warnings.warn("gates on sharded parameters are not checked.", stacklevel=2)
        return
    found = compare(attachment, args, kwargs, train=True)
    for site in attachment.sites:
        seen, where = found[site.module], f"{site.stage} ({site.module})"
        if seen.arrives:
            continue
        if seen.energy == 0:
            cause = "the gate leaves the features as they are"
            if not seen.before.any():
                cause = "the features are all zero" if seen.before.numel() else "the batch is empty"
            refuse("constant", where=where, cause=cause)
        cause, advice = "unknown", "chaosgate.sites(model, batch) lists places for a gate."
        with suppress(ChaosgateError, KeyError):  # else no cause, no suggestion
            dry = DryRun(attachment.model, args, kwargs)
            dry.layouts.setdefault(site.module, site.layout)  # type: ignore[arg-type]
            share = dry.shares([site.module])[site.module]
            if share >= SMALLEST_SHARE and dry.replaced:
                warnings.warn(
                    f"the effect of the gate at {where} cannot be seen yet: later weights are "
                    f"(almost) zero at initialization ({dry.replaced[-1]}).",
                    stacklevel=2,
                )
                continue
            if share < SMALLEST_SHARE:
                dead = "no layer that the output depends on reads it (dead path)"
                cause = "a later normalization cancels it" if share else dead
            if works := _alternative(dry, site.module, site.gate, args, kwargs):
                advice = f"'{works}' works here (tried): stages=['{works}']."
        facts = {"change": seen.change, "energy": seen.energy, "cause": cause, "advice": advice}
        refuse("no effect", where=where, **facts)


def _alternative(dry: DryRun, module: str, gate: Gate, args: Any, kwargs: Any) -> str | None:
    """A place that works, behind the module or else in front of it; tried on a few images."""
    place = dry.order[module]
    shares = dry.shares([n for n in dry.places if dry.weighted_after(n)])
    usable = [n for n, share in shares.items() if share >= SMALLEST_SHARE]
    behind = [n for n in usable if dry.order[n] > place]
    others = [n for n in reversed(dry.steps) if n in usable and dry.order[n] < place]
    few = first_images((args, kwargs), 8)
    tried = _try(dry, [*behind, *others], few, gate)
    return next((one.module for one in tried if one.survives), None)


# -- every place of a network --------------------------------------------------------------------


@dataclass(frozen=True)
class SiteEffect:
    """A place for a gate.

    ``stage`` is L1 to L4 if the module stands for one; ``survives`` whether a gate there reaches
    the output in training mode; ``logit_change`` the relative change of the logits in evaluation
    mode; ``positive_share`` the share of positive values in the map.
    """

    stage: str | None
    module: str
    grid: tuple[int, ...]
    channels: int
    layout: str
    survives: bool
    logit_change: float
    positive_share: float


def sites(model: nn.Module, example: Any = None, gate: Gate | None = None) -> list[SiteEffect]:
    """Try a gate at the stages and at every block that all paths cross, in execution order.

    The network does not change.

    Args:
        model: As for :func:`attach`.
        example: A batch for the model; real images are more informative than random ones. None
            makes noise images of the size that the model declares.
        gate: The gate to try; None is ``GaussianChaos(log_std=1)``.

    >>> import timm
    >>> found = sites(timm.create_model("resnet18"))
    >>> [(site.stage, site.module) for site in found if site.stage]
    [('L1', 'layer1'), ('L2', 'layer2'), ('L3', 'layer3'), ('L4', 'layer4')]
    """
    batch = example_input(model) if example is None else example
    dry = DryRun(model, batch)
    stages = {module: name for name, (module, _) in find_stages(model, batch, dry=dry)[0].items()}
    blocks = [n for n in dry.steps if any(model.get_submodule(n).children())]
    names = [n for n in dry.places if n in stages or n in blocks]
    found = _try(dry, names, ((batch,), {}), gate or GaussianChaos(log_std=1.0))
    return [replace(one, stage=stages.get(one.module)) for one in found]


def _try(
    dry: DryRun, names: Iterable[str], call: tuple[Any, Any], gate: Gate
) -> Iterator[SiteEffect]:
    for name in names:
        with Attachment(dry.model, {name: gate}, measuring=True) as attachment:
            attachment.sites[0].shown = dry.layouts[name]
            try:
                (report,) = measure(attachment, *call)
                survives = compare(attachment, *call, train=True)[name].arrives
            except (ValueError, RuntimeError):  # a gate not for this grid, a batch too small
                continue
        where = (None, name, report.grid, report.channels, report.layout)
        yield SiteEffect(*where, survives, report.logit_change, report.positive_share)


def first_images(call: Any, images: int) -> Any:
    """Detached copies of the arguments with fewer images: tensors as long as the first are cut."""
    size = next((len(t) for t in tensors(call) if t.ndim), 0)
    return mapped(
        call, lambda t: t[:images].detach().clone() if t.ndim and len(t) == size else t.detach()
    )
