"""What a network is called with and what it returns: a tensor, or a tuple, dict or dataclass with tensors in it."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one forward of a network, kept to run it again."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, batch: "Tensor | Call") -> "Call":
        """A batch of images as the only argument; a call as it is."""
        return cls((batch,), {}) if isinstance(batch, Tensor) else batch

    def run(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)

    def first(self, images: int) -> "Call":
        """The same call with fewer images: every tensor as long as the first one is cut."""
        size = next((len(t) for t in self._tensors() if t.ndim), 0)
        return self._map(lambda t: t[:images].detach().clone() if t.ndim and len(t) == size else t.detach())

    def to(self, device: torch.device) -> "Call":
        return self._map(lambda t: t.to(device))

    def image(self) -> Tensor | None:
        """The first tensor that can be an image, a sequence or a volume with its batch and channels."""
        return next((t for t in self._tensors() if t.ndim >= 3), None)

    def state(self) -> Any:
        """Tensors and plain numbers, for a checkpoint; None if there is anything else in the call."""
        if len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], Tensor):
            return self.args[0]
        return {"args": list(self.args), "kwargs": self.kwargs} if _plain((self.args, self.kwargs)) else None

    @classmethod
    def from_state(cls, state: Any) -> "Call | None":
        if state is None or isinstance(state, Tensor):
            return None if state is None else cls.of(state)
        return cls(tuple(state["args"]), dict(state["kwargs"]))

    def _tensors(self) -> Iterator[Tensor]:
        return tensors((self.args, self.kwargs))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Call":
        return Call(_mapped(self.args, change), _mapped(self.kwargs, change))


def _plain(value: Any) -> bool:
    if type(value) in (list, tuple, dict):
        return all(map(_plain, value.values() if isinstance(value, dict) else value))
    return value is None or type(value) in (Tensor, bool, int, float, str)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors inside, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def floating(value: Any) -> list[Tensor]:
    return [t for t in tensors(value) if t.is_floating_point()]


def logits(output: Any) -> Tensor:
    """The logits in what a network returned: its only tensor, or what it calls ``logits``."""
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = [named] if isinstance(named, Tensor) else floating(output)
    if len(found) != 1:
        raise ValueError(
            f"the model returns {type(output).__name__} with {len(found)} tensors, none of them called 'logits'. Wrap "
            "the model so that it returns the logits, alone or under that name."
        )
    return found[0]


def compared(output: Any) -> Tensor:
    """What tells whether an output has changed: the logits, or all tensors in a row."""
    try:
        return logits(output)
    except ValueError:
        found = floating(output)
        if not found:
            raise ValueError(f"the model returns no tensor but {type(output).__name__}; nothing to compare.") from None
        return torch.cat([t.detach().double().flatten() for t in found])


def with_logits(output: Any, new: Tensor) -> Any:
    """The same structure with other logits."""
    old = logits(output)
    if isinstance(output, Mapping) and "logits" in output:
        changed: Any = copy.copy(output)
        changed["logits"] = new
        return changed
    return replaced(output, old, new)


def replaced(output: Any, old: Tensor, new: Tensor) -> Any:
    """The same structure with ``new`` in the place of ``old``."""
    return new if output is old else _mapped(output, lambda t: new if t is old else t)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return type(value)({key: _mapped(part, change) for key, part in value.items()})  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _mapped(getattr(value, field.name), change) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)
    return value
