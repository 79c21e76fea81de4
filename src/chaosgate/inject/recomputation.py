"""Activation checkpointing runs a stage again during the backward pass: which forward does it recompute?

Every forward leaves a gradient hook on its outputs. The hook lives as long as the graph of that forward, and it runs
before anything inside the forward is recomputed: the engine works through later forwards first, and through a forward
from its outputs down. What this does not settle is refused.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import ReferenceType, WeakSet, ref

from torch import Tensor
from torch.autograd import Variable

try:
    from torch.autograd.graph import queue_callback
except ImportError:  # older releases of torch have it without a public name
    queue_callback = Variable._execution_engine.queue_callback


@dataclass(eq=False)
class Forward:
    """One forward that may be recomputed; also the gradient hook on its outputs, and on what its gates returned.

    ``passes`` counts how often each site ran in it. ``site`` is the only one it is about where the model was not
    entered as a whole. A gate that ran without a graph (checkpointing with ``use_reentrant=True``) makes it ``hidden``:
    somebody may hold features of it although its outputs are gone.
    """

    step: Tensor
    images: tuple[int, ...] | None
    passes: dict[str, int]
    site: str | None
    pending: "PendingForwards"
    hidden: bool
    recomputed: set[str] = field(default_factory=set)

    def __call__(self, gradient: Tensor) -> None:
        self.hidden = False
        if self.site is None and self.pending.latest() is not self:
            self.recomputed.clear()
            self.pending.arrived(self)

    def __del__(self) -> None:
        self.pending.lost |= self.hidden


class PendingForwards:
    """The forwards whose graphs are alive."""

    def __init__(self) -> None:
        self._alive: WeakSet[Forward] = WeakSet()
        self._latest: dict[int, ReferenceType[Forward]] = {}
        self.lost = False  # the outputs of a hidden forward were dropped before their backward pass

    def add(
        self,
        outputs: Iterable[Tensor],
        step: Tensor,
        images: tuple[int, ...] | None,
        passes: dict[str, int],
        gated: Sequence[Tensor] = (),
        site: str | None = None,
    ) -> None:
        tracked = [tensor for tensor in (*outputs, *gated) if tensor.requires_grad]
        if not tracked:
            return
        forward = Forward(step.clone(), images, passes, site, self, site is None and len(gated) < sum(passes.values()))
        for tensor in tracked:
            tensor.register_hook(forward)  # type: ignore[no-untyped-call]
        self._alive.add(forward)

    def arrived(self, forward: Forward) -> None:
        """The backward pass of this thread has come to the outputs of ``forward``."""
        queue_callback(self._latest.clear)
        self._latest[threading.get_ident()] = ref(forward)

    def latest(self) -> Forward | None:
        found = self._latest.get(threading.get_ident())
        return found() if found is not None else None

    def recomputed(self, site: str) -> Forward:
        """The forward that ``site`` is being recomputed for; refused where it is not certain."""
        forward = self.latest()
        dropped = ", and the outputs of one were dropped before theirs" if self.lost else ""
        if forward is None:
            possible = [f for f in list(self._alive) if f.site in (None, site)]
            forward = possible[0] if len(possible) == 1 and not self.lost else None
            found = f"{len(possible)} forwards wait for their backward pass{dropped}"
        elif forward.passes.get(site, 0) > 1:
            found = f"'{site}' ran {forward.passes[site]} times in that forward"
            forward = None
        elif site in forward.recomputed and (len(self._alive) > 1 or self.lost):
            found = (
                f"it is recomputed twice in one backward pass while {len(self._alive)} forwards wait for "
                f"theirs{dropped}, so for two of them, or by checkpointing inside checkpointing"
            )
            forward = None
        if forward is None:
            raise RuntimeError(
                f"activation checkpointing runs '{site}' again in the backward pass, and there is no way to tell with "
                f"which noise: {found}. Call backward() after each forward and keep no output of an earlier one, put "
                "the views into one batch, use checkpointing with use_reentrant=False and call the whole model, or "
                "switch checkpointing off."
            )
        forward.recomputed.add(site)
        return forward
