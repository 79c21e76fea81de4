"""What an attachment hangs on a module: a site with its gate, and hooks that a copy of the module does not keep."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from chaosgate.field.white import fold
from chaosgate.gate import Gate
from chaosgate.inject.layout import Layout, Place
from chaosgate.inject.stages import unwrapped_name

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment

GATED: "WeakKeyDictionary[nn.Module, Attachment]" = WeakKeyDictionary()
"""The attachment that acts on the output of a module; one at most."""


class Hook:
    """A hook of an attachment. What ``deepcopy``, pickling and ``torch.save`` make of it takes itself off.

    Args:
        module: The module it is registered on; None in a copy.
        act: What to do, without the module.
    """

    def __init__(self, module: nn.Module | None = None, act: Callable[..., Any] | None = None) -> None:
        self.module, self.act = module, act
        self.handle: RemovableHandle | None = None
        self.always = False

    def before(self) -> Self:
        """Run ahead of the module's forward, with its arguments."""
        assert self.module is not None
        self.handle = self.module.register_forward_pre_hook(self, with_kwargs=True)
        return self

    def behind(self, always: bool = False) -> Self:
        """Run after the module's forward, with its arguments and its output; ``always``: also if it raised."""
        assert self.module is not None
        self.always = always
        self.handle = self.module.register_forward_hook(self, with_kwargs=True, always_call=always)
        return self

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()

    def __call__(self, module: nn.Module, *call: Any) -> Any:
        if self.act is None:
            self.remove()
            return None
        if module is not self.module:
            if self.always or not module.training:
                return None
            raise RuntimeError(
                f"the gate belongs to another {type(module).__name__} object that shares its hooks with this one "
                "(torch.nn.DataParallel and copy.copy do that). Train with DistributedDataParallel, or make the copy "
                "with copy.deepcopy and attach a gate to it."
            )
        return self.act(*call)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hook":
        plain = Hook()
        plain.handle = copy.deepcopy(self.handle, memo)  # its dictionary of hooks is the copied one, by the memo
        last = _RemovedAtTheEnd(plain)
        memo[id(last)] = last  # the memo lives as long as the copying
        return plain

    def __reduce__(self) -> tuple[Any, ...]:
        if self.act is not None:
            warnings.warn(
                "a chaosgate gate is attached to the model that is being saved; what is loaded from it is the plain "
                "network. Attach the gate again after loading, or call remove() on its handle before saving.",
                stacklevel=2,
            )
        return Hook, (), {"handle": self.handle, "module": None, "act": None}


class _RemovedAtTheEnd:
    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __del__(self) -> None:
        self.hook.remove()


@dataclass(eq=False)
class Site:
    """One place where a gate acts.

    ``passes`` counts how often its module has run in the current forward; ``before`` and ``after`` are the features of
    a recorded one.
    """

    asked: str
    module: str
    gate: Gate
    place: Place
    keys: list[Tensor]
    identity: tuple[int | str, ...]
    layout: Layout | None = None
    passes: int = 0
    skipped: bool = False
    before: Tensor | None = None
    after: Tensor | None = None

    @classmethod
    def on(cls, gate: Gate, asked: str, place: Place, seed: tuple[int, int], device: torch.device) -> "Site":
        """With noise of its own under the seed and rank of the attachment; a seed of the gate's own selects it too."""
        identity = (*seed, unwrapped_name(place.name), *(() if gate.seed is None else ("seed", gate.seed)))
        return cls(asked, place.name, gate, place, [torch.tensor(fold(*identity), device=device)], identity)

    def key(self) -> Tensor:
        """The key of this pass: a module that runs twice in one forward gets two gates."""
        while len(self.keys) <= self.passes:
            key = torch.tensor(fold(*self.identity, len(self.keys)))
            self.keys.append(key.to(self.keys[0].device))
        return self.keys[self.passes]
