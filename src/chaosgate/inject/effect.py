"""Does the gate arrive? One batch with the gate off and on, and what it did where it acted."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chaosgate.field import Grid
from chaosgate.gate.base import grid_of
from chaosgate.inject.survey import evaluation

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment, Site

MINIMAL_CHANGE = 1e-3
"""Relative change of the logits below which a gate counts as normalised away."""


@dataclass(frozen=True)
class SiteReport:
    r"""What a gate does at one site, measured on one batch.

    ``energy`` is :math:`E\|\tilde h-h\|^2/E\|h\|^2`, the common axis of all methods; ``logit_change`` the relative
    change of the logits; ``positive_share`` how much of the map is positive (the log-geometry theorems need positive
    maps); ``gate_min``, ``gate_max`` and ``log_std`` describe the realised multiplicative gate where there is one.
    """

    stage: str
    module: str
    grid: Grid
    channels: int
    nominal: dict[str, float]
    energy: float
    logit_change: float
    positive_share: float
    gate_min: float
    gate_max: float
    log_std: float

    def scalars(self) -> dict[str, float]:
        """The finite numbers in it, for a logger."""
        flat: dict[str, Any] = {**asdict(self), **{f"nominal_{k}": v for k, v in self.nominal.items()}}
        return {k: float(v) for k, v in flat.items() if isinstance(v, float) and math.isfinite(v)}


def check_effect(attachment: "Attachment", batch: Tensor, minimum: float = MINIMAL_CHANGE) -> list[SiteReport]:
    """Measure every site; raise if a gate cannot act on its grid, or acts and nothing arrives at the logits."""
    reports = measure(attachment, batch)
    for report in reports:
        if not report.logit_change >= minimum:
            raise ValueError(_normalised_away(attachment, report, batch, minimum))
    return reports


def measure(attachment: "Attachment", batch: Tensor) -> list[SiteReport]:
    """Run ``batch`` once without gates and once per site with its gate, in evaluation mode, and compare.

    Weights, running statistics, counters and random streams stay as they were.
    """
    with evaluation(attachment.model), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        plain = attachment.model(batch)
        return [_measure_site(attachment, site, batch, plain) for site in attachment.sites]


def _measure_site(attachment: "Attachment", site: "Site", batch: Tensor, plain: Tensor) -> SiteReport:
    gate = attachment.gate
    with attachment.forced(draw=-1, only={site.module}, record=True):
        gated = attachment.model(batch)
    before, after = site.before, site.after
    site.before = site.after = None
    if before is None or after is None:
        attachment._require_all_fired()
        raise RuntimeError(f"the gate at '{site.asked}' did not act.")
    grid = grid_of(before)
    gate.check(grid)
    gate.prepare(grid, before.device)
    ratio = _realised(before, after)
    return SiteReport(
        stage=site.asked,
        module=site.module,
        grid=grid,
        channels=before.shape[1],
        nominal=gate.nominal(grid),
        energy=float((after - before).double().square().sum() / before.double().square().sum().clamp_min(1e-300)),
        logit_change=relative_change(plain, gated),
        positive_share=float((before > 0).double().mean()),
        gate_min=float(ratio.min()) if ratio.numel() else math.nan,
        gate_max=float(ratio.max()) if ratio.numel() else math.nan,
        log_std=float(ratio.log().std()) if ratio.numel() and bool((ratio > 0).all()) else math.nan,
    )


def _realised(before: Tensor, after: Tensor) -> Tensor:
    """The multiplicative gate read off the features where they are not small; empty if there is nothing to read."""
    h = before.double()
    large = h.abs() > 1e-2 * h.square().mean().sqrt()
    return after.double()[large] / h[large]


def relative_change(plain: Tensor, gated: Tensor) -> float:
    r""":math:`\|y'-y\|/\|y\|`; infinite logits count as changed."""
    size = plain.double().norm()
    return float((gated.double() - plain.double()).norm() / size) if size > 0 else float((gated != plain).any())


def _normalised_away(attachment: "Attachment", report: SiteReport, batch: Tensor, minimum: float) -> str:
    where = report.stage if report.stage == report.module else f"{report.stage} ({report.module})"
    found = working_sites(attachment, batch, minimum)
    advice = f"Sites that work here: {', '.join(found)}." if found else "No other stage works with this gate either."
    return (
        f"the gate at {where} does not reach the logits: they change by {report.logit_change:.1e} (relative) "
        f"although it injects {report.energy:.1e} of the features' energy. A normalisation right behind the site "
        f"divides it out. {advice}"
    )


def working_sites(attachment: "Attachment", batch: Tensor, minimum: float) -> list[str]:
    """Stages of the same model at which the same gate does arrive."""
    from chaosgate.inject.attachment import Attachment
    from chaosgate.inject.stages import resolve_stages

    model: nn.Module = attachment.model
    try:
        stages = resolve_stages(model, batch[:1])
    except ValueError:
        return []
    found = []
    for stage, module in stages.items():
        with Attachment(model, attachment.gate, [module], 0, 0, check=False) as trial:
            try:
                change = measure(trial, batch)[0].logit_change
            except (RuntimeError, ValueError):
                continue
        if change >= minimum:
            found.append(stage if stage == module else f"{stage} ({module})")
    return found
