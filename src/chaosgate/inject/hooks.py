"""What an attachment registers on a module: a site with its gate, and hooks that a copy of the module does not keep."""

import copy
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from chaosgate.field.white import fold
from chaosgate.gate import Gate
from chaosgate.gate.base import DRAWING, in_backward
from chaosgate.inject.layout import Layout, Place
from chaosgate.inject.stages import unwrapped_name

if TYPE_CHECKING:
    from chaosgate.inject.attachment import Attachment

GATED: "WeakKeyDictionary[nn.Module, ReferenceType[Attachment]]" = WeakKeyDictionary()
"""The attachment that acts on the output of a module; one at most. Its hooks on the module keep it alive."""


class Hook:
    """A hook of an attachment. What ``deepcopy``, pickling and ``torch.save`` make of it takes itself off.

    Args:
        module: The module it is registered on; None in a copy.
        act: What to do, without the module.
        forced: Whether gates act in evaluation mode too.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        act: Callable[..., Any] | None = None,
        forced: Callable[[], bool] = bool,
    ) -> None:
        self.module, self.act, self.forced = module, act, forced
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
            if self.always or not (module.training or self.forced()):
                return None
            raise RuntimeError(
                f"the gate belongs to another {type(module).__name__} object that shares its hooks with this one "
                "(torch.nn.DataParallel and copy.copy do that). Use DistributedDataParallel, or make the copy "
                "with copy.deepcopy and attach a gate to it."
            )
        return self.act(*call)

    @property
    def __name__(self) -> str:
        """What torch.jit.script asks a hook for first."""
        raise AttributeError(
            "torch.jit.script cannot read the hooks of a chaosgate gate. Script a copy (copy.deepcopy(model)), which "
            "is the plain network, or call remove() on the handle before."
        )

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
        return Hook, (), {"handle": self.handle}


class _RemovedAtTheEnd:
    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __del__(self) -> None:
        self.hook.remove()


@dataclass(eq=False)
class Site:
    """One place where a gate acts.

    ``passes`` counts how often its module has run in the current forward, ``silent`` how often the network has begun
    outside of one since the gate acted; ``before`` and ``after`` are the features of a recorded one.
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
    silent: int = 0
    before: Tensor | None = None
    after: Tensor | None = None

    @classmethod
    def on(cls, gate: Gate, asked: str, place: Place, seed: tuple[int, int], device: torch.device) -> "Site":
        """With noise of its own under the seed and rank of the attachment; a seed of the gate's own selects it too."""
        identity = (*seed, unwrapped_name(place.name), *(() if gate.seed is None else ("seed", gate.seed)))
        return cls(asked, place.name, gate, place, [torch.tensor(fold(*identity), device=device)], identity)

    def __str__(self) -> str:
        return f"{self.asked if self.asked == self.module else f'{self.asked} -> {self.module}'}: {self.gate}"

    def rekey(self, rank: int) -> None:
        """The noise of another rank."""
        self.identity = (self.identity[0], rank, *self.identity[2:])
        self.keys = [torch.tensor(fold(*self.identity), device=self.keys[0].device)]

    def key(self) -> Tensor:
        """The key of this pass: a module that runs twice in one forward gets two gates."""
        while len(self.keys) <= self.passes:
            key = torch.tensor(fold(*self.identity, len(self.keys)))
            self.keys.append(key.to(self.keys[0].device))
        return self.keys[self.passes]


def occupy(attachment: "Attachment") -> None:
    """Note whose gates are on which modules; refused where there is one already."""
    for site in attachment.sites:
        module = site.place.chain[0]
        if module in GATED:
            raise ValueError(
                f"'{site.module}' already has a gate, by {GATED[module]()!r}. Two gates at one place would be one of "
                "another strength. Call remove() on the first handle (chaosgate.Attachment.on(model) finds it)."
            )
    for site in attachment.sites:
        GATED[site.place.chain[0]] = ref(attachment)


class Entry:
    """The forward of the whole model that is running: one may run inside another (a check, Monte Carlo), in one thread.

    ``images`` is the shape of its input, ``gated`` what its gates returned so far. Outside of it, where the model is
    entered otherwise, each pass of a site counts.
    """

    def __init__(self, sites: list[Site]) -> None:
        self.images: tuple[int, ...] | None = None
        self.gated: list[Tensor] = []
        self._sites = sites
        self._running = self._training = False
        self._thread = 0
        self._outer: list[tuple[tuple[int, ...] | None, bool, list[tuple[int, bool]]]] = []

    @property
    def running(self) -> bool:
        """Refused in another thread than the one that entered: their passes could not be told apart."""
        if self._running and not torch.compiler.is_compiling() and self._thread not in (0, threading.get_ident()):
            raise RuntimeError(
                "a gated model runs in two threads at once, and the gates cannot tell which forward is whose. Give "
                "each thread a copy.deepcopy of the model and attach a gate to it, with a seed of its own; or let one "
                "forward end before the next begins."
            )
        return self._running

    def begin(self, images: tuple[int, ...] | None, training: bool) -> None:
        if torch.compiler.is_compiling():
            self._begin(images, training)
            self._thread = 0  # compiled code does not know its thread
        else:
            with DRAWING:
                self._begin(images, training)
                self._thread = threading.get_ident()

    def _begin(self, images: tuple[int, ...] | None, training: bool) -> None:
        if self.running:
            self._outer.append((self.images, self._training, [(site.passes, site.skipped) for site in self._sites]))
        self._running, self._training, self.images = True, training, images
        for site in self._sites:
            site.passes, site.skipped = 0, False

    def see(self, first: Tensor) -> None:
        """Take the input of the network's first convolution for the images, whatever the network was called with.

        Frames of a video may come one by one, but a sequence (text, sound) is not what images were turned into.
        """
        if not self.running or self.images is None or first.ndim >= min(4, len(self.images)):
            self.images = tuple(first.shape)

    def layout(self, site: Site, output: Any, images: tuple[int, ...] | None) -> Layout:
        """How the features of a site lie; read anew for tokens, whose grid follows the images."""
        if site.layout is None and torch.compiler.is_compiling():
            self._running = False  # a compiler that gives up halfway leaves what was set so far, and ends nothing
            self._outer.clear()
            raise RuntimeError(
                f"the layout at '{site.module}' is read from real features, which a compiler does not have. Call "
                "handle.check(batch) before the compiled model runs."
            )
        if site.layout is None or site.layout.kind == "NLC":
            site.layout = site.place.read(output, images)
        return site.layout

    def end(self, *call: Any) -> None:
        """Also after an exception (out of memory, say) that the loop survives."""
        if in_backward() or (not torch.compiler.is_compiling() and self._thread not in (0, threading.get_ident())):
            return
        if not self._outer:
            self._running, self.images = False, None
            self.gated.clear()
            for site in self._sites:
                site.passes = 0
            return
        inner = [site.passes if self._training else 0 for site in self._sites]  # of a model that calls itself
        self.images, self._training, counts = self._outer.pop()
        for site, passes, (before, skipped) in zip(self._sites, inner, counts, strict=True):
            site.passes, site.skipped = before + passes, skipped
