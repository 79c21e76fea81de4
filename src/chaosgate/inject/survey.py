"""A dry run of a backbone: which modules fire, what they return, and whose output a normalisation undoes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# A per-token normalisation, and the reshapings a map may pass on the way to one, by the name of their backward node.
_NORM_NODES = ("NativeLayerNormBackward", "FusedLayerNormBackward", "FusedRmsNormBackward")
_VIEW_NODES = ("Permute", "Transpose", "View", "Reshape", "Unflatten", "Alias", "Clone", "Expand", "Contiguous")


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every module's own mode after: running statistics and counters stay untouched."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def example_input(model: nn.Module) -> Tensor:
    """One black image of the size the backbone was made for, on its device."""
    parameter = next(model.parameters(), torch.empty(0))
    config: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    size = tuple(config.get("input_size", (3, 224, 224)))
    stem = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = stem.in_channels if stem is not None else size[0]
    embed = getattr(model, "patch_embed", None)
    side = getattr(embed, "img_size", None) or size[1:]
    return torch.zeros(1, channels, *side, device=parameter.device, dtype=parameter.dtype)


class Survey:
    """What one forward pass shows. The graph of the backward pass tells who consumes whose output.

    Args:
        model: The backbone.
        example: An input batch; None makes one black image of the model's own size.
    """

    def __init__(self, model: nn.Module, example: Tensor | None = None) -> None:
        self.model = model
        self.outputs: dict[str, Tensor] = {}
        handles = [module.register_forward_hook(self._recorder(name)) for name, module in model.named_modules() if name]
        image = example_input(model) if example is None else example
        try:
            with evaluation(model), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
                result = model(image.detach().clone().requires_grad_())
        finally:
            for handle in handles:
                handle.remove()
        self._consumers = _consumers(result) if isinstance(result, Tensor) else {}

    def _recorder(self, name: str) -> Any:
        def record(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self.outputs[name] = output

        return record

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


def _consumers(result: Tensor) -> dict[Any, set[Any]]:
    """For every node of the backward graph, the nodes that read its output."""
    consumers: dict[Any, set[Any]] = {}
    waiting = [result.grad_fn] if result.grad_fn is not None else []
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
