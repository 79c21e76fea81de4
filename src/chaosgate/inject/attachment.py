"""Attach gates to a network with hooks: no new module, no new parameter, no new key in the
``state_dict``.

Steps of a forward pass::

    y = model(x)              _enter   a Forward is made: step + 1; the first one is checked
          h = layer4(...)     _gate    h becomes gate(h); Forward.passes counts it
                              _leave   has every gate acted? The graph of y keeps the Forward.
    loss(y).backward()                 the gradient arrives at y: this Forward is the current one
          layer4 is rerun     _gate    activation checkpointing: the same step, so the same noise

    model.forward_features(x)          no _enter: each pass of a gated module is a Forward
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, Self
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import Gate
from chaosgate.gate.base import TRACKER, Counter, rank_of_process, require_fresh_draws
from chaosgate.inject.dryrun import stem_of
from chaosgate.inject.layout import (
    Layout,
    check_layout,
    declared_layout,
    features_of,
    mapped,
    read_layout,
    refuse,
    tensors,
)
from chaosgate.inject.stages import find_sites, unwrapped

if TYPE_CHECKING:
    from chaosgate.inject.effect import SiteReport

NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.RMSNorm),
)
"""Normalization layers. They may be frozen (``bn.eval()``), so a gate on one follows the mode of
its parent.
"""
GATED: "WeakKeyDictionary[nn.Module, ReferenceType[Attachment]]" = WeakKeyDictionary()
"""The attachment of each gated module. Its hooks on the module keep it alive."""


@dataclass(eq=False)
class GatedModule:
    """A module with a gate on its output; ``stage`` is the requested name, ``module`` its path.

    Args:
        target: The module.
        leader: The gate acts if this module is in training mode; a normalization's parent.
        names: Select the noise, together with seed and rank.
        given: Kind and grid of the layout, from the user.
        shown: The layout that is proven or declared.
    """

    stage: str
    module: str
    gate: Gate
    target: nn.Module
    leader: nn.Module
    names: tuple[int | str, ...]
    given: tuple[str | None, tuple[int, ...] | None]
    shown: Layout | None
    layout: Layout | None = None
    read_for: Any = None  # shapes of features and images that the grid of tokens was read for

    def __str__(self) -> str:
        where = self.stage if self.stage == self.module else f"{self.stage} -> {self.module}"
        return f"{where}: {self.gate}"

    def layout_of(self, features: Tensor, images: tuple[int, ...] | None) -> Layout:
        """The layout; for tokens it is read again when their number or the image size changes."""
        layout = self.layout
        if layout is None or (layout.grid and self.read_for != (features.shape, images)):
            if torch.compiler.is_compiling():
                refuse("compiled", module=self.module)
            layout = read_layout(self.module, features.shape, images, self.given, self.shown)
            self.layout, self.read_for = layout, (features.shape, images)
        return layout


@dataclass(eq=False)
class Forward:
    """One forward of the model, or one pass of ``module`` if the model is not called as a whole.

    It is a gradient hook, so the autograd graph of the output keeps it alive.

    Args:
        attachment: The attachment it belongs to.
        step: Number of the forward.
        module: The only gated module; None for all.
        outer: The forward that called this one, if a model calls itself.
        passes: How often a gate acted on each module.
        recomputed: Modules that the running backward pass has recomputed.
        hidden: A gate ran without a graph, as under checkpointing with ``use_reentrant=True``.
    """

    attachment: "Attachment"
    step: Tensor | int
    module: str | None = None
    outer: "Forward | None" = None
    passes: dict[str, int] = field(default_factory=dict)
    recomputed: set[str] = field(default_factory=set)
    hidden: bool = False

    def __call__(self, gradient: Tensor) -> None:
        """The backward pass has reached the outputs of this forward."""
        if self.module is None and self.attachment._backward is not self:
            self.recomputed.clear()
            self.attachment._backward = self


class Hook:
    """A hook on a module; copies by ``deepcopy``, pickling and ``torch.save`` do nothing."""

    def __init__(self, act: Callable[..., Any] | None = None) -> None:
        self.act = act

    def __call__(self, *call: Any) -> Any:
        return None if self.act is None else self.act(*call)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Hook":
        return Hook()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.act is not None:
            warnings.warn("the model is saved without its gates.", stacklevel=2)
        return Hook, ()


class Attachment:
    """Gates on modules of a model, returned by :func:`attach`. As a context manager it removes the
    gates at the end.

    With ``measuring`` the gates act only inside :meth:`forced`, and modules may have other gates.
    """

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
        coupled: bool = False,
        measuring: bool = False,
    ) -> None:
        self.model, self.seed, self.measuring = model, seed, measuring
        self.rank, self._follow_rank = rank or 0, rank is None  # until the first training forward
        given = check_layout(layout, grid)
        kinds = {(getattr(g, "base_size", 0), getattr(g, "channels", 0)) for g in gates.values()}
        ((base, channels), *others) = kinds
        if coupled and (others or not base or channels != "shared"):
            refuse("coupled")
        self.sites = []
        for stage, (path, shown) in find_sites(model, list(gates), example).items():
            around = [path.rsplit(".", n)[0] for n in range(path.count(".") + 1)]
            chain = [model.get_submodule(name) for name in (*around, "")]
            leader = chain[isinstance(chain[0], NORMS) and len(chain) > 1]
            own = () if gates[stage].seed is None else ("seed", gates[stage].seed)
            names = ("coupled" if coupled else unwrapped(path), *own)
            shown = shown or declared_layout(chain)
            site = GatedModule(stage, path, gates[stage], chain[0], leader, names, given, shown)
            self.sites.append(site)
        self._set_keys()
        self._steps, self._fired = Counter(), Counter()
        self._forward: Forward | None = None
        self._images: tuple[int, ...] | None = None
        self._forced: tuple[int, set[str] | None, dict[str, Any] | None] | None = None
        self._waiting: WeakSet[Forward] = WeakSet()  # forwards whose graphs are alive
        self._backward: Forward | None = None  # whose outputs got a gradient last
        self._average: Callable[..., Tensor] | None = None  # of Monte Carlo prediction
        self._factors: dict[Gate, Tensor | None] = {}
        self.strength = 1.0
        """Factor on the nominal strength, from :meth:`set_strength`."""
        self.on_first_call: Callable[..., object] | None = self._check if check else None
        """Called with the arguments of the first training forward; again with the next if it
        raises.
        """
        self.resumed: RestoreWarning | None = None
        for site in () if measuring else self.sites:
            if handle := GATED.get(site.target):
                refuse("already gated", module=site.module, handle=handle())
        GATED.update({site.target: ref(self) for site in self.sites if not measuring})
        before: list[tuple[nn.Module, Callable[..., None]]] = [(model, self._enter)]
        maps = [s.shown is not None and s.shown.kind != "NLC" for s in self.sites]
        if (stem := stem_of(model)) is not None and not all(maps):
            before.append((stem, self._see_images))
        self._hooks: list[Any] = [
            *(m.register_forward_pre_hook(Hook(act), with_kwargs=True) for m, act in before),
            *(s.target.register_forward_hook(Hook(partial(self._gate, s))) for s in self.sites),
            model.register_forward_hook(Hook(self._leave), with_kwargs=True, always_call=True),
        ]

    # -- what a user sees ------------------------------------------------------------------------

    @classmethod
    def on(cls, model: nn.Module) -> list["Attachment"]:
        """The attachments on ``model``, for when a handle is lost."""
        found = (GATED[module]() for module in model.modules() if module in GATED)
        return list(dict.fromkeys(attachment for attachment in found if attachment is not None))

    @property
    def gates(self) -> dict[str, Gate]:
        return {site.stage: site.gate for site in self.sites}

    @property
    def fired(self) -> int:
        """How often a gate acted in training mode; 0 after training means no noise."""
        return self._fired.value

    @property
    def step(self) -> int:
        """Training forwards of the model, or of gated modules if only parts are called."""
        return self._steps.value

    def check(self, *args: Any, **kwargs: Any) -> "list[SiteReport]":
        """Run the model with gates off and on; raise an error if one does not reach the output.

        Weights, running statistics, the step and random streams do not change. The check also
        fills all caches, which ``torch.compile(fullgraph=True)`` needs.
        """
        from chaosgate.inject.effect import measure

        self._require_attached()
        self._begin(compiling=False)
        reports = measure(self, args, kwargs)
        self._check(*args, **kwargs)
        self.on_first_call = None
        return reports

    def set_strength(self, factor: float) -> None:
        """Scale the nominal strength (``log_std``, ``p``, ``sigma``); :meth:`remove` undoes it.

        1 is the full strength. At 0 the features are bit-identical to those without a gate.
        """
        if not 0 <= factor <= 1:
            refuse("factor", factor=factor)
        self._require_attached()
        self.strength = float(factor)
        if not self._factors:
            self._factors = {gate: gate.factor for gate in self.gates.values()}
            device = next(self.model.parameters(), torch.empty(0)).device
            with torch.inference_mode(False):  # what is made in that mode cannot be set outside
                for gate in self._factors:
                    gate.factor = torch.ones((), device=device)
        for gate in self._factors:
            gate.factor.fill_(factor)  # type: ignore[union-attr]

    @contextmanager
    def monte_carlo(self, draws: int, step: int = 0) -> Iterator[Self]:
        r"""Context in which evaluation returns :math:`\log\frac1D\sum_d p_d` over D gated passes.

        The model must return logits (B, K) or (B, K, ...). The first batch uses draws 1 to D, the
        next D + 1 to 2 D. Another ``step`` selects other noise.
        """
        self._require_attached()
        if draws < 1:
            raise ValueError(f"Monte Carlo prediction needs at least one draw; got {draws}.")
        numbers = count(1)

        def average(args: Any, kwargs: Any) -> Tensor:
            log_p = []
            for _ in range(draws):
                with self.forced(next(numbers)):
                    logits = self.model(*args, **kwargs)
                if not isinstance(logits, Tensor) or logits.ndim < 2:
                    refuse("no logits", output=type(logits).__name__)
                log_p.append(logits.float().log_softmax(1))
            return torch.logsumexp(torch.stack(log_p), 0) - math.log(draws)

        kept, self._average = self.step, average
        self._steps.value = step
        try:
            yield self
            if next(numbers) == 1:
                refuse("averages")
        finally:
            self._average = None
            self._steps.value = kept

    @contextmanager
    def forced(
        self, draw: int, only: set[str] | None = None, record: bool = False
    ) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
        """Context in which gates, all or ``only`` some, also act in evaluation mode, with one draw.

        Yields a dict; ``record`` fills it with the map (B, C, *grid) before and after each gate,
        by module path.
        """
        self._require_attached()
        maps: dict[str, tuple[Tensor, Tensor]] = {}
        previous, self._forced = self._forced, (draw, only, maps if record else None)
        try:
            yield maps
        finally:
            self._forced = previous

    def state_dict(self) -> dict[str, float]:
        """The counters, and the strength if it was set, as plain numbers."""
        strength = {"strength": self.strength} if self._factors else {}
        return {"step": self.step, "fired": self.fired, **strength}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._steps.value, self._fired.value = int(state["step"]), int(state["fired"])
        if "strength" in state:
            self.set_strength(state["strength"])
        if self.resumed is not None:
            self.resumed.done = True

    def remove(self) -> None:
        """Remove the gates from the model and restore their strength."""
        for hook in self._hooks:
            hook.remove()
        for site in self.sites if self._hooks and not self.measuring else ():
            GATED.pop(site.target, None)
        for gate, factor in self._factors.items():
            gate.factor = factor
        self._hooks, self._factors = [], {}

    def __enter__(self) -> Self:
        self._require_attached()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __getstate__(self) -> dict[str, Any]:
        refuse("copied")

    def __repr__(self) -> str:
        return f"Attachment({', '.join(map(str, self.sites))})"

    # -- what the hooks do -----------------------------------------------------------------------

    def _require_attached(self) -> None:
        if not self._hooks:
            refuse("removed")

    def _check(self, *args: Any, **kwargs: Any) -> None:
        from chaosgate.inject.effect import require_effect

        require_effect(self, args, kwargs)

    def _set_keys(self) -> None:
        self._keys = {s.module: fold(self.seed, self.rank, *s.names) for s in self.sites}

    def _begin(self, compiling: bool) -> None:
        """Before a training forward: the rank may be known now, and no backward pass is running."""
        self._backward = None
        if self._follow_rank and not compiling:
            self._follow_rank, self.rank = False, rank_of_process()
            self._set_keys()

    def _other(self, module: nn.Module) -> None:
        """The hooks of the model are called on another one: refused, unless it is plain here."""
        if module.training or self._forced or self._average:
            refuse("shared hooks", model=type(module).__name__)

    def _enter(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if model is not self.model:
            return self._other(model)
        compiling = torch.compiler.is_compiling()
        if not compiling and TRACKER.is_bw:  # the whole model is recomputed
            return None
        step: Tensor | int = self._steps.now(compiling)
        if self._forced is None and True in [site.leader.training for site in self.sites]:
            if self._average is not None:
                refuse("averages")
            self._begin(compiling)
            if self.on_first_call is not None and not compiling:
                self.on_first_call(*args, **kwargs)
                self.on_first_call = None
            step = self._steps.next(compiling)
        self._forward = Forward(self, step, outer=self._forward)
        return None

    def _see_images(self, stem: nn.Module, args: Any, kwargs: Any) -> None:
        """The input of the first convolution is the image, whatever the model was called with."""
        if args and not TRACKER.is_bw:
            self._images = tuple(args[0].shape)

    def _gate(self, site: GatedModule, module: nn.Module, args: Any, output: Any) -> Any:
        if module is not site.target:
            return self._other(module)
        draw, only, maps = self._forced or (0, None, None)
        forward, compiling = self._forward, torch.compiler.is_compiling()
        if self._forced is None:
            if self._average is not None and forward is None:
                refuse("averages")
            if self.measuring or not site.leader.training:
                return None
        elif only is not None and site.module not in only:
            return None
        again = self._forced is None and not compiling and TRACKER.is_bw
        if again:
            forward = self._recomputed(site.module)
        elif forward is None:  # entered otherwise: every pass of a gated module is a step
            self._begin(compiling)
            count = self._steps.now if self._forced else self._steps.next
            forward = Forward(self, count(compiling), site.module)
        features = output if isinstance(output, Tensor) else features_of(site.module, output)
        layout = site.layout_of(features, self._images)
        h = perturbed = layout.to_map(features)
        require_fresh_draws(features)
        number = 0 if again else forward.passes.get(site.module, 0)
        key = self._keys[site.module]
        if number:  # a module that runs twice in a forward gets two gates
            key = fold(self.seed, self.rank, *site.names, number)
        if self._forced is not None or self.strength > 0:
            step = self._steps.tensor if compiling else forward.step
            noise = Noise(advance(advance(key, step), draw), h.device)
            perturbed = site.gate.perturb(h, noise)
        if maps is not None:
            maps[site.module] = (h.detach(), perturbed.detach())
        changed = layout.from_map(perturbed, features)
        if not again:
            forward.passes[site.module] = number + 1
            if self._forced is None:
                self._fired.next(compiling)
                if not compiling:
                    self._note(site, forward, features, changed)
        if output is features:
            return changed
        return mapped(output, lambda t: changed if t is features else t)

    def _note(self, site: GatedModule, forward: Forward, features: Tensor, changed: Tensor) -> None:
        """One gate per tensor; and the graph of what a gate returned keeps the forward."""
        if (inner := getattr(features, "_gated_by", None)) is not None:
            refuse("gated twice", module=site.module, inner=inner)
        changed._gated_by = site.module  # type: ignore[attr-defined]
        if changed.grad_fn is None:
            forward.hidden = True
        else:
            changed.grad_fn.metadata[self] = forward  # type: ignore[index]
            self._waiting.add(forward)

    def _leave(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Also after an exception (out of memory, say) that the loop survives; then without an
        output.
        """
        forward, compiling = self._forward, torch.compiler.is_compiling()
        if forward is None or model is not self.model or (not compiling and TRACKER.is_bw):
            return None
        self._forward = forward.outer
        if self._forced is not None or self.measuring:
            return None
        if not compiling and output is None:  # a compiler would look into what it is compared with
            return None
        if forward.outer is not None:
            for module, passes in forward.passes.items():
                forward.outer.passes[module] = forward.outer.passes.get(module, 0) + passes
        if self.model.training and len(forward.passes) < len(self.sites):
            self.refuse_silence(next(s for s in self.sites if s.module not in forward.passes))
        if forward.passes and not compiling:
            for tensor in (output,) if isinstance(output, Tensor) else tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(forward)  # type: ignore[no-untyped-call]
                    if forward.hidden:
                        self._waiting.add(forward)
        if self._average is not None and not self.model.training:
            return self._average(args, kwargs)
        return None

    def refuse_silence(self, site: GatedModule) -> NoReturn:
        """A gate did not act although the model ran: raise an error with the cause."""
        facts = {"stage": site.stage, "module": site.module}
        if dict(self.model.named_modules()).get(site.module) is not site.target:
            refuse("replaced", **facts)
        if not site.leader.training and not self._forced:
            refuse("frozen", **facts)
        inner = [f" ('{site.module}.{name}')" for name, _ in site.target.named_children()]
        refuse("not called", **facts, inner=inner[-1] if inner else "")

    def _recomputed(self, module: str) -> Forward:
        """The forward that ``module`` is recomputed for, by checkpointing; refused where not
        certain.
        """
        forward, waiting = self._backward, [f for f in self._waiting if f.module in (None, module)]
        if forward is None and len(waiting) == 1 and not waiting[0].hidden:
            forward = waiting[0]
        several = len(waiting) > 1 or (forward is not None and forward.hidden)
        if (
            forward is None
            or forward.passes.get(module, 0) > 1
            or (module in forward.recomputed and several)
        ):
            refuse("which forward", module=module, waiting=len(waiting))
        forward.recomputed.add(module)
        return forward


def gates_by_stage(
    gate: Gate | Mapping[str, Gate], stages: str | Sequence[str] | None
) -> dict[str, Gate]:
    """One gate for each stage, from one gate for all or from a dict."""
    names = ["L4"] if stages is None else [stages] if isinstance(stages, str) else list(stages)
    if isinstance(gate, Mapping):
        gates, valid = dict(gate), stages is None and len(gate) > 0
    else:
        gates = dict.fromkeys(names, gate)
        valid = 0 < len(gates) == len(names)
    if not valid:
        refuse("stages", stages=stages)
    for stage, found in gates.items():
        if not isinstance(found, Gate):
            refuse("no gate", stage=stage, kind=type(found).__name__)
    return gates


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
    coupled: bool = False,
) -> Attachment:
    """Put ``gate`` on the output of modules of ``model``; it acts in training mode only.

    Guarantees:

    1. It changes no weight, ``state_dict`` key, mode, random stream or sharding.
    2. In evaluation mode the output is bit-identical to that of the network without gates; a
       copied or saved model has no gates.
    3. A gate acts if and only if its module is in training mode (for a normalization layer, which
       may be frozen: its parent); ``fired`` counts how often.
    4. A module path selects exactly that module.
    5. L1 to L4 exist only where the network declares its stages (timm's ``feature_info``) or a dry
       run proves them. L_k is the last module at its resolution.
    6. A stage is proven if every path from the image to the output passes through the module
       (blocking the gradient there blocks it everywhere), the module is neither the output nor
       behind the classifier, and its batch axis follows the input's.
    7. Otherwise ``attach`` raises an error that suggests only modules where a gate works.
    8. The layout is declared, proven or given; never guessed.
    9. Tokens in front of the grid (class, register tokens) are not changed.
    10. One gate per tensor.
    11. Noise is a function of (seed, rank, unwrapped module path, step, draw); recomputation
        repeats it.
    12. Resuming needs the handle's state; :mod:`chaosgate.inject.integrations` shows the line for
        each framework.
    13. The first training forward of the model checks that the gate changes the output in training
        mode; ``check=False`` skips this.
    14. Attach before compiling, sharding and creating the optimizer; replace modules before
        attaching.
    15. Every failure raises a ``ChaosgateError`` that states the cause and what to do.

    Args:
        model: A network of timm, torchvision or transformers, bare or wrapped; or any module if
            ``stages`` names its modules.
        gate: The perturbation; or one per stage, ``{"L3": gate_a, "L4": gate_b}``.
        stages: ``"L1"`` to ``"L4"`` (see :func:`resolve_stages`), or paths of modules; None is L4.
        seed: Selects the noise, together with the gate's own seed if it has one: two models with
            the same seed and modules get the same noise. torch's global generator is not used.
        rank: Rank of this process; None takes it from ``torch.distributed``, even if that is
            initialized later.
        check: Check the effect at the first training forward. With ``torch.compile``, call
            ``handle.check(batch)`` before compiling.
        layout: Layout of the features if it cannot be determined: NCHW, NHWC, NLC (tokens), NCL,
            NCDHW or NDHWC.
        grid: Rows and columns of tokens if they cannot be determined; tokens in front of the grid
            are not changed.
        example: A batch for the dry run that finds L1 to L4 and layouts, or the model's arguments
            as a tuple; None uses noise of the image size that the network declares.
        coupled: All stages share one latent field per forward, which each resizes to its own grid.
            Their gates need the same ``base_size``.

    >>> import timm
    >>> from chaosgate import GaussianChaos
    >>> model = timm.create_model("resnet18")
    >>> handle = attach(model, GaussianChaos(log_std=1.0), "L4")
    >>> y = model.train()(torch.randn(2, 3, 64, 64))
    >>> handle.fired
    1
    >>> handle.remove()
    """
    gates = gates_by_stage(gate, stages)
    handle = Attachment(model, gates, seed, rank, check, layout, grid, example, coupled=coupled)
    handle.resumed = RestoreWarning(model)
    handle._hooks.append(handle.resumed)
    return handle


class RestoreWarning:
    """Warns if an optimizer of this model resumes a training without the counters of the gates."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self.done = ref(model), False
        self.remove = register_optimizer_step_pre_hook(self).remove

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.done or (model := self._model()) is None:
            return
        known = set(model.parameters())
        mine = [p for group in optimizer.param_groups for p in group["params"] if p in known]
        self.done = bool(mine)
        if any(optimizer.state.get(p) for p in mine):
            warnings.warn(
                "the optimizer resumes a training, but the counters of the gates were not "
                "restored: the noise starts at step 0. See chaosgate.inject.integrations.",
                stacklevel=2,
            )
