"""Every place of a network that is worth a gate, and how far a gate there moves the logits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chaosgate.gate import Gate, GaussianChaos
from chaosgate.inject.attachment import Attachment
from chaosgate.inject.calls import Call
from chaosgate.inject.effect import measure
from chaosgate.inject.stages import grids_of, resolve_stages, spans
from chaosgate.inject.survey import Survey, example_input


@dataclass(frozen=True)
class SiteEffect:
    """A place for a gate.

    ``stage`` is L1 to L4 where the module stands for one; ``survives`` tells whether a gate there arrives at the
    logits, ``logit_change`` how far they move (relative), ``positive_share`` how much of the map is positive.
    """

    stage: str | None
    module: str
    grid: tuple[int, ...]
    channels: int
    layout: str
    survives: bool
    logit_change: float
    positive_share: float


def sites(model: nn.Module, example: Tensor | None = None, gate: Gate | None = None) -> list[SiteEffect]:
    """Try a gate at the stages and behind every block of ``model``, in the order in which they run.

    The network runs in evaluation mode and is left as it was found.

    Args:
        model: As for :func:`attach`.
        example: A batch as the model wants it; real images tell more than random ones. None makes noise images of the
            model's own size.
        gate: The gate to try; None is ``GaussianChaos(log_std=1)``.

    >>> import timm
    >>> found = sites(timm.create_model("resnet18"))
    >>> [(site.stage, site.module, site.grid) for site in found if site.stage]
    [('L1', 'layer1', (56, 56)), ('L2', 'layer2', (28, 28)), ('L3', 'layer3', (14, 14)), ('L4', 'layer4', (7, 7))]
    """
    if example is None:
        generator = torch.Generator().manual_seed(0)
        black = example_input(model)
        example = torch.randn((2, *black.shape[1:]), generator=generator).to(black)
    survey = Survey(model, example[:1])
    try:
        stages = {module: stage for stage, module in resolve_stages(model, example[:1]).items()}
    except ValueError:  # no four stages; the blocks are there all the same
        stages = {}
    trial = GaussianChaos(log_std=1.0) if gate is None else gate
    return [found for name in _worth(survey, stages) if (found := _try(model, name, stages, trial, example))]


def _worth(survey: Survey, stages: dict[str, str]) -> Iterator[str]:
    """Stages, and blocks that return features on a grid; of those that return the same, the outermost."""
    sizes = {name: math.prod(grid) for name, grid in grids_of(survey).items()}
    outermost: dict[int, str] = {}
    for name in sizes:  # modules finish from the inside out
        block = any(True for _ in survey.model.get_submodule(name).children()) and not spans(name, sizes)
        output = id(survey.outputs[name])
        if (block or name in stages) and outermost.get(output) not in stages:
            outermost.pop(output, None)
            outermost[output] = name
    yield from outermost.values()


def _try(model: nn.Module, name: str, stages: dict[str, str], gate: Gate, example: Tensor) -> SiteEffect | None:
    with Attachment(model, {name: gate}, measuring=True) as attachment:
        try:
            report = measure(attachment, Call.of(example))[0]
        except ValueError:  # a layout with two readings, or a grid that the gate is not for
            return None
    return SiteEffect(
        stages.get(name),
        name,
        report.grid,
        report.channels,
        report.layout,
        report.arrives,
        report.logit_change,
        report.positive_share,
    )
