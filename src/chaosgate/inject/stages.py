"""From names to modules: paths, and L1 to L4, declared (timm's ``feature_info``) or proven."""

import math
from collections import defaultdict
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from torch import nn

from chaosgate.inject.dryrun import DryRun
from chaosgate.inject.layout import Layout, refuse

STAGES = ("L1", "L2", "L3", "L4")
_WRAPPERS = (
    *("_orig_mod", "_forward_module", "_original_module"),
    *("_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
)
Site = tuple[str, Layout | None]
"""Path of a module, and its layout if it is proven."""


def resolve_stages(model: nn.Module, example: Any = None) -> dict[str, str]:
    """The modules of L1, L2, L3 and L4, as far as these stages exist.

    * timm declares its stages in ``feature_info``; for other networks the dry run must prove them.
      L_k is the last module at its resolution; every path from the image to the output crosses it.
    * In a network of constant resolution (ViT) the stages are quarters of the depth, up to the last
      block from which a gate reaches the output.
    * If a per-token norm cancels the gate (Swin L4, ConvNeXt L1 to L3), the stage is its output.

    Args:
        model: A network of timm, torchvision or transformers, or any that takes an image; bare, or
            inside a wrapper.
        example: A batch for the dry run, or the arguments of the model as a tuple; None uses noise
            of the size that the network declares.

    >>> import timm
    >>> resolve_stages(timm.create_model("resnet18"))
    {'L1': 'layer1', 'L2': 'layer2', 'L3': 'layer3', 'L4': 'layer4'}
    """
    found, why = find_stages(model, example)
    if not found:
        refuse("no such stage", stage="L4", model=type(model).__name__, why=why["L4"])
    return {stage: module for stage, (module, _) in found.items()}


def resolve_sites(model: nn.Module, asked: Sequence[str], example: Any = None) -> dict[str, str]:
    """The module for every name: a stage, or a path."""
    return {name: module for name, (module, _) in find_sites(model, asked, example).items()}


def find_sites(model: nn.Module, asked: Sequence[str], example: Any = None) -> dict[str, Site]:
    """The module for every name (a stage, or a path), with its layout if a dry run proves it."""
    paths = {name: name for name, _ in model.named_modules(remove_duplicate=False) if name}
    paths = {unwrapped(name): name for name in reversed(paths)} | paths
    wanted = [name for name in asked if name in STAGES and name not in paths]
    dry = None if example is None else DryRun(model, example)
    stages, why = find_stages(model, example, wanted, dry) if wanted else ({}, {})
    found: dict[str, Site] = {}
    for name in asked:
        if name in wanted and name not in stages:
            refuse("no such stage", stage=name, why=why[name], model=type(model).__name__)
        if name not in wanted and name not in paths:
            close = " or ".join(map(repr, get_close_matches(name, list(paths), 3, 0.5)))
            hint = f" Did you mean {close}?" if close else ""
            refuse("no such module", name=name, nearest=hint, model=type(model).__name__)
        module = stages[name][0] if name in wanted else paths[name]
        shown = stages[name][1] if name in wanted else dry.proven(module) if dry else None
        for other, (path, _) in found.items():
            if model.get_submodule(path) is model.get_submodule(module):
                refuse("same module", first=other, second=name, module=module)
        found[name] = (module, shown)
    return found


def find_stages(
    model: nn.Module, example: Any = None, wanted: Sequence[str] = STAGES, dry: DryRun | None = None
) -> tuple[dict[str, Site], dict[str, str]]:
    """Module and layout of the stages that are declared or proven; for the others, the reason."""
    names = [name for name, _ in model.named_modules()]
    path = max((n for n in names if unwrapped(f"{n}.x".strip(".")) == "x"), key=len)
    declaring = [n for n in names if f"{n}.".startswith(path) and _entries(model.get_submodule(n))]
    path = declaring[0] if len(declaring) == 1 else path
    backbone, path = model.get_submodule(path), f"{path}." if path else ""
    dry = dry or DryRun(backbone if example is None else model, example)
    inside, ahead = (path, "") if dry.model is model else ("", path)
    entries = [(inside + module, reduction) for module, reduction in _entries(backbone)]
    candidates, reason = _candidates(dry, entries, inside)
    found: dict[str, Site] = {}
    why = dict.fromkeys(wanted, reason or "the dry run does not prove a place of this resolution")
    for stage in candidates.keys() & wanted:
        place = dry.surviving(candidates[stage])
        if place is None:
            why[stage] = (
                f"a gate at '{candidates[stage]}' is canceled by a normalization, or not used"
            )
        elif layout := dry.proven(place):
            found[stage] = (ahead + place, layout)
        else:
            why[stage] = f"the output of '{place}' is not in the order of the image"
    return {stage: found[stage] for stage in wanted if stage in found}, why


def _candidates(
    dry: DryRun, entries: Sequence[tuple[str, int]], inside: str
) -> tuple[dict[str, str], str]:
    """The place for each stage, and a reason for those that have none."""
    if hidden := [name for name, _ in entries if name not in dry.order]:
        return {}, f"'{hidden[-1]}' is not called (activation checkpointing?)"
    known = [n for n in dry.steps if n.startswith(inside)]
    sizes = sorted({dry.sizes[n] for n in known}, reverse=True)[-4:]
    steps = [n for n in known if dry.weighted_after(n)]
    of_reduction = {reduction: name for name, reduction in entries}
    if len(of_reduction) > 1:
        if len(of_reduction) < 4 < len(entries):
            return {}, f"several stages have the same reduction: {entries}"
        last = [(of_reduction[r], r) for r in sorted(of_reduction)[-4:]]
        places = _declared_places(dry, steps, entries if len(entries) == 4 else last)
        found = dict(zip(STAGES[-len(places) :], places, strict=True))
        reason = "not every path from the image to the output crosses the declared stage"
        return {stage: place for stage, place in found.items() if place}, reason
    if not entries and _unknown_resolution(dry, (sizes or [0])[-1]):
        return {}, "several resolutions reach the output, or a coarser one in unknown order"
    if not entries and len(sizes) > 1:
        of_size = {dry.sizes[n]: n for n in steps}
        stages = zip(STAGES[-len(sizes) :], sizes, strict=True)
        return {stage: of_size[size] for stage, size in stages if size in of_size}, ""
    rows = defaultdict(list)  # of one class inside one module
    for name in dry.places:
        if name.startswith(inside) and name[-1].isdigit():
            rows[name.rstrip("0123456789"), type(dry.model.get_submodule(name))].append(name)
    row = [name for name, _ in entries] or max(rows.values(), key=len, default=[])
    blocks = [name for name in row if name in dry.places]
    while blocks and dry.surviving(blocks[-1]) is None:
        blocks.pop()
    if len(blocks) < len(STAGES):
        return {}, ""
    return {s: blocks[math.ceil(len(blocks) * k / 4) - 1] for k, s in enumerate(STAGES, 1)}, ""


def _declared_places(
    dry: DryRun, steps: Sequence[str], declared: Sequence[tuple[str, int]]
) -> list[str | None]:
    """The declared places; or later steps of their grids, with several layers with weights between.

    A module that returns several tensors has the grid of its reduction.
    """
    sides = dry.image.shape[2:]
    sizes = [
        dry.sizes.get(name) or math.prod(-(-side // reduction) for side in sides)
        for name, reduction in declared
    ]
    places = []
    for (name, _), size in zip(declared, sizes, strict=True):
        start = [*dry.weighted_after(name), math.inf, math.inf][1]
        start = start if name in dry.outputs else dry.order[name] + 1
        later = [n for n in steps if dry.sizes[n] == size and dry.order[n] >= start]
        known = name if name in dry.places else None
        # Several stages on one grid are quarter depths, or a dilated network.
        places.append(later[-1] if later and not (known and sizes.count(size) > 1) else known)
    return places


def _unknown_resolution(dry: DryRun, coarsest: int) -> bool:
    """Whether there is a coarser grid, or tokens that all paths cross and whose order is
    unknown.
    """
    shapes = [dry.outputs[n].shape for n in dry.crossed if n not in dry.sizes]
    tokens = {shape[1] for shape in shapes if len(shape) == 3 and shape[2] > 1}
    known = {size + prefix for size in dry.sizes.values() for prefix in range(6)} | {1}
    return bool(tokens - known) or any(size < coarsest for size in dry.sizes.values())


def _entries(model: nn.Module) -> list[tuple[str, int]]:
    """Module and reduction of timm's ``feature_info``; empty if it names modules that do not
    exist, as that of MViT.
    """
    info = getattr(model, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, list | tuple):  # timm's blocks have a method of this name
        return []
    known = [
        (e["module"], e["reduction"]) for e in entries if e.get("module") and e.get("reduction")
    ]
    names = {name for name, _ in model.named_modules()} if known else set()
    return known if all(name in names for name, _ in known) else []


def unwrapped(path: str) -> str:
    """The path without wrappers of distributed training and compilation, which do not change the
    noise.
    """
    steps = [step for step in path.split(".") if step not in _WRAPPERS]
    while len(steps) > 1 and steps[0] == "module":
        steps = steps[1:]
    return ".".join(steps)
