"""Does the gate arrive? One batch with the gate off and on, and what it did where it acted."""

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from chaosgate.field.arguments import grid_text
from chaosgate.gate.base import Gate
from chaosgate.inject.calls import Call, compared, floating
from chaosgate.inject.stages import resolve_stages
from chaosgate.inject.survey import Survey, eager, evaluation, same_stream

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment
    from chaosgate.inject.hooks import Site

MINIMAL_CHANGE = 1e-3
"""Relative change of the logits, as a share of that of the features, below which a gate does not arrive."""


@dataclass(frozen=True)
class SiteReport:
    r"""What a gate does at one site, measured on one batch.

    ``energy`` is :math:`E\|\tilde h-h\|^2/E\|h\|^2`, the common axis of all methods: its expectation over the
    noise, on the features of ``images`` images; ``logit_change`` the relative change of the logits, or of what
    ``compared`` names: with a zero-initialised head, the features in front of it;
    ``positive_share`` how much of the map is positive (the log-geometry theorems need positive maps); ``gate_min``,
    ``gate_max`` and ``log_std`` describe the realised multiplicative gate where there is one; ``fired`` counts the
    training passes in which the gates of the attachment have acted so far.
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
    compared: str
    positive_share: float
    gate_min: float
    gate_max: float
    log_std: float
    fired: int
    images: int

    @property
    def arrives(self) -> bool:
        """Whether the logits change at all, in proportion to what is injected; a weak gate is not a lost one."""
        return self.logit_change >= MINIMAL_CHANGE * min(1.0, math.sqrt(self.energy)) > 0

    def __str__(self) -> str:
        nominal = ", ".join(f"{name} {value:.4g}" for name, value in self.nominal.items())
        realised = f"gate {self.gate_min:.2g} to {self.gate_max:.2g}"
        if not math.isnan(self.log_std):
            realised += f" (log std {self.log_std:.2f})"
        where = self.stage if self.stage == self.module else f"{self.stage} -> {self.module}"
        grid = grid_text(self.grid)
        moved = "logits move" if self.compared == "logits" else f"features in front of {self.compared} move"
        return (
            f"noise at {where}, {self.channels} channels on {grid}: {self.gate} {nominal}; {realised}; injected energy "
            f"{self.energy:.3g} of the features'; {moved} by {self.logit_change:.2g}; {self.positive_share:.0%} of the "
            "map is positive"
        )

    def scalars(self) -> dict[str, float]:
        """The finite numbers in it, for a logger."""
        flat: dict[str, Any] = {**asdict(self), **{f"nominal_{k}": v for k, v in self.nominal.items()}}
        return {k: float(v) for k, v in flat.items() if isinstance(v, float) and math.isfinite(v)}


def check_effect(attachment: "Attachment", call: Call) -> list[SiteReport]:
    """Measure every site; raise if a gate cannot act on its grid, or acts and nothing arrives at the logits.

    The question is about the place: it is asked at full strength, wherever a schedule has its dial.
    """
    reports = measure(attachment, call)
    if not all(report.arrives for report in reports):
        with _full_strength(attachment):
            for site, report in zip(attachment.sites, measure(attachment, call), strict=True):
                if not report.arrives:
                    raise ValueError(_why_not(attachment, site, report, call))
    return reports


def measure(attachment: "Attachment", call: Call) -> list[SiteReport]:
    """Run the model once without gates and once per site with its gate, in evaluation mode, and compare.

    Weights, running statistics, counters and random streams stay as they were.
    """
    with evaluation(attachment.model), torch.no_grad(), eager():
        with _hiding_layers(attachment.model) as hidden, same_stream(attachment.model):
            plain = compared(call.run(attachment.model))
        return [_measure_site(attachment, site, call, plain, hidden) for site in attachment.sites]


def _measure_site(attachment: "Attachment", site: "Site", call: Call, plain: Tensor, hidden: "_Hidden") -> SiteReport:
    model = attachment.model
    with (
        attachment.forced(draw=-1, only={site.module}, record=True),
        _hiding_layers(model) as gated_hidden,
        same_stream(model),
    ):
        gated = compared(call.run(model))
    before, after, layout = site.before, site.after, site.layout
    site.before = site.after = None
    if before is None or after is None or layout is None:
        require_all_fired(attachment, {s.module: int(s is not site) for s in attachment.sites})
        raise RuntimeError(f"the gate at '{site.asked}' did not act.")
    grid = tuple(before.shape[2:])
    site.gate.check(grid)
    site.gate.prepare(grid, before.device)
    change, where = relative_change(plain, gated), "logits"
    if change < MINIMAL_CHANGE:  # look in front of the layers that hide it
        moved = hidden.moved(gated_hidden, all_of_them=change == 0)
        where = max(moved, key=moved.__getitem__, default=where)
        change = moved.get(where, change)
    ratio = _realised(before, after)
    return SiteReport(
        stage=site.asked,
        module=site.module,
        gate=type(site.gate).__name__,
        layout=layout.kind,
        grid=grid,
        channels=before.shape[1],
        nominal=site.gate.nominal(grid),
        energy=relative_energy(site.gate, before),
        images=len(before),
        logit_change=change,
        compared=where,
        positive_share=float((before > 0).double().mean()),
        gate_min=float(ratio.min()) if ratio.numel() else math.nan,
        gate_max=float(ratio.max()) if ratio.numel() else math.nan,
        log_std=float(ratio.log().std()) if ratio.numel() and bool((ratio > 0).all()) else math.nan,
        fired=attachment.fired,
    )


@dataclass(eq=False)
class _Hidden:
    """The inputs of the layers that hide what they read, by name.

    ``zeros`` multiply by zero: heads and residual branches that start as nothing. A head whose bias ``drowned`` its
    input shows the bias alone, as in a network whose BatchNorm statistics are still those of its construction.
    """

    zeros: dict[str, Tensor] = field(default_factory=dict)
    drowned: dict[str, Tensor] = field(default_factory=dict)

    def see(self, name: str, module: nn.Module, args: Any) -> None:
        if found := floating(args):
            self.zeros[name] = found[0]

    def weigh(self, name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        self.drowned.clear()  # the last one that runs is the head
        if isinstance(module.bias, Tensor) and args:
            bias = module.bias.view(-1, *[1] * (0 if isinstance(module, nn.Linear) else output.ndim - 2))
            if (output - bias).norm() < MINIMAL_CHANGE * output.norm():
                self.drowned[name] = args[0]

    def moved(self, gated: "_Hidden", all_of_them: bool) -> dict[str, float]:
        mine, others = self.drowned, gated.drowned
        if all_of_them:
            mine, others = {**self.zeros, **mine}, {**gated.zeros, **others}
        return {name: relative_change(mine[name], others[name]) for name in mine if name in others}


@contextmanager
def _hiding_layers(model: nn.Module) -> Iterator[_Hidden]:
    hidden = _Hidden()
    handles: list[RemovableHandle] = []
    for name, module in model.named_modules():
        weights = [p for n, p in module.named_parameters(recurse=False) if "bias" not in n and p.ndim]
        if any(not bool(p.any()) for p in weights):
            handles.append(module.register_forward_pre_hook(partial(hidden.see, name)))
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            handles.append(module.register_forward_hook(partial(hidden.weigh, name)))
    try:
        yield hidden
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _full_strength(attachment: "Attachment") -> Iterator[None]:
    dials = {gate: gate.dial for gate in attachment.gates.values()}
    for gate in dials:
        gate.dial = None
    try:
        yield
    finally:
        for gate, dial in dials.items():
            gate.dial = dial


def relative_energy(gate: Gate, before: Tensor) -> float:
    """Expected injected energy relative to that of the features ``before (B, C, *grid)``, dial included."""
    total = before.double().square().sum().clamp_min(1e-300)
    return float(gate.expected_energy(before).double().sum() / total)


def _realised(before: Tensor, after: Tensor) -> Tensor:
    """The multiplicative gate read off the features where they are not small; empty if there is nothing to read."""
    h = before.double()
    large = h.abs() > 1e-2 * h.square().mean().sqrt()
    return after.double()[large] / h[large]


def relative_change(plain: Tensor, gated: Tensor) -> float:
    r""":math:`\|y'-y\|/\|y\|`; infinite logits count as changed."""
    size = plain.double().norm()
    return float((gated.double() - plain.double()).norm() / size) if size > 0 else float((gated != plain).any())


def _why_not(attachment: "Attachment", site: "Site", report: SiteReport, call: Call) -> str:
    where = report.stage if report.stage == report.module else f"{report.stage} ({report.module})"
    found = working_sites(attachment, site, call)
    advice = f"Sites that work here: {', '.join(found)}." if found else "No other stage works with this gate either."
    if report.images == 0:
        return f"the batch that reached {where} is empty, so the effect of the gate cannot be seen. Give some images."
    if report.energy == 0:
        return (
            f"the gate at {where} changes nothing on this batch: the features there are all zero, or the gate leaves "
            f"them as they are. Check with trained weights and real images, or use check=False. {advice}"
        )
    found_out = (
        f"the gate at {where} does not reach the logits: they change by {report.logit_change:.1e} (relative) "
        f"although it injects {report.energy:.1e} of the features' energy. "
    )
    return f"{found_out}{_cause(attachment, site, call)} {advice}"


def _cause(attachment: "Attachment", site: "Site", call: Call) -> str:
    image = call.image()
    try:
        survey = Survey(attachment.model, None if image is None else image[:1])
    except Exception:  # noqa: BLE001 - the model needs more than an image: the cause stays open
        return "Something behind the site divides it out or does not read it."
    if not survey.is_read(site.module):
        return "Nothing that the logits depend on reads the output of this module."
    if survey.surviving(site.module) != site.module:
        return "A normalisation right behind the site divides it out."
    return "A normalisation behind the site divides it out, or the logits hardly depend on its grid."


def working_sites(attachment: "Attachment", site: "Site", call: Call) -> list[str]:
    """Stages of the same model at which the same gate does arrive."""
    image = call.image()
    try:
        stages = resolve_stages(attachment.model, None if image is None else image[:1])
    except (ValueError, TypeError, RuntimeError):
        return []
    found = []
    for stage, module in stages.items():
        with type(attachment)(attachment.model, {module: site.gate}, measuring=True) as trial:
            try:
                report = measure(trial, call)[0]
            except (RuntimeError, ValueError):
                continue
        if report.arrives:
            found.append(stage if stage == module else f"{stage} ({module})")
    return found


def require_all_fired(attachment: "Attachment", passes: dict[str, int], whole: bool = True) -> None:
    """Raise if a site did not run in a training forward, given how often each did.

    A forward that is not ``whole`` may end in front of a site: that it was not called is then only a warning.
    """
    missed = [site for site in attachment.sites if not passes[site.module]]  # no generator: torch 2.8 traces none
    if not missed:
        return
    silent = missed[0]
    if silent.skipped:
        raise RuntimeError(
            f"the gate at '{silent.asked}' did not act: '{silent.module}' is in evaluation mode while the model "
            f"trains, and a gate follows the mode of the module it sits on. Call .train() on '{silent.module}' "
            "(its batch norms may stay in evaluation mode), name another module, or take the gate off."
        )
    if dict(attachment.model.named_modules()).get(silent.module) is not silent.place.chain[0]:
        raise RuntimeError(
            f"the gate at '{silent.asked}' never fired: '{silent.module}' of the model was replaced by another module "
            "after the gate was attached. Call remove() on the handle and attach the gate again."
        )
    inner = [name for name, _ in attachment.model.named_modules() if name.startswith(silent.module + ".")]
    blocks = [name for name in inner if name.count(".") == silent.module.count(".") + 1]
    remedy = f" Name the last block inside it instead: stages=[{blocks[-1]!r}]." if blocks else ""
    why = " (activation checkpointing runs its blocks directly)" if _checkpointing(attachment.model) else ""
    if not why and "torch._dynamo" in sys.modules:
        remedy += (
            " If the model was compiled and run before the gate was attached, its compiled code does not know the "
            "gate: attach first, or call torch.compiler.reset()."
        )
    message = f"the gate at '{silent.asked}' never fired: '{silent.module}' was not called{why}.{remedy}"
    if whole:
        raise RuntimeError(message)
    warnings.warn(message, stacklevel=2)


def require_heard(attachment: "Attachment") -> None:
    """Where the model is entered otherwise (``forward_features``): notice two passes in which a gate did not act."""
    if torch.compiler.is_compiling():
        return
    silent = {site.module: site.silent for site in attachment.sites}
    for site in attachment.sites:
        site.silent = site.silent % 2 + 1
    try:
        require_all_fired(attachment, {module: int(count < 2) for module, count in silent.items()}, whole=False)
    finally:
        for site in attachment.sites:
            site.skipped = False


def warn_unchecked(attachment: "Attachment") -> None:
    """A check needs a call of the whole model; say that there is none."""
    warnings.warn(
        "whether the gates arrive at the logits is not checked, and their strength is not measured: they act in a pass "
        f"through parts of {type(attachment.model).__name__} (forward_features, say), not in a call of it. Call the "
        "whole model, or handle.check(batch); or set check=False if you know that they arrive.",
        stacklevel=2,
    )


def _checkpointing(model: nn.Module) -> bool:
    return any(getattr(module, "grad_checkpointing", False) for module in model.modules())
