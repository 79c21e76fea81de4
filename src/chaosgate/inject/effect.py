"""Does a gate reach the output, and how strong is it there? One batch with the gate off and on."""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chaosgate.field.arguments import grid_text
from chaosgate.gate import Gate, GaussianChaos
from chaosgate.inject.layout import logits_of, tensors
from chaosgate.inject.refusals import ChaosgateError, refuse
from chaosgate.inject.stages import (
    SMALLEST_SHARE,
    DryRun,
    eager,
    evaluation,
    example_input,
    find_stages,
    preserved,
)

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment, GatedModule

MINIMAL_CHANGE = 1e-3
"""Least change of the output, as a share of what another image changes and of the relative size of the noise."""

Maps = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SiteReport:
    r"""What a gate does at one module, measured on one batch in evaluation mode.

    ``energy`` is :math:`E\|\tilde h-h\|^2/E\|h\|^2`, the common axis of all methods: its expectation over the noise, on
    the features of ``images`` images; ``logit_change`` the relative change of the logits; ``positive_share`` how much
    of the map is positive (the log-geometry theorems need positive maps); ``gate_min``, ``gate_max`` and ``log_std``
    describe the realized multiplicative gate where there is one; ``fired`` counts the training passes in which the
    gates of the attachment have acted so far.
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

    def __str__(self) -> str:
        nominal = ", ".join(f"{name} {value:.4g}" for name, value in self.nominal.items())
        realized = f"gate {self.gate_min:.2g} to {self.gate_max:.2g}"
        if not math.isnan(self.log_std):
            realized += f" (log std {self.log_std:.2f})"
        where = self.stage if self.stage == self.module else f"{self.stage} -> {self.module}"
        return (
            f"noise at {where}, {self.channels} channels on {grid_text(self.grid)}: {self.gate} {nominal}; {realized}; "
            f"injected energy {self.energy:.3g} of the features'; logits move by {self.logit_change:.2g}; "
            f"{self.positive_share:.0%} of the map is positive"
        )

    def scalars(self) -> dict[str, float]:
        """The finite numbers in it, for a logger."""
        flat: dict[str, Any] = {
            **asdict(self),
            **{f"nominal_{k}": v for k, v in self.nominal.items()},
        }
        return {k: float(v) for k, v in flat.items() if isinstance(v, float) and math.isfinite(v)}


def run(attachment: "Attachment", args: Any, kwargs: Any, only: set[str]) -> tuple[Tensor, Maps]:
    """One forward with the gates of some modules; always the same noise, and the same numbers of torch's stream.

    Returns the logits (else all floating tensors in a row), and the maps before and after the gates.
    """
    device = next(attachment.model.parameters(), torch.empty(0)).device
    with attachment.forced(-1, only, record=True) as maps:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            output = attachment.model(*args, **kwargs)
    found = logits_of(output)
    if found is None:
        found = torch.cat(
            [t.detach().double().flatten() for t in tensors(output) if t.is_floating_point()]
        )
    return found, maps


def measure(
    attachment: "Attachment", args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[SiteReport]:
    """Run the model once without gates and once per gated module, in evaluation mode, and compare.

    Weights, running statistics, counters and random streams stay as they were.
    """
    with evaluation(attachment.model), torch.no_grad(), eager():
        plain, _ = run(attachment, args, kwargs, set())
        return [
            _report(attachment, site, plain, *run(attachment, args, kwargs, {site.module}))
            for site in attachment.sites
        ]


def _report(
    attachment: "Attachment", site: "GatedModule", plain: Tensor, gated: Tensor, maps: Maps
) -> SiteReport:
    before, after = maps[site.module] if site.module in maps else attachment.refuse_silence(site)
    grid = tuple(before.shape[2:])
    site.gate.check(grid)
    site.gate.prepare(grid, before.device)
    h = before.double()
    large = h.abs() > 1e-2 * h.square().mean().sqrt()
    ratio = (
        after.double()[large] / h[large]
    )  # the multiplicative gate, where the features are not small
    return SiteReport(
        stage=site.stage,
        module=site.module,
        gate=type(site.gate).__name__,
        layout=site.layout.kind if site.layout is not None else "",
        grid=grid,
        channels=before.shape[1],
        nominal=site.gate.nominal(grid),
        energy=relative_energy(site.gate, before),
        images=len(before),
        logit_change=relative_change(plain, gated),
        positive_share=float((before > 0).double().mean()),
        gate_min=float(ratio.min()) if ratio.numel() else math.nan,
        gate_max=float(ratio.max()) if ratio.numel() else math.nan,
        log_std=float(ratio.log().std()) if ratio.numel() and bool((ratio > 0).all()) else math.nan,
        fired=attachment.fired,
    )


def relative_energy(gate: Gate, before: Tensor) -> float:
    """Expected injected energy relative to that of the features ``before (B, C, *grid)``, at the current strength."""
    total = before.double().square().sum().clamp_min(1e-300)
    return float(gate.expected_energy(before).double().sum() / total)


def relative_change(plain: Tensor, gated: Tensor) -> float:
    r""":math:`\|y'-y\|/\|y\|`; infinite logits count as changed."""
    size = plain.double().norm()
    return (
        float((gated.double() - plain.double()).norm() / size)
        if size > 0
        else float((gated != plain).any())
    )


# -- does the gate reach the output? -----------------------------------------------------------------------------------


def check_effect(
    attachment: "Attachment", args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[SiteReport]:
    """Measure every gated module, and refuse a gate that does not reach the output."""
    reports = measure(attachment, args, kwargs)
    require_effect(attachment, *args, **kwargs)
    return reports


def require_effect(attachment: "Attachment", *args: Any, **kwargs: Any) -> None:
    """Refuse a gate that does not reach the output in training mode, at its full strength.

    Two forwards for one gate; if it does not reach the output, two more to find the cause and to try a suggestion.
    """
    with (
        preserved(attachment.model),
        torch.no_grad(),
        eager(),
        _full_strength(attachment),
        ExitStack() as others,
    ):
        for other in type(attachment).on(attachment.model):
            others.enter_context(other.forced(0, set()))  # also of other attachments no gate acts
        if not attachment.model.training:
            attachment.model.train()
        plain, _ = run(attachment, args, kwargs, set())
        for site in attachment.sites:
            gated, maps = run(attachment, args, kwargs, {site.module})
            before, after = (
                maps[site.module] if site.module in maps else attachment.refuse_silence(site)
            )
            grid = tuple(before.shape[2:])
            site.gate.check(grid)
            site.gate.prepare(grid, before.device)
            effect = Effect.of(plain, gated, before, after)
            if not effect.arrives:
                _explain(attachment, site, args, kwargs, plain, effect, before)


@dataclass(frozen=True)
class Effect:
    """Change of the output relative to that between two images, and the injected energy relative to the features'."""

    change: float
    energy: float

    @classmethod
    def of(cls, plain: Tensor, gated: Tensor, before: Tensor, after: Tensor) -> "Effect":
        y, other = plain.double(), plain.double().roll(1, 0)
        size = (y - other).norm() if y.ndim > 1 and len(y) > 1 else y.norm()
        change = (gated.double() - y).norm()
        energy = (
            after.double() - before.double()
        ).square().sum() / before.double().square().sum().clamp_min(1e-300)
        return cls(float(change / size) if size > 0 else math.nan, float(energy))

    @property
    def arrives(self) -> bool:
        """In proportion to what is injected: a weak gate is not a lost one."""
        return self.change >= MINIMAL_CHANGE * min(1.0, math.sqrt(self.energy)) > 0


def _explain(
    attachment: "Attachment",
    site: "GatedModule",
    args: Any,
    kwargs: Any,
    plain: Tensor,
    effect: Effect,
    h: Tensor,
) -> None:
    """Refuse with the measured cause; weights that are zero at initialization are only a warning."""
    where = site.stage if site.stage == site.module else f"{site.stage} ({site.module})"
    if effect.energy == 0:
        empty, zero = "the batch is empty", "the features there are all zero"
        cause = (
            empty
            if not h.numel()
            else "the gate leaves the features as they are"
            if h.any()
            else zero
        )
        refuse("constant", where=where, cause=cause)
    try:
        dry = DryRun(attachment.model, args, kwargs)
        dry.layouts.setdefault(site.module, site.layout)  # type: ignore[arg-type]
        share = dry.shares([site.module])[site.module]
    except (ChaosgateError, KeyError):
        refuse(
            "no effect",
            where=where,
            change=effect.change,
            energy=effect.energy,
            cause="unknown",
            advice="",
        )
    if share >= SMALLEST_SHARE and dry.replaced:
        warnings.warn(
            f"the effect of the gate at {where} cannot be seen yet: weights behind it are (almost) zero at "
            f"initialization ({dry.replaced[-1]}).",
            stacklevel=2,
        )
        return
    cause = "unknown"
    if share == 0:
        cause = "nothing that the output depends on reads it (dead path)"
    elif share < SMALLEST_SHARE:
        cause = "a normalization behind it divides it out"
    advice = "chaosgate.sites(model, batch) lists the places of this network."
    tried = dry.alternative(site.module)
    if tried is not None and _reaches(attachment, tried, site.gate, args, kwargs, plain):
        advice = f"'{tried}' works here (tried): stages=['{tried}']."
    refuse(
        "no effect",
        where=where,
        change=effect.change,
        energy=effect.energy,
        cause=cause,
        advice=advice,
    )


def _reaches(
    attachment: "Attachment", module: str, gate: Gate, args: Any, kwargs: Any, plain: Tensor
) -> bool:
    with type(attachment)(attachment.model, {module: gate}, measuring=True) as trial:
        try:
            gated, maps = run(trial, args, kwargs, {module})
            return Effect.of(plain, gated, *maps[module]).arrives
        except (ValueError, RuntimeError, KeyError):
            return False


@contextmanager
def _full_strength(attachment: "Attachment") -> Iterator[None]:
    factors = {gate: gate.dial for gate in attachment.gates.values()}
    for gate in factors:
        gate.dial = None
    try:
        yield
    finally:
        for gate, factor in factors.items():
            gate.dial = factor


# -- every place of a network ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteEffect:
    """A place for a gate.

    ``stage`` is L1 to L4 where the module stands for one; ``survives`` tells whether a gate there reaches the output in
    training mode, ``logit_change`` how far the logits move (relative, evaluation mode), ``positive_share`` how much of
    the map is positive.
    """

    stage: str | None
    module: str
    grid: tuple[int, ...]
    channels: int
    layout: str
    survives: bool
    logit_change: float
    positive_share: float


def sites(
    model: nn.Module, example: Tensor | None = None, gate: Gate | None = None
) -> list[SiteEffect]:
    """Try a gate at the stages and at every block that all paths cross, in the order in which they run.

    The network is left as it was found.

    Args:
        model: As for :func:`attach`.
        example: A batch as the model takes it; real images tell more than random ones. None makes noise images of the
            size that the model declares.
        gate: The gate to try; None is ``GaussianChaos(log_std=1)``.

    >>> import timm
    >>> found = sites(timm.create_model("resnet18"))
    >>> [(site.stage, site.module, site.grid) for site in found if site.stage]
    [('L1', 'layer1', (56, 56)), ('L2', 'layer2', (28, 28)), ('L3', 'layer3', (14, 14)), ('L4', 'layer4', (7, 7))]
    """
    from chaosgate.inject.attachment import Attachment

    batch = example_input(model) if example is None else example
    dry = DryRun(model, (batch,))
    try:
        stages = {
            module: stage for stage, (module, _) in find_stages(model, batch, dry=dry)[0].items()
        }
    except ChaosgateError:  # no stages; there may be blocks
        stages = {}
    trial = GaussianChaos(log_std=1.0) if gate is None else gate
    found = []
    for name in dry.places:
        if name not in stages and (
            name not in dry.steps or not [*model.get_submodule(name).children()]
        ):
            continue
        with Attachment(model, {name: trial}, measuring=True) as attachment:
            try:
                (report,) = measure(attachment, (batch,), {})
                with preserved(model), torch.no_grad(), eager():
                    model.train()
                    plain, _ = run(attachment, (batch,), {}, set())
                    gated, maps = run(attachment, (batch,), {}, {name})
            except (
                ValueError,
                RuntimeError,
            ):  # a grid that the gate is not for, a batch too small for BatchNorm
                continue
        survives = Effect.of(plain, gated, *maps[name]).arrives
        described = (report.grid, report.channels, report.layout)
        found.append(
            SiteEffect(
                stages.get(name),
                name,
                *described,
                survives,
                report.logit_change,
                report.positive_share,
            )
        )
    return found
