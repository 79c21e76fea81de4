"""Where in a network: L1 to L4 by declaration or proof, from one dry run with its autograd graph."""

import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from chaosgate.field.arguments import nearest
from chaosgate.gate import Gate, load_noise_state_dict, noise_state_dict
from chaosgate.inject.layout import Layout, LayoutReader, logits_of, possible_layouts, tensors
from chaosgate.inject.refusals import ChaosgateError, refuse

STAGES = ("L1", "L2", "L3", "L4")
_WRAPPERS = (
    "_orig_mod",
    "_forward_module",
    "_original_module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
)
_PRIME = (1 << 61) - 1
SMALLEST_SHARE = 3e-4
"""Least share of a gradient along the features. Behind a per-token norm it is zero, up to the epsilon of the norm."""


class DryRun:
    """One forward of two images in evaluation mode, with its autograd graph.

    ``outputs`` holds the features of every module that returns one floating tensor, in the order in which the modules
    finish; ``layouts`` the layouts that are certain. Weights that are almost zero (heads, branches and layer scales at
    initialization) hide what lies in front of them: for this forward they are ``replaced`` by random ones.

    Args:
        model: The network.
        example: A batch, or the arguments of the model as a tuple; None makes two images of the declared size.
        kwargs: Further arguments of the model, by name.
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
        values = (
            v
            for v in given.values()
            if isinstance(v, Tensor) and v.ndim >= 3 and v.is_floating_point()
        )
        images = next(values, None)
        if images is None:
            refuse("no image", model=type(model).__name__)
        self.image = images.detach()[:2].clone().requires_grad_()
        for name, value in given.items():
            if isinstance(value, Tensor) and value.ndim and len(value) == len(images):
                given[name] = self.image if value is images else value[:2]
        self.outputs: dict[str, Tensor] = {}
        self.layouts: dict[str, Layout] = {}
        self.finished: dict[str, float] = {}
        self._nodes: dict[str, tuple[Any, int]] = {}
        self._shares: dict[str, float] = {}
        handles = [
            module.register_forward_hook(self._recorder(name))
            for name, module in model.named_modules()
            if name
        ]
        drawn = _without_zeros(model)
        self.replaced = list(drawn)
        try:
            with evaluation(model), torch.enable_grad(), eager():
                made = (*model.named_parameters(), *model.named_buffers())
                drawn |= {name: tensor.clone() for name, tensor in made if tensor.is_inference()}
                named = {str(name): value for name, value in given.items() if isinstance(name, str)}
                positional = tuple(value for name, value in given.items() if isinstance(name, int))
                self.result = torch.func.functional_call(model, drawn, positional, named)
        except ChaosgateError:
            raise
        except Exception as error:  # noqa: BLE001 - of any library
            refuse(
                "dry run", model=type(model).__name__, shape=tuple(self.image.shape), error=error
            )
        finally:
            for handle in handles:
                handle.remove()
        logits = logits_of(self.result)
        results = list(tensors(self.result)) if logits is None else [logits]
        self.results = [t for t in results if t.grad_fn is not None]
        self._above, self._below = _paths(self.results, self.image)
        self._total = sum(self._below[t.grad_fn] for t in self.results) % _PRIME
        self._prove_layouts()
        sizes = {
            name: math.prod(layout.grid_of(self.outputs[name]))
            for name, layout in self.layouts.items()
        }
        self.sizes = {name: size for name, size in sizes.items() if size > 1}
        self._find_places()

    def _prove_layouts(self) -> None:
        """Try the possible layouts of what all paths cross and no one declares; of equal shapes, on the last one."""
        unknown = {
            self.outputs[n].shape: n
            for n in self.outputs
            if n not in self.layouts and self.crossed(n)
        }
        for shape, last in unknown.items():
            for layout in possible_layouts(shape, tuple(self.image.shape)):
                self.layouts[last] = layout
                if self.ordered(last):
                    same = [
                        n
                        for n, t in self.outputs.items()
                        if t.shape == shape and n not in self.layouts
                    ]
                    self.layouts.update(dict.fromkeys(same, layout))
                    break
                del self.layouts[last]

    def _recorder(self, name: str) -> Any:
        def record(module: nn.Module, args: Any, output: Any) -> None:
            found = [t for t in tensors(output) if t.is_floating_point()]
            self.finished[name] = time.perf_counter()
            self.outputs.pop(name, None)  # a module that runs again finishes later
            self.layouts.pop(name, None)
            if (
                len(found) != 1
                or not isinstance(output, Tensor | tuple | list)
                or found[0].grad_fn is None
            ):
                return
            self.outputs[name] = found[0]
            self._nodes[name] = (found[0].grad_fn, found[0].output_nr)
            try:
                layout = LayoutReader.of(self.model, name)(output, tuple(self.image.shape))
            except ChaosgateError:
                return
            if (
                len(layout.grid_of(found[0])) == self.image.ndim - 2
            ):  # a line is not the grid of an image
                self.layouts[name] = layout

        return record

    def crossed(self, name: str) -> bool:
        """Whether every path from the image to the output goes through what this module returned."""
        node, number = self._nodes[name]
        through = self._above.get((node, number), 0) * self._below.get(node, 0)
        return self._total != 0 and through % _PRIME == self._total

    @torch.inference_mode(False)  # what is made in that mode has no graph
    def shares(self, names: Sequence[str]) -> dict[str, float]:
        r"""Share of the output's gradient along the features, :math:`\|h\cdot g\|/\|\,\|h\|\|g\|\,\|` over the sites.

        A gate scales the features of a site. Where a per-token norm divides that out, the gradient is orthogonal to
        the features; where nothing reads the sites there is none, and the share is 0.
        """
        names = [name for name in names if name not in self._shares]
        generator = torch.Generator().manual_seed(0)
        outputs = [self.outputs[name] for name in names]
        weights = [torch.randn(t.shape, generator=generator).to(t) for t in self.results]
        gradients = self._gradients(self.results, outputs, weights) if outputs else ()
        for name, output, gradient in zip(names, outputs, gradients, strict=True):
            g = torch.zeros_like(output) if gradient is None else gradient
            h, g = (self.layouts[name].to_map(t.detach()).double() for t in (output, g))
            size = (h.norm(dim=1) * g.norm(dim=1)).norm()
            self._shares[name] = float((h * g).sum(1).norm() / size.clamp_min(1e-300))
        return self._shares

    @torch.inference_mode(False)  # what is made in that mode has no graph
    def ordered(self, name: str) -> bool:
        """Whether the sites of the first image depend on it in the order that the layout states, and on no other image.

        The gradients of five sites of the first row and column are centred in the same order as the sites. This proves
        that tokens are row
        by row, and that the two axes of a map are rows and columns.
        """
        layout, zeros = self.layouts[name], torch.zeros_like(self.outputs[name])
        h = layout.to_map(zeros)
        if h.ndim != 4:
            return True
        centres = []
        weights = torch.randn(h.shape[1], generator=torch.Generator().manual_seed(0)).to(h)
        rows, columns = h.shape[2:]
        for row, column in ((0, 0), (0, -1), (-1, 0), (0, columns // 2), (rows // 2, 0)):
            at = torch.zeros_like(h)
            at[0, :, row, column] = weights
            (gradient,) = self._gradients(
                [self.outputs[name]], [self.image], [layout.from_map(at, zeros)]
            )
            if gradient is None or gradient[1:].any():
                return False
            weight = gradient[0].double().square().sum(0)
            weight = weight / weight.sum().clamp_min(1e-300)
            centres.append(
                [
                    float(weight.sum(1 - axis) @ torch.arange(n).to(weight))
                    for axis, n in enumerate(weight.shape)
                ]
            )
        first, right, below, top, left = centres
        height, width = below[0] - first[0], right[1] - first[1]

        def in_first(at: list[float], axis: int, size: float) -> bool:  # row or column
            return abs(at[axis] - first[axis]) <= 0.35 * size

        in_rows = rows == 1 or (height > 0 and all(in_first(at, 0, height) for at in (right, top)))
        in_columns = columns == 1 or (
            width > 0 and all(in_first(at, 1, width) for at in (below, left))
        )
        between = first[1] <= top[1] <= right[1] and first[0] <= left[0] <= below[0]
        return in_rows and in_columns and between

    def _gradients(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> Any:
        """Of the weighted outputs; what activation checkpointing recomputes, it recomputes in evaluation mode."""
        with evaluation(self.model), torch.enable_grad():
            return torch.autograd.grad(
                outputs, inputs, weights, retain_graph=True, allow_unused=True
            )

    def _find_places(self) -> None:
        """``places``: modules that every path crosses, on a grid of several sites. ``steps``: those not spanning the
        network and are not inside a block that changes the resolution; of equal tensors, the outermost module.
        """

        def spans(name: str) -> bool:
            inside = {
                size for other, size in self.sizes.items() if f"{other}.".startswith(f"{name}.")
            }
            return len(inside) > 2

        def inside_a_change(name: str) -> bool:
            around = (name[:i] for i, letter in enumerate(name) if letter == ".")
            return any(
                self.sizes.get(n, self.sizes[name]) != self.sizes[name] and not spans(n)
                for n in around
            )

        self.places = [name for name in self.outputs if name in self.sizes and self.crossed(name)]
        steps: dict[Any, str] = {}
        for name in self.places:
            known = (
                steps.setdefault(self._nodes[name], name)
                if not spans(name) and not inside_a_change(name)
                else ""
            )
            if known.count(".") > name.count("."):
                steps[self._nodes[name]] = name
        self.steps = list(steps.values())
        weights = ((n, getattr(self.model.get_submodule(n), "weight", None)) for n in self.outputs)
        self._weighted = [
            self.finished[n] for n, w in weights if isinstance(w, Tensor) and w.ndim > 1
        ]

    def weighted_after(self, name: str) -> list[float]:
        """When modules with a matrix or a kernel of weights finish after this one."""
        return [time for time in self._weighted if time > self.finished[name]]

    def last(self, name: str) -> str:
        """The last step of the same grid, if more than one layer with weights lies between; else ``name``."""
        second = [*self.weighted_after(name), math.inf, math.inf][1]
        same = [
            n for n in self.steps if self.sizes[n] == self.sizes[name] and self.weighted_after(n)
        ]
        return next((n for n in reversed(same) if self.finished[n] >= second), name)

    def standing_for(self, name: str, reduction: int) -> str:
        """``name``; if it returns several tensors, the next step behind it of this reduction."""
        if name in self.outputs or name not in self.finished:
            return name
        size = math.prod(-(-side // reduction) for side in self.image.shape[2:])
        later = (
            n
            for n in self.steps
            if self.sizes[n] == size and self.finished[n] > self.finished[name]
        )
        return next(later, name)

    def alternative(self, name: str) -> str | None:
        """Another place for a gate that is lost at ``name``: behind the norm, or the last one from which it arrives."""
        behind = self.surviving(name) if name in self.places else None
        others = [n for n in self.steps if n != name and self.weighted_after(n)]
        shares = self.shares(others)
        return behind or next((n for n in reversed(others) if shares[n] >= SMALLEST_SHARE), None)

    def surviving(self, name: str) -> str | None:
        """``name``, or the next place of the same grid, behind a norm that divides the gate out; None without one."""
        following = [
            n for n in self.places[self.places.index(name) :] if self.sizes[n] == self.sizes[name]
        ]
        shares = self.shares(following)
        return (
            next((n for n in following if shares[n] >= SMALLEST_SHARE), None)
            if shares[name] > 0
            else None
        )


def _without_zeros(model: nn.Module) -> dict[str, Tensor]:
    """Random values for weights that are almost zero, by name."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, p in model.named_parameters():
        if (
            p.ndim
            and p.numel()
            and not p.is_meta
            and "bias" not in name
            and float(p.detach().abs().max()) < 1e-3
        ):
            values = torch.randn(p.shape, generator=generator).mul_(0.05)
            found[name] = (values + 0.3 if p.ndim == 1 else values).to(p)
    return found


def _paths(
    results: Sequence[Tensor], image: Tensor
) -> tuple[dict[tuple[Any, int], int], dict[Any, int]]:
    """Numbers of paths in the autograd graph, modulo a prime: from the output to a tensor, from a node to the image."""
    order: list[Any] = []  # sources first
    seen: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(result.grad_fn, False) for result in results]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source, _ in node.next_functions if source is not None)
    below: dict[Any, int] = {}
    for node in order:
        sources = sum(below[source] for source, _ in node.next_functions if source is not None)
        below[node] = 1 if getattr(node, "variable", None) is image else sources % _PRIME
    above: dict[tuple[Any, int], int] = {}
    of_node: dict[Any, int] = {}

    def reach(node: Any, number: int, paths: int) -> None:
        above[node, number] = (above.get((node, number), 0) + paths) % _PRIME
        of_node[node] = (of_node.get(node, 0) + paths) % _PRIME

    for result in results:
        reach(result.grad_fn, result.output_nr, 1)
    for node in reversed(order):
        for source, number in node.next_functions:
            if source is not None:
                reach(source, number, of_node[node])
    return above, below


def resolve_stages(model: nn.Module, example: Any = None) -> dict[str, str]:
    """The modules behind L1, L2, L3, L4, as far as they exist.

    * timm declares its stages in ``feature_info``; for other networks the dry run must prove them. L_k is the last
      place of its resolution; every path from the image to the output crosses it.
    * A network of constant resolution (ViT) has quarter depths, up to the last block from which a gate reaches the
      output.
    * Where a per-token norm divides the gate out (Swin L4, ConvNeXt L1 to L3), the output of that norm.

    Args:
        model: A network of timm, torchvision or transformers, or any that takes an image; bare, or inside a wrapper.
        example: A batch for the dry run, or the arguments of the model as a tuple; None uses noise of the size that
            the network declares.

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
    """Module and layout of the wanted stages that are declared or proven; and for the others, the reason why not."""
    path, backbone = _backbone(model)
    dry = dry or DryRun(backbone if example is None else model, example)
    ahead, inside = (f"{path}.", "") if example is None else ("", f"{path}.")
    if not path:
        ahead = inside = ""
    entries = [
        (inside + str(entry["module"]), int(entry["reduction"]))
        for entry in _feature_entries(backbone)
    ]
    stages = _declared(dry, entries) if entries else _proven(dry, inside)
    sizes = [dry.sizes.get(name) for name in stages.values()]
    found: dict[str, tuple[str, Layout]] = {}
    why: dict[str, str] = {}
    for stage in wanted:
        if (name := stages.get(stage)) is None:
            why[stage] = "the dry run does not prove a place of this resolution"
            continue
        place, why[stage] = _place(dry, name, sizes.count(dry.sizes.get(name)) == 1)
        if place is not None:
            found[stage] = (ahead + place, dry.layouts[place])
    return found, why


def _place(dry: DryRun, name: str, alone: bool) -> tuple[str | None, str]:
    """The place that stands for a declared or proven stage, or the reason why there is none."""
    if name not in dry.finished:
        inner = [n for n in dry.places if n.startswith(f"{name}.")]
        return (
            None,
            f"'{name}' is not called (activation checkpointing?); name {inner[-1:] or 'another module'}",
        )
    if name not in dry.sizes:
        return None, f"the layout of what '{name}' returns is not certain, or its grid has one site"
    place = (
        dry.last(name) if alone else name
    )  # several stages on one grid: quarter depths, dilated networks
    if not dry.crossed(place):
        return None, f"not every path from the image to the output crosses '{place}'"
    survives = dry.surviving(place)
    if survives is None:
        return None, f"a normalization behind '{place}' divides a gate out, or nothing reads it"
    if dry.layouts[survives].kind == "NLC" and not dry.ordered(survives):
        return None, f"what '{survives}' returns is not in the order of the image"
    return survives, ""


def _declared(dry: DryRun, entries: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The stages that timm's ``feature_info`` declares, as (module, reduction)."""
    entries = [(dry.standing_for(name, reduction), reduction) for name, reduction in entries]
    reductions = [reduction for _, reduction in entries]
    if len(set(reductions)) == 1:
        return _by_depth(dry, [name for name, _ in entries])
    if len(entries) == len(STAGES):
        return {stage: name for stage, (name, _) in zip(STAGES, entries, strict=True)}
    last = sorted(set(reductions))[-4:]
    if len(last) < 4 and len(last) < len(reductions):  # a dilated network
        listing = ", ".join(f"{name} (reduction {reduction})" for name, reduction in entries)
        refuse(
            "repeated reductions",
            model=type(dry.model).__name__,
            listing=listing,
            last=entries[-1][0],
        )
    module = {reduction: name for name, reduction in entries}
    return {
        stage: module[reduction]
        for stage, reduction in zip(STAGES[-len(last) :], last, strict=True)
    }


def _proven(dry: DryRun, inside: str) -> dict[str, str]:
    """The last places of the coarsest resolutions; quarter depths where there is one resolution."""
    steps = [n for n in dry.steps if n.startswith(inside)]
    sizes = sorted({dry.sizes[n] for n in steps}, reverse=True)[-4:]
    other = [
        t for n, t in dry.outputs.items() if n not in dry.sizes and t.ndim == 3 and dry.crossed(n)
    ]
    tokens = {t.shape[1] for t in other if t.shape[2] > 1}  # else a pooled vector
    unknown = [
        n for n in tokens if n > 1 and not any(0 <= n - size <= 5 for size in dry.sizes.values())
    ]
    if unknown or any(size < (sizes or [0])[-1] for size in dry.sizes.values()):
        return {}  # a resolution of unknown order, or one that reaches the output beside others
    if len(sizes) < 2:
        return _by_depth(dry, _row_of_blocks(dry, inside))
    stages = {}
    for stage, size in zip(STAGES[-len(sizes) :], sizes, strict=True):
        same = [n for n in steps if dry.sizes[n] == size and dry.weighted_after(n)]
        if same:
            stages[stage] = same[-1]
    return stages


def _row_of_blocks(dry: DryRun, inside: str) -> list[str]:
    """The longest row of blocks of one class that all paths cross."""
    rows: dict[tuple[str, type], dict[int, str]] = {}
    for name in dry.places:
        numbered = re.fullmatch(r"(.*?)(\d+)", name)
        if numbered and name.startswith(inside):
            rows.setdefault((numbered[1], type(dry.model.get_submodule(name))), {})[
                int(numbered[2])
            ] = name
    longest = max(rows.values(), key=len, default={})
    return [longest[number] for number in sorted(longest)]


def _by_depth(dry: DryRun, row: Sequence[str]) -> dict[str, str]:
    """Quarter depths, up to the last block from which a gate reaches the output."""
    blocks = [name for name in row if name in dry.sizes and dry.crossed(name)]
    while blocks and dry.surviving(blocks[-1]) is None:
        blocks.pop()
    if len(blocks) < len(STAGES):
        return {}
    return {stage: blocks[math.ceil(len(blocks) * k / 4) - 1] for k, stage in enumerate(STAGES, 1)}


def _backbone(model: nn.Module) -> tuple[str, nn.Module]:
    """The network to look at: what is inside wrappers, or the one part that has timm's ``feature_info``."""
    path, inner = "", model
    while wrapped := next(
        (n for n, _ in inner.named_children() if n in (*_WRAPPERS, "module")), None
    ):
        path, inner = f"{path}.{wrapped}".strip("."), inner.get_submodule(wrapped)
    known = [(n, m) for n, m in inner.named_modules() if _feature_entries(m)]
    if len(known) == 1:
        return f"{path}.{known[0][0]}".strip("."), known[0][1]
    return path, inner


def _feature_entries(model: nn.Module) -> list[dict[str, Any]]:
    info = getattr(model, "feature_info", None)
    entries = getattr(info, "info", info)
    if not isinstance(entries, list | tuple):  # timm's blocks have a method of this name
        return []
    known = [dict(entry) for entry in entries if "module" in entry and entry.get("reduction")]
    names = {name for name, _ in model.named_modules()} if known else set()
    return (
        known if all(entry["module"] in names for entry in known) else []
    )  # timm's MViT names others


def unwrapped(path: str) -> str:
    """The path without wrappers of distributed training and compilation: noise does not depend on them."""
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
    """The module for every name, with its layout if a dry run has shown it: a stage, or a path, taken literally."""
    paths = {name: name for name, _ in model.named_modules(remove_duplicate=False) if name}
    paths = {unwrapped(name): name for name in reversed(paths)} | paths
    stages = [name for name in asked if name in STAGES and name not in paths]
    known, why = find_stages(model, example, stages) if stages else ({}, {})
    found: dict[str, tuple[str, Layout | None]] = {}
    for name in asked:
        if name in why and name not in known:
            refuse("no such stage", stage=name, model=type(model).__name__, why=why[name])
        if name not in known and name not in paths:
            near = nearest(name, list(paths), 3)
            refuse(
                "no such module",
                name=name,
                model=type(model).__name__,
                stages=", ".join(STAGES),
                nearest=near,
            )
        module, layout = known[name] if name in known else (paths[name], None)
        same = [
            other
            for other, (path, _) in found.items()
            if model.get_submodule(path) is model.get_submodule(module)
        ]
        if same:
            refuse("same module", first=same[0], second=name, module=module)
        found[name] = (module, layout)
    return found


def gates_by_stage(
    gate: Gate | Mapping[str, Gate], stages: str | Sequence[str] | None
) -> dict[str, Gate]:
    """One gate for each stage, from one gate for all or from a dict."""
    if isinstance(gate, Mapping):
        if stages is not None or not gate:
            refuse("stages twice", stages=", ".join(gate))
        gates = dict(gate)
    else:
        names = ["L4"] if stages is None else [stages] if isinstance(stages, str) else list(stages)
        if not names or len(set(names)) != len(names):
            refuse("stages once", stages=names)
        gates = dict.fromkeys(names, gate)
    for stage, found in gates.items():
        if not isinstance(found, Gate):
            raise TypeError(
                f"attach needs a chaosgate.Gate at {stage}; got {type(found).__name__}."
            )
    return gates


# -- running a network without leaving a trace ------------------------------------------------------------------


@contextmanager
def preserved(model: nn.Module, buffers: bool = True) -> Iterator[None]:
    """Afterwards every module's mode, all ``buffers``, counters of gates and torch's random streams are as before.

    Networks draw and count in either mode: dropout, BatchNorm, masked auto-encoders, queues of contrastive learning.
    """
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if buffers and not buffer.is_meta
    ]
    device, noise = next(model.parameters(), torch.empty(0)).device, noise_state_dict(model)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        load_noise_state_dict(model, noise)
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, value in kept:
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards everything is as before."""
    with preserved(model):
        model.eval()
        yield


def eager() -> AbstractContextManager[object]:
    """What is compiled runs eagerly inside: the hooks of a compiled network see no values.

    Where the compiler was never loaded, nothing is compiled; asking it would take as long as importing torch.
    """
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


def sharded(model: nn.Module) -> bool:
    """Whether ``fully_shard`` (FSDP2) has split the parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(
        isinstance(module, fsdp.FSDPModule) for module in model.modules()
    )


def example_input(model: nn.Module) -> Tensor:
    """Two noise images of the size that the network declares, on its device."""
    parameter = next(model.parameters(), torch.empty(0))
    stem = next(
        (m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None
    )
    if stem is not None and not isinstance(stem, nn.Conv2d):
        refuse("no image", model=type(model).__name__)
    channels = (
        stem.in_channels if stem is not None and stem.in_channels <= 4 else 3
    )  # else not that of the image
    noise = torch.randn(
        2, channels, *_declared_size(model), generator=torch.Generator().manual_seed(0)
    )
    return noise.to(parameter.device, parameter.dtype)


def _declared_size(model: nn.Module) -> tuple[int, int]:
    """Height and width as timm (``img_size``, then the pretrained configuration), torchvision or transformers state."""
    for attribute in ("img_size", "pretrained_cfg", "image_size", "config"):
        for module in model.modules():
            stated: Any = getattr(module, attribute, None)
            if attribute == "pretrained_cfg":
                stated = (stated or {}).get("input_size", (None,))[1:]
            elif attribute == "config":
                stated = getattr(stated, "image_size", None)
            sides = (stated, stated) if isinstance(stated, int) else tuple(stated or ())
            if len(sides) == 2 and all(isinstance(side, int) for side in sides):
                return int(sides[0]), int(sides[1])
    return 224, 224
