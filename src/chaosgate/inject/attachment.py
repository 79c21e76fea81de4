"""Attach gates to a network with hooks: no new module, no new parameter, no new key in the ``state_dict``.

The life of a forward::

    y = model(x)                  _enter   a Forward is made: step + 1, shape of x. The first one checks the effect.
          h = layer4(...)         _gate    h becomes gate(h); Forward.passes counts it
                                  _leave   has every gate acted? The graph of y keeps the Forward, nothing else does.
    loss(y).backward()                     the gradient arrives at y: this Forward is the current one of the backward
          layer4 is recomputed    _gate    activation checkpointing: the same step, so the same noise

    model.forward_features(x)              no _enter: each pass of a gated module is a Forward of its own
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Self
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import Gate
from chaosgate.gate.base import TRACKER, Counter, in_backward, rank_of_process, require_fresh_draws
from chaosgate.inject.diagnostics import MonteCarlo
from chaosgate.inject.effect import SiteReport, check_effect, require_effect
from chaosgate.inject.integrations import RestoreWarning
from chaosgate.inject.layout import (
    NORMS,
    Layout,
    LayoutReader,
    check_layout,
    features_of,
    mapped,
    tensors,
)
from chaosgate.inject.refusals import refuse
from chaosgate.inject.stages import find_sites, gates_by_stage, sharded, unwrapped

try:
    from torch.autograd.graph import queue_callback
except ImportError:  # older releases of torch have it without a public name
    queue_callback = Variable._execution_engine.queue_callback

GATED: "WeakKeyDictionary[nn.Module, ReferenceType[Attachment]]" = WeakKeyDictionary()
"""The attachment on the output of a module; one at most. Its hooks on the module keep it alive."""


@dataclass(eq=False)
class GatedModule:
    """A module with a gate on its output: as asked for (``stage``) and by its path (``module``)."""

    stage: str
    module: str
    gate: Gate
    reader: LayoutReader
    identity: tuple[int | str, ...]
    layout: Layout | None = None
    read_for: Any = None  # shapes of features and images that the grid of tokens was read for

    def __post_init__(self) -> None:
        self.key, chain = fold(*self.identity), self.reader.chain
        self.leader = chain[1] if isinstance(chain[0], NORMS) and len(chain) > 1 else chain[0]
        """The module whose mode decides; for a normalization layer, which may be frozen, its parent."""

    def __str__(self) -> str:
        return f"{self.stage if self.stage == self.module else f'{self.stage} -> {self.module}'}: {self.gate}"

    def layout_of(self, output: Any, features: Tensor, images: tuple[int, ...] | None) -> Layout:
        """Of maps once; of tokens whenever their number or the image changes."""
        layout, shapes = self.layout, (features.shape, images)
        if layout is None or (layout.grid is not None and self.read_for != shapes):
            if torch.compiler.is_compiling():
                refuse("compiled", module=self.module)
            layout, self.read_for = self.reader(output, images), shapes
            self.layout = layout
        return layout


@dataclass(eq=False)
class Forward:
    """One forward of the model, or one pass of a module (``module``) if the model is entered otherwise.

    It is also the gradient hook on what the forward returned, so it lives as long as the graph. ``hidden``: a gate ran
    without a graph, as under checkpointing with ``use_reentrant=True``.
    """

    attachment: "Attachment"
    step: Tensor | int
    images: tuple[int, ...] | None
    outer: "Forward | None" = None
    module: str | None = None
    passes: dict[str, int] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    recomputed: set[str] = field(default_factory=set)
    hidden: bool = False

    def __call__(self, gradient: Tensor) -> None:
        """The backward pass has come to the outputs of this forward."""
        if self.module is None and self.attachment._backward != ref(self):
            self.recomputed.clear()
            queue_callback(partial(setattr, self.attachment, "_backward", None))
            self.attachment._backward = ref(self)

    def wait(self, outputs: Any) -> None:
        """Stay alive with the graph of the outputs, and be called when a gradient arrives there."""
        for tensor in (outputs,) if isinstance(outputs, Tensor) else tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self)  # type: ignore[no-untyped-call]
                if self not in self.attachment._waiting:
                    self.attachment._waiting.add(self)


class Attachment:
    """Gates on some modules of a model, until :meth:`remove`. Made by :func:`attach`; also a context manager."""

    def __init__(
        self,
        model: nn.Module,
        gates: Mapping[str, Gate],
        seed: int = 0,
        rank: int | None = 0,
        check: bool = False,
        layout: str | None = None,
        grid: Sequence[int] | None = None,
        example: Any = None,
        measuring: bool = False,
    ) -> None:
        sides = check_layout(layout, grid)
        self.model = model
        self._follow_rank, self._rank = rank is None, rank_of_process() if rank is None else rank
        self.sites = []
        for stage, (path, shown) in find_sites(model, list(gates), example).items():
            reader = LayoutReader.of(model, path, layout, sides, shown)
            own = gates[stage].seed
            identity = (seed, self._rank, unwrapped(path), *(() if own is None else ("seed", own)))
            self.sites.append(GatedModule(stage, path, gates[stage], reader, identity))
        owned = (
            (m, name) for m in model.modules() for name, _ in m.named_parameters(recurse=False)
        )
        self._parameter = next(
            owned, (None, "")
        )  # one of them, to see the transforms of torch.func
        self._steps, self._fired = Counter(), Counter()
        self._forward: Forward | None = None
        self._forced: Forced | None = None
        self._waiting: WeakSet[Forward] = WeakSet()  # forwards whose graphs are alive
        self._backward: ReferenceType[Forward] | None = (
            None  # the forward that the backward pass is in
        )
        self._measuring = measuring
        self._monte_carlo: MonteCarlo | None = None
        self._factors: dict[Gate, Tensor | None] = {}
        self._hooks: list[Hook] = []
        self.on_first_call: Callable[..., object] | None = (
            partial(require_effect, self) if check else None
        )
        """Called with the arguments of the first training forward, before it; again with the next one if it raises."""
        self.resumed: RestoreWarning | None = None
        if not measuring:
            for site in self.sites:
                if site.reader.chain[0] in GATED:
                    refuse(
                        "already gated", module=site.module, handle=GATED[site.reader.chain[0]]()
                    )
            GATED.update({site.reader.chain[0]: ref(self) for site in self.sites})
        self._register()

    # -- what a user sees ------------------------------------------------------------------------------------------

    @classmethod
    def on(cls, model: nn.Module) -> list["Attachment"]:
        """The attachments on ``model``, for those who have lost their handles."""
        found = (GATED[module]() for module in model.modules() if module in GATED)
        return list(dict.fromkeys(attachment for attachment in found if attachment is not None))

    @property
    def gates(self) -> dict[str, Gate]:
        return {site.stage: site.gate for site in self.sites}

    @property
    def fired(self) -> int:
        """How often a gate acted on features in training mode; 0 after training means that there was no noise."""
        return self._fired.value

    @property
    def step(self) -> int:
        """Training forwards of the model so far, or passes of a gated module if the model is entered otherwise."""
        return self._steps.value

    @property
    def uncertainty(self) -> dict[str, Tensor]:
        """Of the last Monte Carlo forward: predictive ``entropy`` and ``mutual_information`` per prediction."""
        return self._monte_carlo.uncertainty if self._monte_carlo is not None else {}

    @property
    def _averages(self) -> bool:
        return self._monte_carlo is not None and self._monte_carlo.active

    def check(self, *args: Any, **kwargs: Any) -> list[SiteReport]:
        """Run the model on these arguments with the gates off and on; refuse a gate that does not reach the output.

        Leaves weights, running statistics, the step and every random stream as they were. Also fills all caches,
        which ``torch.compile(fullgraph=True)`` needs. A refusal stands until a check passes.
        """
        self._require_attached()
        reports = check_effect(self, args, kwargs)
        self.on_first_call = None
        return reports

    def set_strength(self, factor: float) -> None:
        """Scale the nominal strength: 0 is no noise, 1 the full strength. For schedules; :meth:`remove` undoes it."""
        if not 0 <= factor <= 1:
            refuse("factor", factor=factor)
        self._require_attached()
        for gate in dict.fromkeys(self.gates.values()):
            self._factors.setdefault(gate, gate.dial)
            if gate.dial is None or gate.dial is self._factors[gate]:
                device = next(self.model.parameters(), torch.empty(0)).device
                with torch.inference_mode(False):  # what is made in that mode cannot be set outside
                    gate.dial = torch.ones((), device=device)
            gate.dial.fill_(factor)

    @contextmanager
    def monte_carlo(
        self, draws: int, step: int = 0, class_axis: int | None = None
    ) -> Iterator[Self]:
        """In here an evaluation forward returns the log of the mean probabilities of ``draws`` gated passes.

        ``step`` tells batches apart. ``class_axis`` is the axis of the classes in outputs other than (B, K), e.g. 1 for
        a segmentation map (B, K, H, W). :attr:`uncertainty` holds, per prediction of the last batch, the predictive
        ``entropy`` and the ``mutual_information`` between prediction and gate.
        """
        self._require_attached()
        kept, self._monte_carlo = self.step, MonteCarlo(draws, class_axis)
        self._steps.value = step
        try:
            yield self
        finally:
            self._monte_carlo.active = False
            self._steps.value = kept

    @contextmanager
    def forced(
        self, draw: int, only: set[str] | None = None, record: bool = False
    ) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
        """In here gates act in evaluation mode too, with the noise of one numbered draw, on some or all modules.

        Yields what ``record`` keeps of each: the map (B, C, *grid) before and after its gate, by path.
        """
        self._require_attached()
        previous, self._forced = self._forced, Forced(draw, only, record)
        try:
            yield self._forced.maps
        finally:
            self._forced = previous

    def state_dict(self) -> dict[str, int]:
        """The counters, as plain integers."""
        return {"step": self.step, "fired": self.fired}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._steps.value, self._fired.value = int(state["step"]), int(state["fired"])
        if self.resumed is not None:
            self.resumed.done = True

    def remove(self) -> None:
        """Take the gates off; model and gates are as they were."""
        for hook in (*self._hooks, *(() if self.resumed is None else (self.resumed,))):
            hook.remove()
        self._hooks = []
        for site in self.sites:
            if not self._measuring:
                GATED.pop(site.reader.chain[0], None)
        for gate, factor in self._factors.items():
            gate.dial = factor
        self._factors = {}

    def __enter__(self) -> Self:
        self._require_attached()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "an attachment belongs to its model and cannot be copied or saved. Save handle.state_dict(); do not keep "
            "the handle in the model: chaosgate.Attachment.on(model) finds it."
        )

    def __repr__(self) -> str:
        return f"Attachment({', '.join(map(str, self.sites))})"

    def _require_attached(self) -> None:
        if not self._hooks:
            refuse("removed")

    # -- what the hooks do -----------------------------------------------------------------------------------------

    def _register(self) -> None:
        def forced() -> bool:
            return self._forced is not None or self._averages

        stem = next(
            (m for m in self.model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)),
            None,
        )
        acts: list[tuple[nn.Module, Callable[..., Any], str]] = [
            (self.model, self._enter, "before")
        ]
        acts += [(site.reader.chain[0], partial(self._gate, site), "behind") for site in self.sites]
        acts += [(self.model, self._leave, "always")]
        if stem is not None and any(site.reader.needs_image for site in self.sites):
            acts += [(stem, self._see_images, "before")]
        self._hooks = [Hook(module, act, forced, when) for module, act, when in acts]

    def _see_images(self, args: Any, kwargs: Any) -> None:
        """The input of the first convolution is the image, whatever the model was called with.

        Frames of a video may come one by one, but a sequence (text, sound) is not what images were turned into.
        """
        forward = self._forward
        if args and not in_backward():
            if forward is None:
                self._images = tuple(args[0].shape)
            elif forward.images is None or args[0].ndim >= min(4, len(forward.images)):
                forward.images = tuple(args[0].shape)

    _images: tuple[int, ...] | None = None  # of the last image outside of a forward of the model

    def _enter(self, args: Any, kwargs: Any) -> None:
        compiling = torch.compiler.is_compiling()
        if not compiling and TRACKER.is_bw:  # the whole model is recomputed
            return
        training = self._forced is None and any([site.leader.training for site in self.sites])
        image = next(
            (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim >= 3), None
        )
        images = None if image is None else tuple(image.shape)
        self._forward = forward = Forward(self, self._steps.now(compiling), images, self._forward)
        if training:
            if self._averages:
                refuse("averages", how="in training mode")
            self._begin(args, kwargs, image, compiling)
            forward.step = self._steps.next(compiling)

    def _begin(self, args: Any, kwargs: Any, image: Tensor | None, compiling: bool) -> None:
        """Before a training forward: the rank may be known now, and the first one is checked."""
        if self._follow_rank and (rank := rank_of_process()) != self._rank:
            self._rank = rank
            for site in self.sites:
                site.identity = (site.identity[0], rank, *site.identity[2:])
                site.key = fold(*site.identity)
        if compiling:
            return
        if self.on_first_call is not None:
            owner, name = self._parameter
            given = (image, getattr(owner, name, None))
            require_fresh_draws(*(value for value in given if value is not None))
            if sharded(self.model):
                warnings.warn(
                    "the effect of the gates is not checked: the parameters are sharded.",
                    stacklevel=2,
                )
            else:
                self.on_first_call(*args, **kwargs)
            self.on_first_call = None

    def _gate(self, site: GatedModule, args: Any, kwargs: Any, output: Any) -> Any:
        forced, forward, compiling = self._forced, self._forward, torch.compiler.is_compiling()
        if forced is None:
            if self._measuring or not site.leader.training:
                if forward is not None:
                    forward.frozen.add(site.module)
                elif not self._measuring and self._averages:
                    refuse("averages", how="in parts")
                return None
        elif forced.only is not None and site.module not in forced.only:
            return None
        again = forced is None and not compiling and bool(TRACKER.is_bw)
        if again:
            forward = self._recomputed(site.module)
        elif forward is None:
            forward = self._pass_of(site)
        features = output if isinstance(output, Tensor) else features_of(site.module, output)
        layout = site.layout_of(output, features, forward.images)
        h = layout.to_map(features)
        if not compiling:
            require_fresh_draws(features)
        number = 0 if again else forward.passes.get(site.module, 0)
        key = (
            site.key if number == 0 else fold(*site.identity, number)
        )  # a module that runs twice gets two gates
        draw = 0 if forced is None else forced.draw
        perturbed = site.gate.perturb(h, Noise(advance(advance(key, forward.step), draw), h.device))
        if forced is not None and forced.record:
            forced.maps[site.module] = (h.detach(), perturbed.detach())
        changed = layout.from_map(perturbed, features)
        if not again:
            forward.passes[site.module] = number + 1
            if forced is None:
                self._fired.next(compiling)
                if not compiling:
                    self._note(site, forward, features, changed)
        return (
            changed
            if output is features
            else mapped(output, lambda t: changed if t is features else t)
        )

    def _note(self, site: GatedModule, forward: Forward, features: Tensor, changed: Tensor) -> None:
        """One gate per tensor; and the forward waits for the gradient of what a gate returned."""
        inner = getattr(features, "_gated_by", None)
        if inner is not None:
            refuse("gated twice", module=site.module, inner=inner)
        changed._gated_by = site.module  # type: ignore[attr-defined]
        if changed.requires_grad:
            forward.wait(changed)
        else:
            forward.hidden = True

    def _pass_of(self, site: GatedModule) -> Forward:
        """The model is entered otherwise (``forward_features``): every pass of a gated module is a step."""
        if self._forced is not None:
            return Forward(self, self._steps.now(torch.compiler.is_compiling()), self._images)
        if self._averages:
            refuse("averages", how="in training mode")
        if self.on_first_call is not None and not torch.compiler.is_compiling():
            self.on_first_call = None
            warnings.warn(
                f"the effect of the gates is not checked in a pass through parts of {type(self.model).__name__} "
                "(forward_features, say). Call handle.check(batch), or set check=False.",
                stacklevel=2,
            )
        compiling = torch.compiler.is_compiling()
        self._begin((), {}, None, compiling)
        return Forward(self, self._steps.next(compiling), self._images, module=site.module)

    def _leave(self, args: Any, kwargs: Any, output: Any) -> Any:
        """Also after an exception (out of memory, say) that the loop survives; then without an output."""
        forward = self._forward
        compiling = torch.compiler.is_compiling()
        if forward is None or (not compiling and TRACKER.is_bw):
            return None
        self._forward = forward.outer
        if self._forced is not None or self._measuring or (not compiling and output is None):
            return None
        if forward.outer is not None:  # of a model that calls itself
            for module, count in forward.passes.items():
                forward.outer.passes[module] = forward.outer.passes.get(module, 0) + count
        if self.model.training and len(forward.passes) < len(self.sites):
            silent = next(site for site in self.sites if site.module not in forward.passes)
            self.refuse_silence(silent, silent.module in forward.frozen)
        if forward.passes and not compiling:
            forward.wait(output)
        if self._averages and not self.model.training:
            assert self._monte_carlo is not None
            return self._monte_carlo(self, args, kwargs)
        return None

    def refuse_silence(self, site: GatedModule, frozen: bool = False) -> NoReturn:
        """A gate did not act although the model ran: raise an error with the cause."""
        facts = {"stage": site.stage, "module": site.module}
        if frozen:
            refuse("frozen", **facts)
        if dict(self.model.named_modules()).get(site.module) is not site.reader.chain[0]:
            refuse("replaced", **facts)
        inner = [f" ('{site.module}.{name}')" for name, _ in site.reader.chain[0].named_children()]
        refuse("not called", **facts, inner=inner[-1] if inner else "")

    def _recomputed(self, module: str) -> Forward:
        """The forward that ``module`` is recomputed for, by activation checkpointing; refused where not certain."""
        forward = None if self._backward is None else self._backward()
        waiting = [f for f in self._waiting if f.module in (None, module)]
        if forward is None and len(waiting) == 1 and not waiting[0].hidden:
            forward = waiting[0]
        elif forward is None:
            refuse(
                "which forward",
                module=module,
                found=f"{len(waiting)} forwards wait for their backward pass",
            )
        elif forward.passes.get(module, 0) > 1:
            refuse(
                "which forward",
                module=module,
                found=f"it ran {forward.passes[module]} times in that forward",
            )
        elif module in forward.recomputed and (len(waiting) > 1 or forward.hidden):
            found = f"it is recomputed twice while {len(waiting)} forwards wait (checkpointing inside checkpointing?)"
            refuse("which forward", module=module, found=found)
        forward.recomputed.add(module)
        return forward


@dataclass
class Forced:
    """Gates act in evaluation mode too, with the noise of one numbered draw, on some or all modules."""

    draw: int
    only: set[str] | None
    record: bool
    maps: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Hook:
    """A hook of an attachment. What ``deepcopy``, pickling and ``torch.save`` make of it removes itself.

    Args:
        module: The module it is registered on; None in a copy.
        act: What to do, without the module.
        forced: Whether gates act in evaluation mode too.
        when: ``before`` or ``behind`` the forward of the module; ``always`` behind it, also if it raised.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        act: Callable[..., Any] | None = None,
        forced: Callable[[], bool] = bool,
        when: str = "before",
    ) -> None:
        self.module, self.act, self.forced, self.when = module, act, forced, when
        self.handle: RemovableHandle | None = None
        if module is not None and when == "before":
            self.handle = module.register_forward_pre_hook(self, with_kwargs=True)
        elif module is not None:
            self.handle = module.register_forward_hook(
                self, with_kwargs=True, always_call=when == "always"
            )

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()

    def __call__(self, module: nn.Module, *call: Any) -> Any:
        if self.act is None:
            self.remove()
            return None
        if module is not self.module:
            if self.when == "always" or not (module.training or self.forced()):
                return None
            refuse("shared hooks", model=type(module).__name__)
        return self.act(*call)

    @property
    def __name__(self) -> str:
        """What torch.jit.script asks a hook for first."""
        raise AttributeError(
            "torch.jit.script cannot read the hooks of a gate. Script a copy (copy.deepcopy(model))."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hook":
        plain = Hook()
        plain.handle = copy.deepcopy(
            self.handle, memo
        )  # its dictionary of hooks is the copied one, by the memo
        last = _RemovedAtTheEnd(plain)
        memo[id(last)] = last  # the memo lives as long as the copying
        return plain

    def __reduce__(self) -> tuple[Any, ...]:
        if self.act is not None:
            warnings.warn(
                "a model with a gate is saved as the plain network; attach again after loading.",
                stacklevel=2,
            )
        return Hook, (), {"handle": self.handle}


class _RemovedAtTheEnd:
    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __del__(self) -> None:
        self.hook.remove()


def attach(
    model: nn.Module,
    gate: Gate | Mapping[str, Gate],
    stages: str | Sequence[str] | None = None,
    seed: int = 0,
    rank: int | None = None,
    check: bool = True,
    layout: str | None = None,
    grid: Sequence[int] | None = None,
    example: Any = None,
) -> Attachment:
    """Put ``gate`` on the output of some modules of ``model``. Plain PyTorch; training mode only.

    The contract:

    1. It changes no weight, ``state_dict`` key, mode, random stream or sharding.
    2. Evaluation output is bit-identical; a copy or a saved model is the plain network.
    3. A gate acts if and only if its module is in training mode (for a normalization layer, which may be frozen: its
       parent); ``fired`` counts how often.
    4. A module path is taken literally.
    5. L1 to L4 exist only where the network declares its stages (timm's ``feature_info``) or a dry run proves them.
       L_k is the last place of its resolution.
    6. Proven means: every path from the image to the output crosses the place (a gradient cut), it is not the output
       and not behind the classifier, and its batch axis follows the input's.
    7. Otherwise it raises an error that suggests only modules that were tried and work.
    8. The layout is declared, proven or given; never guessed.
    9. Tokens in front of the grid (class, register tokens) are not changed.
    10. One gate per tensor.
    11. Noise is a function of (seed, rank, unwrapped module path, step, draw); recomputation repeats it.
    12. Resuming needs the handle's state; there is one documented line for each framework
        (:mod:`chaosgate.inject.integrations`).
    13. The first training forward checks, in training mode, that the gate reaches the output; ``check=False`` skips
        this.
    14. Attach before compiling, sharding and creating the optimizer; replace modules before attaching.
    15. Every refusal is an error of chaosgate that states the cause and what to do, never a raw torch error.

    Args:
        model: A network of timm, torchvision or transformers, bare or wrapped; or any module if ``stages`` names its
            modules.
        gate: What to do to the features; or several by stage, ``{"L3": gate_a, "L4": gate_b}``.
        stages: ``"L1"`` to ``"L4"`` (see :func:`resolve_stages`), or paths of modules; None is L4.
        seed: Selects the noise, together with the gate's own seed if it has one: two models with the same seed
            and modules see the same noise. Never touches torch's global stream.
        rank: This process among several; None asks ``torch.distributed``, also if it is initialized later.
        check: Check the effect at the first training forward. Under ``torch.compile`` call ``handle.check(batch)``
            before compiling.
        layout: Layout of the features where it cannot be known: NCHW, NHWC, NLC (tokens), NCL, NCDHW or NDHWC.
        grid: Rows and columns of tokens where they cannot be known; tokens in front of them are not changed.
        example: A batch for the dry run that finds L1 to L4, or the model's arguments as a tuple; None uses noise of
            the image size that the network declares.

    >>> import timm
    >>> from chaosgate import GaussianChaos
    >>> model = timm.create_model("resnet18")
    >>> handle = attach(model, GaussianChaos(log_std=1.0), "L4")
    >>> y = model.train()(torch.randn(2, 3, 64, 64))
    >>> handle.fired
    1
    >>> handle.remove()
    """
    handle = Attachment(
        model, gates_by_stage(gate, stages), seed, rank, check, layout, grid, example
    )
    handle.resumed = RestoreWarning(handle)
    return handle
