"""A dry run of a backbone: which modules fire, what they return, and whose output a normalisation undoes."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from chaosgate.inject.calls import floating
from chaosgate.inject.layout import Layout, Place

# A per-token normalisation, and the reshapings a map may pass on the way to one, by the name of their backward node.
_NORM_NODES = ("NativeLayerNormBackward", "FusedLayerNormBackward", "FusedRmsNormBackward")
_VIEW_NODES = ("Permute", "Transpose", "View", "Reshape", "Unflatten", "Alias", "Clone", "Expand", "Contiguous")


@contextmanager
def evaluation(model: nn.Module, buffers: bool = True) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode, torch's random stream and all ``buffers`` as before after it.

    Some networks draw or count in evaluation mode too: masked auto-encoders, queues of contrastive learning.
    """
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if buffers and not buffer.is_meta
    ]
    model.eval()
    try:
        with same_stream(model):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, value in kept:
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)


def same_stream(model: nn.Module) -> AbstractContextManager[None]:
    """What is drawn from torch's random stream inside is drawn again after it."""
    device = next(model.parameters(), torch.empty(0)).device
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def eager() -> AbstractContextManager[object]:
    """What is compiled runs eagerly inside: the hooks of a compiled network see no values.

    Where the compiler was never loaded, nothing is compiled; to ask it would take as long as to import torch.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def example_input(model: nn.Module) -> Tensor:
    """One black image of the size the backbone was made for, on its device."""
    parameter = next(model.parameters(), torch.empty(0))
    stem = next((m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
    if stem is not None and not isinstance(stem, nn.Conv2d):
        raise ValueError(
            f"{type(model).__name__} is not made for images (it starts with {type(stem).__name__}); give an example "
            "input, or name modules instead of L1 to L4."
        )
    channels, height, width = _input_size(model)
    channels = stem.in_channels if stem is not None else channels
    return torch.zeros(1, channels, height, width, device=parameter.device, dtype=parameter.dtype)


def _input_size(model: nn.Module) -> tuple[int, int, int]:
    """Channels and sides in the words of timm, torchvision's ViT and Hugging Face, from any module that says them."""
    for module in model.modules():
        config: Any = getattr(module, "pretrained_cfg", None) or {}
        said = getattr(getattr(module, "patch_embed", None), "img_size", None)
        if said is None and "input_size" in config:
            said = config["input_size"][1:]
        if said is None:
            said = getattr(module, "image_size", None) or getattr(getattr(module, "config", None), "image_size", None)
        if isinstance(said, int):
            said = (said, said)
        if isinstance(said, list | tuple) and len(said) == 2:
            return 3, int(said[0]), int(said[1])
    return 3, 224, 224


class Survey:
    """What one forward pass shows. The graph of the backward pass tells who consumes whose output.

    ``outputs`` holds the features of every module that returns some, in the order in which the modules finish.

    Args:
        model: The backbone.
        example: An input batch; None makes one black image of the model's own size.
    """

    def __init__(self, model: nn.Module, example: Tensor | None = None) -> None:
        self.model = model
        self.outputs: dict[str, Tensor] = {}
        self.returned: dict[str, Any] = {}
        handles = [module.register_forward_hook(self._recorder(name)) for name, module in model.named_modules() if name]
        image = example_input(model) if example is None else example
        self.image = tuple(image.shape)
        try:
            with evaluation(model), torch.enable_grad(), eager():
                self.result = model(image.detach().clone().requires_grad_(image.is_floating_point()))
        finally:
            for handle in handles:
                handle.remove()
        self._consumers = _consumers(floating(self.result))

    def _recorder(self, name: str) -> Any:
        def record(module: nn.Module, args: Any, output: Any) -> None:
            found = [output] if isinstance(output, Tensor) else floating(output)
            if len(found) == 1 and isinstance(output, Tensor | tuple | list):
                self.outputs.pop(name, None)  # a module that runs again finishes later
                self.outputs[name] = found[0]
                self.returned[name] = output

        return record

    def layout(self, name: str) -> Layout | None:
        """The layout of a module's output, where it is a map, a sequence or tokens and there is no doubt."""
        try:
            return Place.of(self.model, name).read(self.returned[name], self.image)
        except ValueError:
            return None

    def grid(self, name: str) -> tuple[int, ...] | None:
        """The grid of a module's output; it may be known where the layout is not, as for 16 channels on 16x16."""
        layout, output = self.layout(name), self.outputs[name]
        if layout is not None:
            return layout.grid_of(output)
        alike = output.ndim == 4 and len(output) == self.image[0] and len(set(output.shape[1:])) == 1
        return tuple(output.shape[2:]) if alike else None

    def surviving(self, site: str) -> str:
        """``site``, or the per-token norm that is the only consumer of its output.

        A channel-shared positive gate scales a whole token; a per-token norm right behind it divides that out again.
        Behind the norm the gate survives.
        """
        output = self.outputs.get(site)
        if output is None or output.grad_fn is None:
            return site
        readers = self._readers(output.grad_fn)
        if not readers or not all(_is(node, _NORM_NODES) for node in readers):
            return site
        norms = [name for name, out in self.outputs.items() if _source(out.grad_fn) in readers]
        return min(norms, key=len) if norms else site

    def is_read(self, site: str) -> bool:
        """Whether the model's result depends on the output of ``site``."""
        output = self.outputs.get(site)
        return output is None or output.grad_fn is None or output.grad_fn in self._consumers

    def reads_grid(self, site: str, layout: Layout) -> bool:
        """Whether the result depends on any token on the grid, not only on those in front of it."""
        output = self.outputs[site]
        total = torch.stack([t.double().sum() for t in floating(self.result)]).sum()
        gradient = torch.autograd.grad(total, output, retain_graph=True, allow_unused=True)[0]
        return gradient is not None and bool(gradient[:, layout.prefix :].any())

    def _readers(self, node: Any) -> set[Any]:
        """The nodes that compute with an output, looking through reshapings."""
        found: set[Any] = set()
        for consumer in self._consumers.get(node, ()):
            found |= self._readers(consumer) if _is(consumer, _VIEW_NODES) else {consumer}
        return found


def _is(node: Any, kinds: tuple[str, ...]) -> bool:
    return any(node.name().startswith(kind) or kind + "Backward" in node.name() for kind in kinds)


def _source(node: Any) -> Any:
    """The node behind the reshapings that end a module, such as the permutations of a channels-first LayerNorm."""
    while node is not None and _is(node, _VIEW_NODES):
        node = node.next_functions[0][0]
    return node


def _consumers(results: list[Tensor]) -> dict[Any, set[Any]]:
    """For every node of the backward graph, the nodes that read its output; the model's results are read by nobody."""
    waiting = [result.grad_fn for result in results if result.grad_fn is not None]
    consumers: dict[Any, set[Any]] = {node: set() for node in waiting}
    seen: set[Any] = set(waiting)
    while waiting:
        node = waiting.pop()
        for source, _ in node.next_functions:
            if source is None:
                continue
            consumers.setdefault(source, set()).add(node)
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return consumers
