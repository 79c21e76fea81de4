"""Run a network without changing its state. :class:`DryRun` records the autograd graph: which
modules every path crosses, the layout of features, and where a norm would cancel a gate.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from chaosgate.gate import load_noise_state_dict, noise_state_dict
from chaosgate.inject.layout import (
    ChaosgateError,
    Layout,
    logits_of,
    mapped,
    possible_layouts,
    refuse,
    tensors,
)

SMALLEST_SHARE = 3e-4
"""Least share of a gradient along the features. Before a per-token norm it is zero, up to the
epsilon of the norm.
"""


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Context that restores modes, buffers, counters of gates and random streams.

    Networks may draw and count in both modes: dropout, BatchNorm, masked auto-encoders, queues.
    """
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if not buffer.is_meta
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
    """Context that restores torch's random streams."""
    device = next(model.parameters(), torch.empty(0)).device
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Context with evaluation mode that restores everything."""
    with preserved(model):
        model.eval()
        yield


def eager() -> AbstractContextManager[object]:
    """Context in which compiled networks run eagerly, because their hooks see no values.

    If the compiler was never loaded, nothing is compiled, and loading it would take seconds.
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
    for attribute in ("img_size", "pretrained_cfg", "image_size", "config"):
        for module in model.modules():
            stated: Any = getattr(module, attribute, None)
            if isinstance(stated, Mapping):
                stated = stated.get("input_size", ())[1:]
            stated = getattr(stated, "image_size", stated)
            sides = (stated, stated) if isinstance(stated, int) else stated
            if isinstance(sides, list | tuple) and [type(side) for side in sides] == [int, int]:
                return sides[0], sides[1]
    return 224, 224


def without_zeros(model: nn.Module) -> dict[str, Tensor]:
    """Random values for weights that are almost zero, by name."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, p in model.named_parameters():
        known = p.ndim and p.numel() and not p.is_meta and "bias" not in name
        if known and float(p.detach().abs().max()) < 1e-3:
            values = torch.randn(p.shape, generator=generator).mul_(0.05)
            found[name] = (values + 0.3 if p.ndim == 1 else values).to(p)
    return found


class DryRun:
    """One forward of two images in evaluation mode, with its autograd graph.

    Weights that are almost zero (heads, branches and layer scales at initialization) hide the
    layers in front of them: for this forward they are ``replaced`` by random ones.

    Args:
        model: The network.
        example: A batch, or the arguments of the model as a tuple; None makes two images of the
            declared size.
        kwargs: Further arguments of the model, by name.

    Attributes:
        order: The order in which modules finish, from 0.
        outputs: Features of every module that returns one floating tensor, by name.
        crossed: Modules that every path from the image to the output crosses.
        layouts: The layout that the shape allows or, if it allows several, the proven one.
        sizes: Numbers of sites, if there are several.
        places: Crossed modules with a grid.
        steps: The places that do not span several resolutions; of equal tensors the outermost.
    """

    @torch.inference_mode(False)  # what is made in that mode has no graph
    def __init__(
        self, model: nn.Module, example: Any = None, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if sharded(model):
            refuse("sharded", model=type(model).__name__)
        self.model = model
        args = example_input(model) if example is None else example
        call = (args if isinstance(args, tuple) else (args,), dict(kwargs or {}))
        first = next((t for t in tensors(call) if t.ndim > 2 and t.is_floating_point()), None)
        if first is None:
            refuse("dry run", model=type(model).__name__, error="it takes no image")
        image = self.image = first.detach()[:2].clone().requires_grad_()

        def two(t: Tensor) -> Tensor:
            return image if t is first else t[:2] if t.ndim and len(t) == len(first) else t

        names = {module: name for name, module in model.named_modules() if name}
        nodes: dict[str, Any] = {}
        self.outputs: dict[str, Tensor] = {}

        def see(module: nn.Module, _: Any, output: Any) -> None:
            name = names[module]
            for known in (nodes, self.outputs):  # a module that runs again finishes later
                known.pop(name, None)
            found = [t for t in tensors(output) if t.is_floating_point()]
            nodes[name] = found[0].grad_fn if found else None  # before changes in place
            one = len(found) == 1 and isinstance(output, Tensor | tuple | list)
            if one and nodes[name] is not None and 3 <= found[0].ndim <= 5:
                self.outputs[name] = found[0]

        hooks = [module.register_forward_hook(see) for module in names]
        values = without_zeros(model)
        self.replaced = list(values)
        try:
            with evaluation(model), torch.enable_grad(), eager():
                result = torch.func.functional_call(model, values, *mapped(call, two))
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
        self.order = {name: number for number, name in enumerate(nodes)}
        on_all_paths = _on_all_paths(self.results, image)
        self.crossed = [n for n in self.outputs if nodes[n] in on_all_paths]
        self.layouts = self._layouts()
        maps = {n: layout.to_map(self.outputs[n]) for n, layout in self.layouts.items()}
        self.sizes = {n: s for n, h in maps.items() if (s := math.prod(h.shape[2:])) > 1}
        self.places = [n for n in self.crossed if n in self.sizes]
        self.steps = self._steps(nodes)
        weights = {n: getattr(model.get_submodule(n), "weight", None) for n in nodes}
        self._weighted = [
            self.order[n] for n, w in weights.items() if isinstance(w, Tensor) and w.ndim > 1
        ]

    def _layouts(self) -> dict[str, Layout]:
        """By shape; tokens, sequences and ambiguous maps by proof, on the last or the
        first that is crossed.
        """
        layouts: dict[str, Layout] = {}
        for shape in {tuple(t.shape): None for t in self.outputs.values()}:
            names = [n for n, t in self.outputs.items() if t.shape == shape]
            fits = possible_layouts(shape, self.image.shape)
            if len(shape) == 3 or len(fits) > 1:
                on_path = [name for name in names if name in self.crossed]
                ends = (*on_path[-1:], *on_path[:1])
                fits = [one for one in fits if any(self._ordered(n, one) for n in ends)]
            layouts |= dict.fromkeys(names if fits else (), *fits[:1])
        return {name: layouts[name] for name in self.outputs if name in layouts}

    def _steps(self, nodes: Mapping[str, Any]) -> list[str]:
        inside = defaultdict(set)
        for name, size in self.sizes.items():
            for around in _path(name):
                inside[around].add(size)
        steps: dict[Any, str] = {}
        for n in self.places:
            # Not inside a module that returns another resolution than it takes.
            of_pair = (self.sizes.get(a, self.sizes[n]) for a in _path(n) if len(inside[a]) <= 2)
            if len(inside[n]) <= 2 and all(size == self.sizes[n] for size in of_pair):
                known = steps.setdefault(nodes[n], n)
                steps[nodes[n]] = min(known, n, key=lambda n: n.count("."))
        return list(steps.values())

    def weighted_after(self, name: str) -> list[int]:
        """The order of later modules that have a matrix or a kernel of weights."""
        return [place for place in self._weighted if place > self.order[name]]

    def proven(self, name: str) -> Layout | None:
        """The layout of this module, if its sites are in the order of the image."""
        layout = self.layouts.get(name)
        tokens = layout is not None and layout.kind in ("NLC", "NCL")
        return layout if not tokens or self._ordered(name, layout) else None

    def _ordered(self, name: str, layout: Layout | None) -> bool:
        """Whether the sites of the first image depend on it in this order, and on no other image.

        Along each axis of the grid, the gradients of the first, the middle and the last site are
        centered in this order, and on one line. So tokens are row by row, and the axes of a map are
        rows and columns.
        """
        assert layout is not None
        zeros = torch.zeros_like(self.outputs[name])
        h, sides = layout.to_map(zeros), self.image.shape[2:]
        grid = h.shape[2:]
        if len(grid) != len(sides):
            return False
        weights = torch.randn(h.shape[1], generator=torch.Generator().manual_seed(0)).to(h)
        centers = torch.zeros(len(grid), 3, len(sides), dtype=torch.double)
        for axis, length in enumerate(grid):
            for number, place in enumerate((0, length // 2, length - 1)):
                at = torch.zeros_like(h)
                at.movedim(1, -1)[(0, *(place * (a == axis) for a in range(len(grid))))] = weights
                cotangent = layout.from_map(at, zeros)
                (gradient,) = self._gradients([self.outputs[name]], [self.image], [cotangent])
                if gradient is None or gradient[1:].any():
                    return False
                weight = gradient[0].double().square().sum(0)
                weight /= weight.sum().clamp_min(1e-300)
                for a, side in enumerate(sides):
                    marginal = weight.movedim(a, 0).reshape(side, -1).sum(1)
                    centers[axis, number, a] = marginal @ torch.arange(side).to(marginal)
        moved, wide = centers - centers[:, :1], torch.tensor(grid) > 1  # (axis, number, coordinate)
        along = moved.diagonal(dim1=0, dim2=2)  # (number, axis)
        rises = (along.diff(dim=0) >= 0).all(0) & (along[2] > 0)
        aside = moved.abs().amax(1) - torch.where(wide, 0.35 * along[2], math.inf)
        in_line = (aside.fill_diagonal_(-1) <= 0).all(1)
        return bool((rises & in_line)[wide].all())

    def shares(self, names: Sequence[str]) -> dict[str, float]:
        r"""Share of the output's gradient along the features, :math:`\|h\cdot
        g\|/\|\,\|h\|\|g\|\,\|`.

        A gate scales the features of a site. If a per-token norm cancels the scale, the gradient is
        orthogonal to the features. If no later layer reads the sites, there is no gradient, and
        the share is 0.
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

    @torch.inference_mode(False)
    def _gradients(self, outputs: Any, inputs: Any, weights: Any) -> Any:
        """Of the weighted outputs; checkpointing recomputes in evaluation mode, too."""
        with evaluation(self.model), torch.enable_grad():
            return torch.autograd.grad(
                outputs, inputs, weights, retain_graph=True, allow_unused=True
            )

    def surviving(self, name: str) -> str | None:
        """``name``, or if a norm cancels a gate there, the next place with this grid."""
        later = self.places[self.places.index(name) :]
        shares = self.shares([n for n in later if self.sizes[n] == self.sizes[name]])
        found = (n for n, share in shares.items() if share >= SMALLEST_SHARE)
        return next(found, None) if shares[name] > 0 else None


def _path(name: str) -> list[str]:
    """The modules around ``name``, outermost first, and itself."""
    return list(accumulate(name.split("."), "{}.{}".format))


def _on_all_paths(results: Sequence[Tensor], image: Tensor) -> set[Any]:
    """Nodes of the autograd graph that every path from a result to the image crosses.

    In topological order, these are the nodes that no edge passes over.
    """
    leads: dict[Any, bool] = {None: False}  # whether a node leads to the image; sources first
    stack: list[tuple[Any, bool]] = [(result.grad_fn, False) for result in results]
    while stack:
        node, done = stack.pop()
        if node in leads:
            continue
        sources = [source for source, _ in node.next_functions]
        if done:
            own = getattr(node, "variable", None) is image
            leads[node] = own or any(leads[source] for source in sources)
        else:
            stack += [(node, True), *((source, False) for source in sources)]
    place = {node: i for i, node in enumerate(n for n in reversed(leads) if leads[n])}
    crossed, farthest = set(), max((place.get(r.grad_fn, 0) for r in results), default=0)
    for node, number in place.items():
        if farthest <= number:
            crossed.add(node)
        farthest = max([farthest, *(place.get(source, 0) for source, _ in node.next_functions)])
    return crossed
