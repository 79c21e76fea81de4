"""Attach gates to a network with hooks: no new module, no new parameter, no new key in the ``state_dict``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor, nn

from chaosgate.field.white import Noise, advance
from chaosgate.gate import Gate
from chaosgate.gate.base import DRAWING, in_backward, rank_of_process, require_fresh_draws
from chaosgate.inject.calls import Call, replaced, tensors
from chaosgate.inject.effect import SiteReport, check_effect, require_all_fired, require_heard, warn_unchecked
from chaosgate.inject.hooks import GATED, Entry, Hook, Site, occupy
from chaosgate.inject.layout import Place, require_layout
from chaosgate.inject.modes import Forced, MonteCarlo, require_no_averaging
from chaosgate.inject.recomputation import PendingForwards
from chaosgate.inject.stages import gates_by_stage, resolve_sites


class Attachment:
    """Gates on some stages of a model, until :meth:`remove`. Made by :func:`attach`; also a context manager.

    A gate acts when the module it sits on is in training mode. The noise of a training forward is a pure function of
    (seed, rank, site, micro-step). The micro-step advances when the whole model is entered, or, if the model is
    entered otherwise (``model.forward_features``), with every pass of a site; a stage that activation checkpointing
    runs again sees the same gate.
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
        measuring: bool = False,
    ) -> None:
        sides = require_layout(layout, grid)
        self.model = model
        device = next(model.parameters(), torch.empty(0)).device
        self._follow_rank, self._rank = rank is None, rank_of_process() if rank is None else rank
        self.sites = [
            Site.on(gates[asked], asked, Place.of(model, module, layout, sides), (seed, self._rank), device)
            for asked, module in resolve_sites(model, list(gates)).items()
        ]
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._fired = torch.zeros((), dtype=torch.int64, device=device)
        self._forced: Forced | None = None
        self._measuring, self._entry = measuring, Entry(self.sites)
        self._pending = PendingForwards()
        self.on_first_call: Callable[[Call], object] | None = None
        """Called with the first training forward, before it; again with the next one if it raises."""
        self._monte_carlo: MonteCarlo | None = None
        self._dials: dict[Gate, Tensor | None] = {}
        self._hooks: list[Hook] = []
        if check:
            self.on_first_call = lambda call: self.check(*call.args, **call.kwargs)
        if not measuring:
            occupy(self)
        self._register()

    # -- what a user sees ------------------------------------------------------------------------------------------

    @classmethod
    def on(cls, model: nn.Module) -> list["Attachment"]:
        """The attachments on ``model``, for those who have lost their handles."""
        found = (GATED[module]() for module in model.modules() if module in GATED)
        return list(dict.fromkeys(attachment for attachment in found if attachment is not None))

    @property
    def gates(self) -> dict[str, Gate]:
        return {site.asked: site.gate for site in self.sites}

    @property
    def fired(self) -> int:
        """How often a gate acted on features in training mode; 0 after training means that there was no noise."""
        return int(self._fired)

    @property
    def step(self) -> int:
        """Micro-steps so far: training forwards of the whole model, or passes of a site entered otherwise."""
        return int(self._step)

    @property
    def uncertainty(self) -> dict[str, Tensor]:
        """Of the last Monte Carlo forward: predictive ``entropy`` and ``mutual_information`` per prediction."""
        return self._monte_carlo.uncertainty if self._monte_carlo is not None else {}

    def check(self, *args: Any, **kwargs: Any) -> list[SiteReport]:
        """Run the model on these arguments with the gates off and on; refuse a site from which nothing arrives.

        Leaves weights, running statistics, the micro-step and every random stream as they were. Also fills all caches,
        which ``torch.compile(fullgraph=True)`` wants to find full. A refusal stands until a check passes.
        """
        self._require_attached()
        reports = check_effect(self, Call(args, kwargs))
        self.on_first_call = None
        return reports

    def set_dial(self, factor: float) -> None:
        """Scale the nominal strength; 0 is no noise, 1 the full strength. For schedules; :meth:`remove` undoes it."""
        if not 0 <= factor <= 1:
            raise ValueError(
                f"set_dial takes a factor from 0 (no noise) to 1 (full strength); got {factor!r}. For stronger noise "
                "make a stronger gate."
            )
        self._require_attached()
        for gate in dict.fromkeys(self.gates.values()):
            self._dials.setdefault(gate, gate.dial)
            if gate.dial is None or gate.dial is self._dials[gate]:
                with torch.inference_mode(False):  # what is made in that mode cannot be set outside
                    gate.dial = torch.ones((), device=self._step.device)
            gate.dial.fill_(factor)

    @contextmanager
    def monte_carlo(self, draws: int, step: int = 0, class_axis: int | None = None) -> Iterator[Self]:
        """In here an evaluation forward returns the log of the mean probabilities of ``draws`` gated passes.

        ``step`` tells batches apart. ``class_axis`` is the axis of the classes in outputs other than (B, K), e.g. 1 for
        a segmentation map (B, K, H, W). :attr:`uncertainty` holds, per prediction of the last batch, the predictive
        ``entropy`` and the ``mutual_information`` between prediction and gate.
        """
        self._require_attached()
        kept = int(self._step)
        self._monte_carlo = MonteCarlo(draws, class_axis)
        self._step.fill_(step)
        try:
            yield self
        finally:
            self._monte_carlo.active = False
            self._step.fill_(kept)

    def state_dict(self) -> dict[str, int]:
        """The counters, as plain integers."""
        return {"step": self.step, "fired": self.fired}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._step.fill_(int(state["step"]))
        self._fired.fill_(int(state["fired"]))

    def remove(self) -> None:
        """Take the gates off; model and gates are as they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for site in self.sites:
            if not self._measuring:
                GATED.pop(site.place.chain[0], None)
        for gate, dial in self._dials.items():
            gate.dial = dial
        self._dials = {}

    def __enter__(self) -> Self:
        self._require_attached()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "an attachment belongs to its model object and cannot be copied or saved. Save handle.state_dict(), and "
            "attach again to the copy. If the handle is an attribute of the model, keep it elsewhere: "
            "chaosgate.Attachment.on(model) finds it."
        )

    def __repr__(self) -> str:
        return f"Attachment({', '.join(map(str, self.sites))})"

    def _require_attached(self) -> None:
        if not self._hooks:
            raise RuntimeError("this attachment was removed from its model; attach the gates again.")

    # -- what the hooks do -----------------------------------------------------------------------------------------

    @contextmanager
    def forced(self, draw: int, only: set[str] | None = None, record: bool = False) -> Iterator[None]:
        """In here gates act in evaluation mode too, with the noise of one numbered draw, on some or all sites."""
        self._require_attached()
        previous = self._forced
        self._forced = Forced(draw, None if only is None else frozenset(only), record)
        try:
            yield
        finally:
            self._forced = previous

    def _register(self) -> None:
        hook = partial(Hook, forced=lambda: bool(self._forced or (self._monte_carlo and self._monte_carlo.active)))
        self._hooks.append(hook(self.model, self._enter).before())
        for site in self.sites:
            self._hooks.append(hook(site.place.chain[0], self._acting_on(site)).behind())
        self._hooks.append(hook(self.model, self._leave).behind())
        self._hooks.append(hook(self.model, self._entry.end).behind(always=True))
        stem = next((m for m in self.model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
        if stem is not None:
            self._hooks.append(hook(stem, self._begin).before())

    def _begin(self, args: Any, kwargs: Any) -> None:
        """The first convolution of the network runs."""
        if not args or in_backward():
            return
        self._entry.see(args[0])
        if not self._entry.running and self.model.training and self._forced is None and not self._measuring:
            require_heard(self)

    def _enter(self, args: Any, kwargs: Any) -> None:
        if in_backward():  # the whole model is recomputed
            return
        training = self._forced is None and any(site.place.chain[0].training for site in self.sites)
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim >= 3]
        self._entry.begin(tuple(given[0].shape) if given else None, training)
        if not training:
            return
        require_no_averaging(self._monte_carlo, "in training mode")
        self._see_rank()
        if not torch.compiler.is_compiling():
            require_fresh_draws(*given, *islice(self.model.parameters(), 1))
            if self.on_first_call is not None:
                self.on_first_call(Call(args, kwargs))
                self.on_first_call = None
        self._step.add_(1)

    def _see_rank(self) -> None:
        """Gates may be attached before ``torch.distributed`` is initialised."""
        if self._follow_rank and (rank := rank_of_process()) != self._rank:
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    "the gates were attached before init_process_group. Attach them after it, or give attach the rank."
                )
            self._rank = rank
            for site in self.sites:
                site.rekey(rank)

    def _acting_on(self, site: Site) -> Callable[..., Any]:
        def act(args: Any, kwargs: Any, output: Any) -> Any:
            if self._forced is None:
                if self._measuring or not site.place.chain[0].training:
                    site.skipped = True
                    if not self._measuring and not self._entry.running:
                        require_no_averaging(self._monte_carlo, "in parts")
                    return None
            elif self._forced.only is not None and site.module not in self._forced.only:
                return None
            return self._perturbed(site, output)

        return act

    def _perturbed(self, site: Site, output: Any) -> Any:
        features = output if isinstance(output, Tensor) else site.place.features(output)
        again = self._pending.recomputed(site.module) if self._forced is None and in_backward() else None
        layout = self._entry.layout(site, output, self._entry.images if again is None else again.images)
        h = layout.to_map(features)
        if self._step.device != h.device:
            self._move(h.device)
        require_fresh_draws(features)
        step, key = (self._advanced(), site.key()) if again is None else (again.step, site.keys[0])
        draw = 0 if self._forced is None else self._forced.draw
        perturbed = site.gate.perturb(h, Noise(advance(advance(key, step), draw)))
        if self._forced is not None and self._forced.record:
            site.before, site.after = h.detach(), perturbed.detach()
        changed = layout.from_map(perturbed, features)
        if again is None and self._entry.running:
            site.passes += 1
        if again is None and self._forced is None:
            self._fired.add_(1)
            site.silent = 0
            if not torch.compiler.is_compiling():
                if not self._entry.running:
                    self._pending.add([changed], step, self._entry.images, {site.module: 1}, site=site.module)
                elif changed.requires_grad:
                    self._entry.gated.append(changed)
        return changed if output is features else replaced(output, features, changed)

    def _advanced(self) -> Tensor:
        """The micro-step; where the model is not entered as a whole, every pass of a site is one."""
        if self._forced is not None or self._entry.running:
            return self._step
        require_no_averaging(self._monte_carlo, "in training mode")
        self._see_rank()
        if torch.compiler.is_compiling():
            return self._step.add_(1)
        if self.on_first_call is not None:
            self.on_first_call = None
            warn_unchecked(self)
        with DRAWING:
            return self._step.add_(1).clone()

    def _leave(self, args: Any, kwargs: Any, output: Any) -> Any:
        if self._forced is not None or self._measuring or in_backward():
            return None
        passes = {site.module: site.passes for site in self.sites}
        if self.model.training:
            require_all_fired(self, passes)
        if any(passes.values()) and not torch.compiler.is_compiling():
            self._pending.add(tensors(output), self._step, self._entry.images, passes, self._entry.gated)
            self._entry.gated.clear()
        if self._monte_carlo is not None and self._monte_carlo.active and not self.model.training:
            return self._monte_carlo(self, Call(args, kwargs))
        return None

    def _move(self, device: torch.device) -> None:
        self._step, self._fired = self._step.to(device), self._fired.to(device)
        for site in self.sites:
            site.keys = [key.to(device) for key in site.keys]
        for gate in self.gates.values():
            if gate.dial is not None:
                gate.dial = gate.dial.to(device)


def attach(
    model: nn.Module,
    gate: Gate | Mapping[str, Gate],
    stages: str | Sequence[str] | None = None,
    seed: int = 0,
    rank: int | None = None,
    check: bool = True,
    layout: str | None = None,
    grid: Sequence[int] | None = None,
) -> Attachment:
    """Put ``gate`` on the output of some stages of ``model``. Plain PyTorch; training mode only.

    Args:
        model: A network of timm, torchvision or Hugging Face transformers, bare, wrapped or compiled; or any module if
            ``stages`` names its modules.
        gate: What to do to the features; or several by stage, ``{"L3": gate_a, "L4": gate_b}``.
        stages: ``"L1"`` to ``"L4"`` (see :func:`resolve_stages`), or names of modules; L4 if nothing is said.
        seed: Selects the noise, together with a seed of the gate's own if it has one: two models with the same seed
            and sites see the same noise. Never touches torch's global stream.
        rank: This process among several; None asks ``torch.distributed``, also if it is initialised later.
        check: At the first training forward, run the batch with the gate off and on, and refuse a gate that the network
            normalises away. Under ``torch.compile`` call ``handle.check(batch)`` yourself before compiling.
        layout: Layout of the features where it cannot be known: NCHW, NHWC, NLC (tokens), NCL, NCDHW or NDHWC.
        grid: Rows and columns of tokens where they cannot be known; tokens in front of them are left alone.

    >>> import timm
    >>> from chaosgate import GaussianChaos
    >>> model = timm.create_model("resnet18")
    >>> handle = attach(model, GaussianChaos(log_std=1.0), "L4")
    >>> y = model.train()(torch.randn(2, 3, 64, 64))
    >>> handle.fired
    1
    >>> handle.remove()
    """
    return Attachment(model, gates_by_stage(gate, stages), seed, rank, check, layout, grid)
