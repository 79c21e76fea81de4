"""Stage names: L1 to L4 of any timm backbone, as modules whose output a gate can be put on."""

import math
from typing import Any

from torch import Tensor, nn

from chaosgate.field.arguments import nearest
from chaosgate.inject.survey import Survey

STAGES = ("L1", "L2", "L3", "L4")


def resolve_stages(model: nn.Module, example: Tensor | None = None) -> dict[str, str]:
    """The modules behind L1, L2, L3, L4.

    * Hierarchical nets: the ``feature_info`` entry with reduction 4, 8, 16, 32; for small-image stems, whose reductions
      are smaller, the last four distinct ones.
    * ViT and other nets of constant resolution: quarter depths. With a class token the last two blocks are left out:
      a gate there scales tokens that only a norm, or nothing at all, reads before the class token is taken.
    * Where the only reader of a stage's output is a per-token norm (Swin L4, ConvNeXt L1 to L3), that norm: in front
      of it the gate would be divided out.

    Args:
        model: A timm backbone (or any module with timm's ``feature_info``).
        example: An input for the dry run that finds those norms; None uses the model's own image size.

    >>> import timm
    >>> resolve_stages(timm.create_model("resnet18"))
    {'L1': 'layer1', 'L2': 'layer2', 'L3': 'layer3', 'L4': 'layer4'}
    """
    survey = Survey(model, example)
    return {stage: survey.surviving(module) for stage, module in _stage_modules(model).items()}


def resolve_site(model: nn.Module, asked: str, example: Tensor | None = None) -> str:
    """The module for one name: a stage, or a module's own name, which is taken as it is."""
    modules = dict(model.named_modules())
    if asked in modules and asked:
        return asked
    if asked in STAGES:
        return resolve_stages(model, example)[asked]
    name = type(model).__name__
    raise ValueError(
        f"no stage or module {asked!r} in {name}; it has {', '.join(STAGES)}.{nearest(asked, modules, 3)} "
        f"Set noise.stages to those, or name a module, e.g. {_last_block(model)!r}."
    )


def _stage_modules(model: nn.Module) -> dict[str, str]:
    entries = _feature_entries(model)
    reductions = [int(entry["reduction"]) for entry in entries]
    if len(set(reductions)) == 1 and hasattr(model, "blocks"):
        return _by_depth(model)
    repeated = {r for r in reductions if reductions.count(r) > 1}
    last_four = sorted(set(reductions))[-4:]
    if repeated & set(last_four) or len(last_four) < 4:
        listing = ", ".join(f"{e['module']} (reduction {e['reduction']})" for e in entries)
        raise ValueError(
            f"the stages of {type(model).__name__} cannot be told apart by their reduction: {listing}. "
            "Name modules instead of L1 to L4, e.g. stages=[" + repr(str(entries[-1]["module"])) + "]."
        )
    module = {int(entry["reduction"]): str(entry["module"]) for entry in entries}
    return {stage: module[reduction] for stage, reduction in zip(STAGES, last_four, strict=True)}


def _feature_entries(model: nn.Module) -> list[dict[str, Any]]:
    info = getattr(model, "feature_info", None)
    if not info:
        raise ValueError(
            f"{type(model).__name__} has no feature_info, so L1 to L4 are unknown. Name a module instead, e.g. "
            f"stages=[{_last_block(model)!r}]."
        )
    return [dict(entry) for entry in getattr(info, "info", info)]


def _by_depth(model: nn.Module) -> dict[str, str]:
    depth = len(model.blocks)  # type: ignore[arg-type]
    pooled_by_token = getattr(model, "num_prefix_tokens", 0) > 0 and getattr(model, "global_pool", "") == "token"
    usable = depth - 2 if pooled_by_token else depth
    if usable < 4:
        raise ValueError(f"{type(model).__name__} has only {depth} blocks, too few for four stages. Name a module.")
    return {stage: f"blocks.{math.ceil(usable * k / 4) - 1}" for k, stage in enumerate(STAGES, start=1)}


def _last_block(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and any(True for _ in module.children())]
    return names[-1] if names else next((name for name, _ in model.named_modules() if name), "")
