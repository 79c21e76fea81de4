"""Hooks that belong to one module object: a copy of the module comes out plain."""

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from torch import nn
from torch.utils.hooks import RemovableHandle

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

    def before(self) -> Self:
        """Run ahead of the module's forward, with its arguments."""
        assert self.module is not None
        self.handle = self.module.register_forward_pre_hook(self, with_kwargs=True)
        return self

    def behind(self) -> Self:
        """Run after the module's forward, with its arguments and its output."""
        assert self.module is not None
        self.handle = self.module.register_forward_hook(self, with_kwargs=True)
        return self

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()

    def __call__(self, module: nn.Module, *call: Any) -> Any:
        if self.act is None:
            self.remove()
            return None
        if module is not self.module:
            if not module.training:
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
