"""Where in a network: L1 to L4 by declaration or proof, from one dry run with its autograd
graph.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from chaosgate.gate import load_noise_state_dict, noise_state_dict
from chaosgate.inject.layout import (
    ChaosgateError,
    Layout,
    LayoutReader,
    logits_of,
    possible_layouts,
    refuse,
    tensors,
)

STAGES = ("L1", "L2", "L3", "L4")
SMALLEST_SHARE = 3e-4
"""Least share of a gradient along the features. Behind a per-token norm it is zero, up to its
epsilon.
"""

_WRAPPERS = (
    "_orig_mod",
    "_forward_module",
    "_original_module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
)
_PRIME = (1 << 61) - 1


class DryRun:
    """One forward of two images in evaluation mode, with its autograd graph.

    Weights that are almost zero (heads, branches and layer scales at initialization) hide what is
    in front of them: for this forward they are ``replaced`` by random ones.

    Args:
        model: The network.
        example: A batch, or the arguments of the model as a tuple; None makes two images of the
            declared size.
        kwargs: Further arguments of the model, by name.

    Attributes:
        outputs: Features of every module that returns one floating tensor, by name.
        order: When the modules finish, from 0.
        layouts: The layouts that are declared or proven.
        sizes: Numbers of sites, where there are several.
        places: Modules with a grid that every path from the image to the output crosses.
        steps: Those of them that do not span several resolutions; of equal tensors the outermost.
    """

    @torch.inference_mode(False)  # what is made in that mode has no graph
    def __init__(
        self, model: nn.Module, example: Any = None, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if sharded(model):
            refuse("sharded", model=type(model).__name__)
        self.model = model
        args = example_input(model) if example is None else example
        given = dict(enumerate(args if isinstance(args, tuple) else (args,))) | dict(kwargs or {})
        images = [t for t in tensors(given) if t.ndim >= 3 and t.is_floating_point()]
        if not images:
            refuse("dry run", model=type(model).__name__, error="it takes no image")
        self.image = images[0].detach()[:2].clone().requires_grad_()
        for name, value in given.items():
            if isinstance(value, Tensor) and value.ndim and len(value) == len(images[0]):
                given[name] = self.image if value is images[0] else value[:2]
        self.outputs: dict[str, Tensor] = {}
        self._nodes: dict[str, Any] = {}
        self.layouts: dict[str, Layout] = {}
        self.order: dict[str, int] = {}
        hooks = [m.register_forward_hook(self._see(n)) for n, m in model.named_modules() if n]
        weights = without_zeros(model)
        self.replaced = list(weights)
        made = (*model.named_parameters(), *model.named_buffers())
        try:
            with evaluation(model), torch.enable_grad(), eager():
                weights |= {name: t.clone() for name, t in made if t.is_inference()}
                positional = tuple(value for name, value in given.items() if isinstance(name, int))
                named = {name: value for name, value in given.items() if isinstance(name, str)}
                result = torch.func.functional_call(model, weights, positional, named)
        except ChaosgateError:
            raise
        except Exception as error:  # noqa: BLE001 - of any library
            refuse("dry run", model=type(model).__name__, error=error)
        finally:
            for hook in hooks:
                hook.remove()
        logits = logits_of(result)
        found = tensors(result) if logits is None else [logits]
        self.results = [t for t in found if t.grad_fn is not None]
        self._crossed = _crossed_by_all_paths(self.results, self.image)
        self._prove_layouts()
        sizes = {
            n: math.prod(layout.grid_of(self.outputs[n])) for n, layout in self.layouts.items()
        }
        self.sizes = {name: size for name, size in sizes.items() if size > 1}
        self.places = [name for name in self.outputs if name in self.sizes and self.crossed(name)]
        steps: dict[Any, str] = {}
        for name in self.places:
            size, around = self.sizes[name], [name[:i] for i, c in enumerate(name) if c == "."]
            changes = (
                len(self._inside(n)) <= 2 and self.sizes.get(n, size) != size for n in around
            )
            if len(self._inside(name)) <= 2 and not any(changes):
                known = steps.setdefault(self._nodes[name], name)
                if known.count(".") > name.count("."):
                    steps[self._nodes[name]] = name
        self.steps = list(steps.values())
        parameters = {n: getattr(model.get_submodule(n), "weight", None) for n in self.order}
        self._weighted = [
            self.order[n] for n, w in parameters.items() if isinstance(w, Tensor) and w.ndim > 1
        ]

    def _see(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            found = [t for t in tensors(output) if t.is_floating_point()]
            self.outputs.pop(name, None)  # a module that runs again finishes later
            self.layouts.pop(name, None)
            self.order.pop(name, None)
            self.order[name] = 1 + max(self.order.values(), default=-1)
            if len(found) != 1 or not isinstance(output, Tensor | tuple | list):
                return
            if found[0].grad_fn is None or not 3 <= found[0].ndim <= 5:
                return
            self.outputs[name], self._nodes[name] = (
                found[0],
                found[0].grad_fn,
            )  # before in-place changes
            try:
                layout = LayoutReader.of(self.model, name)(found[0], tuple(self.image.shape))
            except ChaosgateError:
                return
            if len(layout.grid_of(found[0])) == self.image.ndim - 2:  # else a line, for an image
                self.layouts[name] = layout

        return hook

    def _prove_layouts(self) -> None:
        """Try the possible layouts of what all paths cross; of equal shapes, on the last one."""
        unknown = {
            self.outputs[n].shape: n
            for n in self.outputs
            if n not in self.layouts and self.crossed(n)
        }
        for shape, last in unknown.items():
            for layout in possible_layouts(shape, self.image.shape):
                if self.ordered(last, layout):
                    same = (n for n, t in self.outputs.items() if t.shape == shape)
                    self.layouts = dict.fromkeys(same, layout) | self.layouts
                    break

    def _inside(self, name: str) -> set[int]:
        return {s for other, s in self.sizes.items() if f"{other}.".startswith(f"{name}.")}

    def crossed(self, name: str) -> bool:
        """Whether every path from the image to the output goes through what this module
        returned.
        """
        return self._nodes[name] in self._crossed

    def weighted_after(self, name: str) -> list[int]:
        """When modules with a matrix or a kernel of weights finish after this one."""
        return [number for number in self._weighted if number > self.order[name]]

    def shares(self, names: Sequence[str]) -> dict[str, float]:
        r"""Share of the output's gradient along the features, :math:`\|h\cdot
        g\|/\|\,\|h\|\|g\|\,\|`.

        A gate scales the features of a site. Where a per-token norm divides that out, the gradient
        is orthogonal to the features; where nothing reads the sites there is none, and the share is
        0.
        """
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(t.shape, generator=generator).to(t) for t in self.results]
        outputs = [self.outputs[name] for name in names]
        shares = {}
        gradients = self._gradients(self.results, outputs, weights) if names else ()
        for name, output, gradient in zip(names, outputs, gradients, strict=True):
            g = torch.zeros_like(output) if gradient is None else gradient
            h, g = (self.layouts[name].to_map(t.detach()).double() for t in (output, g))
            size = (h.norm(dim=1) * g.norm(dim=1)).norm()
            shares[name] = float((h * g).sum(1).norm() / size.clamp_min(1e-300))
        return shares

    def ordered(self, name: str, layout: Layout) -> bool:
        """Whether the sites of the first image depend on it in this order, and on no other image.

        The gradients of five sites of the first row and column are centred in the order of the
        sites. This proves that tokens are row by row, and that the axes of a map are rows and
        columns.
        """
        zeros = torch.zeros_like(self.outputs[name])
        h = layout.to_map(zeros)
        if h.ndim != 4:
            return True
        weights = torch.randn(h.shape[1], generator=torch.Generator().manual_seed(0)).to(h)
        rows, columns = h.shape[2:]
        centres = []
        for row, column in ((0, 0), (0, columns // 2), (0, -1), (rows // 2, 0), (-1, 0)):
            at = torch.zeros_like(h)
            at[0, :, row, column] = weights
            cotangent = layout.from_map(at, zeros)
            (gradient,) = self._gradients([self.outputs[name]], [self.image], [cotangent])
            if gradient is None or gradient[1:].any():
                return False
            weight = gradient[0].double().square().sum(0)
            weight = weight / weight.sum().clamp_min(1e-300)
            sides = (torch.arange(n).to(weight) for n in weight.shape)
            centres.append([float(weight.sum(1 - axis) @ side) for axis, side in enumerate(sides)])
        first, top, right, left, below = centres
        height, width = below[0] - first[0], right[1] - first[1]

        def along(middle: list[float], last: list[float], axis: int, across: float) -> bool:
            aside = max(abs(at[1 - axis] - first[1 - axis]) for at in (middle, last))
            return first[axis] <= middle[axis] <= last[axis] and aside <= 0.35 * across

        in_row = columns == 1 or (
            width > 0 and along(top, right, 1, height if rows > 1 else math.inf)
        )
        in_column = rows == 1 or (
            height > 0 and along(left, below, 0, width if columns > 1 else math.inf)
        )
        return in_row and in_column

    @torch.inference_mode(False)
    def _gradients(self, outputs: Any, inputs: Any, weights: Any) -> Any:
        """Of the weighted outputs; checkpointing recomputes in evaluation mode, too."""
        with evaluation(self.model), torch.enable_grad():
            return torch.autograd.grad(
                outputs, inputs, weights, retain_graph=True, allow_unused=True
            )

    def surviving(self, name: str) -> str | None:
        """``name``, or the next place of the same grid, behind a norm that divides the gate out."""
        later = self.places[self.places.index(name) :]
        later = [n for n in later if self.sizes[n] == self.sizes[name]]
        shares = self.shares(later)
        found = (n for n in later if shares[n] >= SMALLEST_SHARE)
        return next(found, None) if shares[name] > 0 else None

    def alternative(self, name: str) -> str | None:
        """Another place for a gate that is lost at ``name``: behind the norm, or the last that
        acts.
        """
        if name in self.places and (behind := self.surviving(name)):
            return behind
        others = [n for n in self.steps if n != name and self.weighted_after(n)]
        shares = self.shares(others)
        return next((n for n in reversed(others) if shares[n] >= SMALLEST_SHARE), None)


def without_zeros(model: nn.Module) -> dict[str, Tensor]:
    """Random values for weights that are almost zero, by name."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, p in model.named_parameters():
        known = p.numel() and not p.is_meta and "bias" not in name
        if p.ndim and known and float(p.detach().abs().max()) < 1e-3:
            values = torch.randn(p.shape, generator=generator).mul_(0.05)
            found[name] = (values + 0.3 if p.ndim == 1 else values).to(p)
    return found


def _crossed_by_all_paths(results: Sequence[Tensor], image: Tensor) -> set[Any]:
    """Nodes of the autograd graph through which as many paths lead as there are (modulo a
    prime).
    """
    order: list[Any] = []  # sources first
    seen: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(result.grad_fn, False) for result in results]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack += [(node, True), *((source, False) for source, _ in node.next_functions)]
    below: dict[Any, int] = {None: 0}
    for node in order:
        own = getattr(node, "variable", None) is image
        below[node] = int(own) + sum(below[source] for source, _ in node.next_functions) % _PRIME
    above = dict.fromkeys([*order, None], 0)
    for result in results:
        above[result.grad_fn] += 1
    total = sum(below[result.grad_fn] for result in results) % _PRIME
    for node in reversed(order):
        for source, _ in node.next_functions:
            above[source] = (above[source] + above[node]) % _PRIME
    return {node for node in order if total and above[node] * below[node] % _PRIME == total}


def resolve_stages(model: nn.Module, example: Any = None) -> dict[str, str]:
    """The modules behind L1, L2, L3, L4, as far as they exist.

    * timm declares its stages in ``feature_info``; for other networks the dry run must prove them.
      L_k is the last place of its resolution; every path from the image to the output crosses it.
    * A network of constant resolution (ViT) has quarter depths, up to the last block from which a
      gate reaches the output.
    * Where a per-token norm divides the gate out (Swin L4, ConvNeXt L1 to L3), its output.

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


def find_stages(
    model: nn.Module, example: Any = None, wanted: Sequence[str] = STAGES, dry: DryRun | None = None
) -> tuple[dict[str, tuple[str, Layout]], dict[str, str]]:
    """Module and layout of the stages that are declared or proven; for the others, the reason."""
    path, backbone = _backbone(model)
    path = f"{path}." if path else ""
    dry = dry or DryRun(backbone if example is None else model, example)
    inside, ahead = (path, "") if dry.model is model else ("", path)
    entries = [(inside + str(one["module"]), int(one["reduction"])) for one in _entries(backbone)]
    candidates, reason = _candidates(dry, entries, inside)
    found: dict[str, tuple[str, Layout]] = {}
    why: dict[str, str] = {}
    for stage in wanted:
        place = candidates.get(stage)
        survives = None if place is None else dry.surviving(place)
        why[stage] = reason or "the dry run does not prove a place of this resolution"
        if place is not None and survives is None:
            why[stage] = f"a normalization behind '{place}' divides a gate out, or nothing reads it"
        elif survives is not None:
            layout = dry.layouts[survives]
            if layout.kind != "NLC" or dry.ordered(survives, layout):
                found[stage] = (ahead + survives, layout)
            why[stage] = f"what '{survives}' returns is not in the order of the image"
    return found, why


def _candidates(
    dry: DryRun, entries: Sequence[tuple[str, int]], inside: str
) -> tuple[dict[str, str], str]:
    """The place for each stage, and a reason for those that have none."""
    hidden = [name for name, _ in entries if name not in dry.order]
    if hidden:
        name = next((n for n in reversed(dry.steps) if n.startswith(f"{hidden[-1]}.")), "another")
        return {}, f"'{hidden[-1]}' is not called (activation checkpointing?); name {name!r}"
    steps = [n for n in dry.steps if n.startswith(inside) and dry.weighted_after(n)]
    sizes = sorted({dry.sizes[n] for n in dry.steps if n.startswith(inside)}, reverse=True)[-4:]
    last = {reduction: name for name, reduction in entries}
    if len(last) > 1:
        if len(last) < 4 < len(entries):
            listing = ", ".join(f"{name} (reduction {reduction})" for name, reduction in entries)
            return {}, f"several stages have the same reduction: {listing}"
        declared = entries if len(entries) == 4 else [(last[r], r) for r in sorted(last)[-4:]]
        found = dict(zip(STAGES[-len(declared) :], _places(dry, steps, declared), strict=True))
        reason = "not every path from the image to the output crosses the declared stage"
        return {stage: place for stage, place in found.items() if place}, reason
    if not entries and _unknown_resolution(dry, (sizes or [0])[-1]):
        return {}, "a coarser resolution reaches the output beside others, or in unknown order"
    if not entries and len(sizes) > 1:
        of_size = {dry.sizes[n]: n for n in steps}
        stages = zip(STAGES[-len(sizes) :], sizes, strict=True)
        return {stage: of_size[size] for stage, size in stages if size in of_size}, ""
    row = [name for name, _ in entries] or _row_of_blocks(dry, inside)
    blocks = [name for name in row if name in dry.places]
    while blocks and dry.surviving(blocks[-1]) is None:
        blocks.pop()
    if len(blocks) < len(STAGES):
        return {}, ""
    return {s: blocks[math.ceil(len(blocks) * k / 4) - 1] for k, s in enumerate(STAGES, 1)}, ""


def _places(
    dry: DryRun, steps: Sequence[str], declared: Sequence[tuple[str, int]]
) -> Iterator[str | None]:
    """The declared places; or later steps of their grids, with several layers with weights between.

    A module that returns several tensors has the grid of its reduction.
    """
    sides = dry.image.shape[2:]
    sizes = [
        dry.sizes.get(name) or math.prod(-(-side // reduction) for side in sides)
        for name, reduction in declared
    ]
    for (name, _), size in zip(declared, sizes, strict=True):
        after = dry.weighted_after(name)
        start = [*after, math.inf, math.inf][1] if name in dry.outputs else dry.order[name] + 1
        later = [n for n in steps if dry.sizes[n] == size and dry.order[n] >= start]
        known = name if name in dry.places else None
        # Several stages on one grid are quarter depths, or a dilated network.
        yield later[-1] if later and not (known and sizes.count(size) > 1) else known


def _unknown_resolution(dry: DryRun, coarsest: int) -> bool:
    """Whether there is a coarser grid, or tokens that all paths cross and whose order is
    unknown.
    """
    shapes = [t.shape for n, t in dry.outputs.items() if n not in dry.sizes and dry.crossed(n)]
    tokens = {shape[1] for shape in shapes if len(shape) == 3 and shape[2] > 1}
    known = {size + prefix for size in dry.sizes.values() for prefix in range(6)} | {1}
    return bool(tokens - known) or any(size < coarsest for size in dry.sizes.values())


def _row_of_blocks(dry: DryRun, inside: str) -> list[str]:
    """The longest row of blocks of one class that all paths cross."""
    rows: dict[tuple[str, type], dict[int, str]] = {}
    for name in dry.places:
        numbered = re.fullmatch(r"(.*?)(\d+)", name)
        if numbered and name.startswith(inside):
            kind = numbered[1], type(dry.model.get_submodule(name))
            rows.setdefault(kind, {})[int(numbered[2])] = name
    longest = max(rows.values(), key=len, default={})
    return [longest[number] for number in sorted(longest)]


def _backbone(model: nn.Module) -> tuple[str, nn.Module]:
    """The network to look at: what is inside wrappers, or the one part with timm's
    ``feature_info``.
    """
    path, inner = "", model
    while wrapped := next(
        (n for n, _ in inner.named_children() if n in (*_WRAPPERS, "module")), ""
    ):
        path, inner = f"{path}.{wrapped}".strip("."), inner.get_submodule(wrapped)
    known = [(n, m) for n, m in inner.named_modules() if _entries(m)]
    if len(known) == 1:
        return f"{path}.{known[0][0]}".strip("."), known[0][1]
    return path, inner


def _entries(model: nn.Module) -> list[dict[str, Any]]:
    """The ``feature_info`` of timm; empty if it names modules that do not exist, as that of
    MViT.
    """
    info = getattr(model, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, list | tuple):  # timm's blocks have a method of this name
        return []
    known = [dict(entry) for entry in entries if entry.get("module") and entry.get("reduction")]
    names = {name for name, _ in model.named_modules()} if known else set()
    return known if all(entry["module"] in names for entry in known) else []


def unwrapped(path: str) -> str:
    """The path without wrappers of distributed training and compilation: noise is the same in
    them.
    """
    steps = [step for step in path.split(".") if step not in _WRAPPERS]
    while len(steps) > 1 and steps[0] == "module":
        steps = steps[1:]
    return ".".join(steps)


def resolve_sites(model: nn.Module, asked: Sequence[str], example: Any = None) -> dict[str, str]:
    """The module for every name: that of a stage, or the module of this path."""
    return {name: module for name, (module, _) in find_sites(model, asked, example).items()}


def find_sites(
    model: nn.Module, asked: Sequence[str], example: Any = None
) -> dict[str, tuple[str, Layout | None]]:
    """The module for every name (a stage, or a path), with its layout if a dry run has shown it."""
    paths = {name: name for name, _ in model.named_modules(remove_duplicate=False) if name}
    paths = {unwrapped(name): name for name in reversed(paths)} | paths
    wanted = [name for name in asked if name in STAGES and name not in paths]
    dry = None if example is None else DryRun(model, example)
    stages, why = find_stages(model, example, wanted, dry) if wanted else ({}, {})
    found: dict[str, tuple[str, Layout | None]] = {}
    facts = {"model": type(model).__name__, "stages": ", ".join(STAGES)}
    for name in asked:
        if name in why and name not in stages:
            refuse("no such stage", stage=name, why=why[name], **facts)
        if name not in stages and name not in paths:
            close = " or ".join(map(repr, get_close_matches(name, list(paths), 3, 0.5)))
            hint = f" Did you mean {close}?" if close else ""
            refuse("no such module", name=name, nearest=hint, **facts)
        known = None if dry is None else dry.layouts.get(paths.get(name, ""))
        module, layout = stages[name] if name in stages else (paths[name], known)
        for other, (path, _) in found.items():
            if model.get_submodule(path) is model.get_submodule(module):
                refuse("same module", first=other, second=name, module=module)
        found[name] = (module, layout)
    return found


# -- running a network without leaving a trace ---------------------------------------------------


@contextmanager
def preserved(model: nn.Module, buffers: bool = True) -> Iterator[None]:
    """Afterwards modes, all ``buffers``, counters of gates and random streams are as before.

    Networks draw and count in either mode: dropout, BatchNorm, masked auto-encoders, queues.
    """
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if buffers and not buffer.is_meta
    ]
    noise = noise_state_dict(model)
    try:
        with same_stream(model):
            yield
    finally:
        load_noise_state_dict(model, noise)
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, value in kept:
                setattr(module, name, buffer)
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def same_stream(model: nn.Module) -> AbstractContextManager[None]:
    """Afterwards torch's random streams are as before."""
    device = next(model.parameters(), torch.empty(0)).device
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards everything is as before."""
    with preserved(model):
        model.eval()
        yield


def eager() -> AbstractContextManager[object]:
    """What is compiled runs eagerly inside: the hooks of a compiled network see no values.

    Where the compiler was never loaded, nothing is compiled; asking it would take seconds.
    """
    loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if loaded else nullcontext()


def sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` (FSDP2) has split the parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(m, fsdp.FSDPModule) for m in model.modules())


def stem_of(model: nn.Module) -> nn.Module | None:
    """The first convolution, which sees the image."""
    convolutions = nn.Conv1d | nn.Conv2d | nn.Conv3d
    return next((m for m in model.modules() if isinstance(m, convolutions)), None)


def example_input(model: nn.Module) -> Tensor:
    """Two noise images of the size that the network declares, on its device."""
    parameter, stem = next(model.parameters(), torch.empty(0)), stem_of(model)
    if stem is not None and not isinstance(stem, nn.Conv2d):
        refuse("dry run", model=type(model).__name__, error="it takes no image")
    channels = 3 if stem is None or stem.in_channels > 4 else stem.in_channels
    shape, generator = (2, channels, *_declared_size(model)), torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(parameter.device, parameter.dtype)


def _declared_size(model: nn.Module) -> tuple[int, int]:
    """Height and width as timm, torchvision or transformers state them."""
    stated: Any
    for attribute in ("img_size", "pretrained_cfg", "image_size", "config"):
        for module in model.modules():
            stated = getattr(module, attribute, None)
            if attribute == "pretrained_cfg":
                stated = (stated or {}).get("input_size", (None,))[1:]
            elif attribute == "config":
                stated = getattr(stated, "image_size", None)
            sides = (stated, stated) if isinstance(stated, int) else tuple(stated or ())
            if len(sides) == 2 and all(isinstance(side, int) for side in sides):
                return int(sides[0]), int(sides[1])
    return 224, 224
