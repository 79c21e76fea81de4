"""Does a gate reach the output, and how strong is it there? One batch with the gate off and on.

Also what gates do around training: BatchNorm statistics without noise, as a control, and a picture.
"""

import math
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chaosgate.field.operator import grid_text
from chaosgate.gate import Gate, GaussianChaos
from chaosgate.inject.layout import ChaosgateError, logits_of, mapped, refuse, tensors
from chaosgate.inject.stages import (
    SMALLEST_SHARE,
    DryRun,
    eager,
    evaluation,
    example_input,
    find_stages,
    preserved,
    same_stream,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from chaosgate.inject.attachment import Attachment, GatedModule

MINIMAL_CHANGE = 1e-3
"""Least change of the output, as a share of what another image changes and of the size of the
noise.
"""


@dataclass(frozen=True)
class Compared:
    """One gated module: the map (B, C, *grid) before and after its gate, the output without and
    with it.
    """

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
        """In proportion to what is injected: a weak gate is not a lost one."""
        return self.change >= MINIMAL_CHANGE * min(1.0, math.sqrt(self.energy)) > 0


def output_of(call: Any, args: Any, kwargs: Any, model: nn.Module | None = None) -> Tensor:
    """The logits, else all floating tensors in a row; torch's random streams stay where they
    were.
    """
    with same_stream(model or call):
        output = call(*args, **kwargs)
    if (logits := logits_of(output)) is not None:
        return logits.detach()
    found = [t.detach().double().flatten() for t in tensors(output) if t.is_floating_point()]
    return torch.cat(found)


def compare(
    attachment: "Attachment", args: Any, kwargs: Any, train: bool, full: bool = False
) -> dict[str, Compared]:
    """Run the model without gates, and with each gate alone; always with the same noise.

    Weights, buffers, counters and random streams stay as they were. ``full``: at full strength.
    """
    model, found = attachment.model, {}
    factors = {gate: gate.factor for gate in attachment.gates.values()}
    with preserved(model), torch.no_grad(), eager(), ExitStack() as others:
        for other in type(attachment).on(model):
            others.enter_context(other.forced(0, set()))
        if not (train and model.training):  # parts of a model that trains may be frozen
            model.train(train)
        try:
            for gate in factors if full else ():
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
    r"""What a gate does at one module, measured on one batch in evaluation mode.

    ``energy`` is :math:`E\|\tilde h-h\|^2/E\|h\|^2`, the common axis of all methods: its
    expectation over the noise, on the features of ``images`` images; ``logit_change`` the relative
    change of the logits; ``positive_share`` how much of the map is positive (the log-geometry
    theorems need positive maps); ``gate_min``, ``gate_max`` and ``log_std`` describe the realized
    multiplicative gate where there is one; ``fired`` counts the training passes in which gates have
    acted so far; ``strength`` is the schedule's factor on the nominal strength.
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
            f"{nominal}; "
            f"gate {self.gate_min:.2g} to {self.gate_max:.2g}{spread}; injected energy "
            f"{self.energy:.3g} of "
            f"the features'; logits move by {self.logit_change:.2g}; {self.positive_share:.0%} of "
            f"the map "
            "is positive"
        )

    def scalars(self) -> dict[str, float]:
        """The finite numbers in it, for a logger."""
        flat = asdict(self) | {f"nominal_{k}": v for k, v in self.nominal.items()}
        return {k: float(v) for k, v in flat.items() if isinstance(v, float) and math.isfinite(v)}


def measure(attachment: "Attachment", args: Any, kwargs: Any) -> list[SiteReport]:
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


def require_effect(attachment: "Attachment", *args: Any, **kwargs: Any) -> None:
    """Refuse a gate that does not reach the output in training mode, at its full strength."""
    found = compare(attachment, args, kwargs, train=True, full=True)
    for site in attachment.sites:
        if not found[site.module].arrives:
            _explain(attachment, site, args, kwargs, found[site.module])


def _explain(
    attachment: "Attachment", site: "GatedModule", args: Any, kwargs: Any, seen: Compared
) -> None:
    """Refuse with the measured cause; weights that are zero at initialization are only a
    warning.
    """
    where = site.stage if site.stage == site.module else f"{site.stage} ({site.module})"
    if seen.energy == 0:
        zero = "the features there are all zero" if seen.before.numel() else "the batch is empty"
        unchanged = "the gate leaves the features as they are"
        refuse("constant", where=where, cause=unchanged if seen.before.any() else zero)
    cause, advice = "unknown.", "chaosgate.sites(model, batch) lists the places of this network."
    try:
        dry = DryRun(attachment.model, args, kwargs)
        dry.layouts.setdefault(site.module, site.layout)  # type: ignore[arg-type]
        share = dry.shares([site.module])[site.module]
        tried = dry.alternative(site.module)
    except (ChaosgateError, KeyError):
        share, tried = math.nan, None
    if share >= SMALLEST_SHARE and dry.replaced:
        warnings.warn(
            f"the effect of the gate at {where} cannot be seen yet: weights behind it are "
            f"(almost) zero "
            f"at initialization ({dry.replaced[-1]}).",
            stacklevel=2,
        )
        return
    if share < SMALLEST_SHARE:
        cause = "a normalization behind it divides it out."
    if share == 0:
        cause = "nothing that the output depends on reads it (dead path)."
    if tried is not None:
        with type(attachment)(attachment.model, {tried: site.gate}, measuring=True) as trial:
            try:
                if compare(trial, args, kwargs, train=True, full=True)[tried].arrives:
                    advice = f"'{tried}' works here (tried): stages=['{tried}']."
            except (ValueError, RuntimeError):
                pass  # no suggestion
    facts = {"change": seen.change, "energy": seen.energy, "cause": cause, "advice": advice}
    refuse("no effect", where=where, **facts)


# -- every place of a network --------------------------------------------------------------------


@dataclass(frozen=True)
class SiteEffect:
    """A place for a gate.

    ``stage`` is L1 to L4 where the module stands for one; ``survives`` tells whether a gate there
    reaches the output in training mode, ``logit_change`` how far the logits move (relative,
    evaluation mode), ``positive_share`` how much of the map is positive.
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
    """Try a gate at the stages and at every block that all paths cross, in the order in which they
    run.

    The network is left as it was found.

    Args:
        model: As for :func:`attach`.
        example: A batch as the model takes it; real images tell more than random ones. None makes
            noise images of the size that the model declares.
        gate: The gate to try; None is ``GaussianChaos(log_std=1)``.

    >>> import timm
    >>> found = sites(timm.create_model("resnet18"))
    >>> [(site.stage, site.module) for site in found if site.stage]
    [('L1', 'layer1'), ('L2', 'layer2'), ('L3', 'layer3'), ('L4', 'layer4')]
    """
    from chaosgate.inject.attachment import Attachment

    batch = example_input(model) if example is None else example
    dry = DryRun(model, (batch,))
    stages = {module: name for name, (module, _) in find_stages(model, batch, dry=dry)[0].items()}
    trial, found = GaussianChaos(log_std=1.0) if gate is None else gate, []
    for name in dry.places:
        block = name in dry.steps and any(model.get_submodule(name).children())
        if name not in stages and not block:
            continue
        with Attachment(model, {name: trial}, measuring=True) as attachment:
            try:
                (report,) = measure(attachment, (batch,), {})
                survives = compare(attachment, (batch,), {}, train=True)[name].arrives
            except (ValueError, RuntimeError):  # a gate not for this grid, a batch too small
                continue
        where = (stages.get(name), name, report.grid, report.channels, report.layout)
        found.append(SiteEffect(*where, survives, report.logit_change, report.positive_share))
    return found


# -- around training -----------------------------------------------------------------------------


def reestimate_bn(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Recompute the running statistics of every BatchNorm from ``batches`` of images, without
    noise.

    Each statistic becomes the plain average over the batches. Modes and momenta are restored;
    weights are not touched. Call it with no gate attached. Returns the number of batches used.
    """
    kinds = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
    norms = [m for m in model.modules() if isinstance(m, kinds) and m.running_mean is not None]
    waiting = iter(batches)
    first = next(waiting, None)
    if not norms or first is None:
        raise ValueError(
            f"reestimate_bn needs batches, and a model with BatchNorm; got {len(norms)} "
            f"BatchNorms in "
            f"{type(model).__name__} and {'no' if first is None else 'some'} batches."
        )
    momenta, count = [norm.momentum for norm in norms], 1
    with preserved(model, buffers=False), torch.no_grad():
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the cumulative average
            norm.train()
        model(first)
        for count, batch in enumerate(waiting, 2):  # noqa: B007 - the number of batches
            model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return count


def gate_figure(attachment: "Attachment", *args: Any, **kwargs: Any) -> "Figure":
    """A row for each site: mean absolute features of one image before the gate, the gate, and after
    it.

    The gate is read off the features, so the picture shows what happened, whatever the gate is.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with evaluation(attachment.model), torch.no_grad(), eager():
        with attachment.forced(draw=-1, record=True) as maps:
            attachment.model(*args, **kwargs)
    figure = Figure(figsize=(7.5, 2.4 * len(maps)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(maps), 3, squeeze=False)
    for row, site in zip(axes, attachment.sites, strict=True):
        before, after = (h[0].double() for h in maps[site.module])
        gate = after.norm(dim=0) / before.norm(dim=0).clamp_min(1e-12)
        top = float(torch.maximum(before.abs().mean(0).max(), after.abs().mean(0).max()))
        shown = {"features before": (before.abs().mean(0), "magma", top)}
        shown |= {"gate": (gate, "viridis", None), "after": (after.abs().mean(0), "magma", top)}
        for axis, (title, (picture, colours, high)) in zip(row, shown.items(), strict=True):
            image = axis.imshow(picture.cpu().numpy(), cmap=colours, vmin=0, vmax=high)
            axis.set(title=title, xticks=[], yticks=[])
            figure.colorbar(image, ax=axis, shrink=0.8)
        row[0].set_ylabel(site.stage)
    return figure


def first_images(call: Any, images: int) -> Any:
    """The same arguments with fewer images: every tensor as long as the first one is cut; detached
    copies.
    """
    size = next((len(t) for t in tensors(call) if t.ndim), 0)
    return mapped(
        call, lambda t: t[:images].detach().clone() if t.ndim and len(t) == size else t.detach()
    )
