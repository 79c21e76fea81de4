"""Stage names: L1 to L4 of a backbone, as modules whose output a gate can be put on."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from chaosgate.field.arguments import grid_text, nearest
from chaosgate.gate import Gate
from chaosgate.inject.survey import Survey

STAGES = ("L1", "L2", "L3", "L4")
_WRAPPERS = ("module", "_orig_mod")  # what DistributedDataParallel and torch.compile put in front of a name


def resolve_stages(model: nn.Module, example: Tensor | None = None) -> dict[str, str]:
    """The modules behind L1, L2, L3, L4.

    * Hierarchical nets: where the features are 4, 8, 16 and 32 times smaller than the image; with a small-image stem,
      the last four distinct sizes. timm says it in ``feature_info``, where four entries are the four stages in any
      case; for others a dry run shows it.
    * ViT and other nets of constant resolution: quarter depths. With a class token the last two blocks are left out:
      a gate there scales tokens that only a norm, or nothing at all, reads before the class token is taken.
    * Where the only reader of a stage's output is a per-token norm (Swin L4, ConvNeXt L1 to L3), that norm: in front
      of it the gate would be divided out.

    Args:
        model: A network of timm, torchvision or Hugging Face, or any that takes an image; bare, or inside a wrapper.
        example: An input for the dry run; None uses one image of the model's own size.

    >>> import timm
    >>> resolve_stages(timm.create_model("resnet18"))
    {'L1': 'layer1', 'L2': 'layer2', 'L3': 'layer3', 'L4': 'layer4'}
    """
    name, backbone = _backbone(model)
    survey = Survey(backbone, example)
    found = _stage_modules(backbone) if _feature_entries(backbone) else stages_by_resolution(survey)
    prefix = f"{name}." if name else ""
    return {stage: prefix + survey.surviving(module) for stage, module in zip(STAGES, found, strict=True)}


def resolve_sites(model: nn.Module, asked: Sequence[str], example: Tensor | None = None) -> dict[str, str]:
    """The module for every name: that of a stage, or the module of this name, which is taken as it is."""
    stages: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in asked:
        module = _named(model, name)
        if module is None and name in STAGES:
            stages = stages or resolve_stages(model, example)
            module = stages[name]
        if module is None:
            modules = [n for n, _ in model.named_modules()]
            raise ValueError(
                f"no stage or module {name!r} in {type(model).__name__}; it has {', '.join(STAGES)}."
                f"{nearest(name, modules, 3)} Set noise.stages to those, or name a module, e.g. {_last_block(model)!r}."
            )
        found[name] = module
    _require_different(model, found)
    return found


def unwrapped_name(module: str) -> str:
    """The name without the wrappers of distributed training and compilation: noise does not depend on them."""
    steps = module.split(".")
    while len(steps) > 1 and steps[0] in _WRAPPERS:
        steps = steps[1:]
    return ".".join(steps)


def _named(model: nn.Module, name: str) -> str | None:
    """The module of this name, also inside wrappers."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name and name in modules:
        return name
    return next((full for full in modules if name and unwrapped_name(full) == name), None)


def _require_different(model: nn.Module, found: dict[str, str]) -> None:
    by_module: dict[nn.Module, str] = {}
    for asked, name in found.items():
        module = model.get_submodule(name)
        if module in by_module:
            raise ValueError(
                f"{by_module[module]!r} and {asked!r} are the same place ('{name}'). Name it once; two gates there "
                "would be one of another strength."
            )
        by_module[module] = asked


def _backbone(model: nn.Module) -> tuple[str, nn.Module]:
    """The network to look at: what is inside wrappers, or the one part that has timm's ``feature_info``."""
    name, inner = "", model
    while len(children := dict(inner.named_children())) == 1 and next(iter(children)) in _WRAPPERS:
        step = next(iter(children))
        name, inner = f"{name}.{step}".strip("."), children[step]
    known = [(n, m) for n, m in inner.named_modules() if _feature_entries(m)]
    if len(known) == 1:
        return f"{name}.{known[0][0]}".strip("."), known[0][1]
    return name, inner


def _stage_modules(model: nn.Module) -> list[str]:
    entries = _feature_entries(model)
    reductions = [int(entry["reduction"]) for entry in entries]
    if len(set(reductions)) == 1 and hasattr(model, "blocks"):
        return _by_depth(model)
    if len(entries) == len(STAGES):
        return [str(entry["module"]) for entry in entries]
    repeated = {r for r in reductions if reductions.count(r) > 1}
    last_four = sorted(set(reductions))[-4:]
    if repeated & set(last_four) or len(last_four) < 4:
        listing = ", ".join(f"{e['module']} (reduction {e['reduction']})" for e in entries)
        raise ValueError(
            f"the stages of {type(model).__name__} cannot be told apart by their reduction: {listing}. "
            "Name modules instead of L1 to L4, e.g. stages=[" + repr(str(entries[-1]["module"])) + "]."
        )
    module = {int(entry["reduction"]): str(entry["module"]) for entry in entries}
    return [module[reduction] for reduction in last_four]


def _feature_entries(model: nn.Module) -> list[dict[str, Any]]:
    info = getattr(model, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, list | tuple):  # timm's blocks have a method of this name
        return []
    known = [dict(entry) for entry in entries if "module" in entry and "reduction" in entry]
    names = {name for name, _ in model.named_modules()} if known else set()
    return known if all(entry["module"] in names for entry in known) else []  # timm's MViT names others


def _by_depth(model: nn.Module) -> list[str]:
    depth = len(model.blocks)  # type: ignore[arg-type]
    pooled_by_token = getattr(model, "num_prefix_tokens", 0) > 0 and getattr(model, "global_pool", "") == "token"
    return quarter_depths(model, [f"blocks.{i}" for i in range(depth)], pooled_by_token)


def _last_block(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and any(True for _ in module.children())]
    return names[-1] if names else next((name for name, _ in model.named_modules() if name), "")


def gates_by_stage(gate: Gate | Mapping[str, Gate], stages: str | Sequence[str] | None) -> dict[str, Gate]:
    """One gate for each stage, from one gate for all or from a dict."""
    if isinstance(gate, Mapping):
        if stages is not None:
            raise ValueError(f"the gates name their stages themselves ({', '.join(gate)}); leave stages out.")
        gates = dict(gate)
        if not gates:
            raise ValueError("there is no gate in the dict; name at least one stage, e.g. {'L4': gate}.")
    else:
        names = ["L4"] if stages is None else [stages] if isinstance(stages, str) else list(stages)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"stages must name at least one place, each once, e.g. ['L4']; got {names!r}.")
        gates = dict.fromkeys(names, gate)
    for stage, found in gates.items():
        if not isinstance(found, Gate):
            raise TypeError(f"attach needs a chaosgate.Gate at {stage}; got {type(found).__name__}.")
    return gates


# -- networks that do not name their stages: from the resolution of what their modules return in a dry run -------------


def stages_by_resolution(survey: Survey) -> list[str]:
    """Four modules: the last ones at each of the four coarsest resolutions, or quarter depths where there is only one.

    A module counts at the resolution of its output, but not if it is a step inside a block that changes the resolution,
    and not if it spans the network.
    """
    grids = grids_of(survey)
    sizes = {name: math.prod(grid) for name, grid in grids.items()}
    distinct = sorted(set(sizes.values()), reverse=True)
    steps = [name for name in grids if not _inside_a_change(name, sizes) and not spans(name, sizes)]
    last = {size: _outermost(survey, [n for n in steps if sizes[n] == size]) for size in distinct}
    found = [name for name in last.values() if name]
    if len(found) >= 4:
        return found[-4:]
    blocks = _repeated_blocks(survey.model, grids)
    if len(blocks) >= 4:
        layout = survey.layout(blocks[-1])
        prefix = layout is not None and layout.prefix > 0
        pooled_by_token = layout is not None and prefix and not survey.reads_grid(blocks[-1], layout)
        return quarter_depths(survey.model, blocks, pooled_by_token)
    listing = ", ".join(f"{name} ({grid_text(grids[name])})" for name in found) or "none"
    raise ValueError(
        f"{type(survey.model).__name__} does not have four stages of different resolution, nor a row of equal blocks. "
        f"Maps: {listing}. Name modules instead of L1 to L4, e.g. stages=[{found[-1] if found else 'features'!r}]."
    )


def quarter_depths(model: nn.Module, blocks: Sequence[str], pooled_by_token: bool) -> list[str]:
    """Four of the blocks, the last ones of each quarter; behind the last but two a class token is out of reach."""
    usable = len(blocks) - 2 if pooled_by_token else len(blocks)
    if usable < 4:
        raise ValueError(
            f"{type(model).__name__} has only {len(blocks)} blocks, too few for four stages. Name a module instead of "
            f"L1 to L4, e.g. {blocks[0]!r}."
        )
    return [blocks[math.ceil(usable * k / 4) - 1] for k in range(1, 5)]


def grids_of(survey: Survey) -> dict[str, tuple[int, ...]]:
    """The grids of all modules that return features on more than one site, in the order in which they finish."""
    found = {}
    for name, output in survey.outputs.items():
        grid = survey.grid(name)
        if grid is not None and output is not survey.result and math.prod(grid) > 1:
            found[name] = grid
    return found


def _inside_a_change(name: str, sizes: dict[str, int]) -> bool:
    """Whether a module around it, short of one that spans the network, returns another resolution."""
    steps = name.split(".")
    around = [".".join(steps[:n]) for n in range(1, len(steps))]
    return any(sizes.get(outer, sizes[name]) != sizes[name] and not spans(outer, sizes) for outer in around)


def spans(name: str, sizes: dict[str, int]) -> bool:
    """Whether there are more than two resolutions inside a module."""
    inside = {size for other, size in sizes.items() if other == name or other.startswith(name + ".")}
    return len(inside) > 2


def _outermost(survey: Survey, names: list[str]) -> str:
    """The last of the modules to finish: of those that return the same tensor, the one around the others."""
    if not names:
        return ""
    last = survey.outputs[names[-1]]
    return min((name for name in names if survey.outputs[name] is last), key=lambda name: name.count("."))


def _repeated_blocks(model: nn.Module, grids: dict[str, tuple[int, ...]]) -> list[str]:
    """The longest row of equal blocks: numbered members of one container, of one class."""
    modules = dict(model.named_modules())
    rows: dict[tuple[str, type], dict[int, str]] = {}
    for name in grids:
        numbered = re.fullmatch(r"(.*?)(\d+)", name)
        if numbered:
            rows.setdefault((numbered[1], type(modules[name])), {})[int(numbered[2])] = name
    longest = max(rows.values(), key=len, default={})
    return [longest[number] for number in sorted(longest)]
