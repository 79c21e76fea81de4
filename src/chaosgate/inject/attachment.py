"""Attach gates to a network with hooks: no new module, no new parameter, no new key in the ``state_dict``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from chaosgate.field.white import Noise, advance
from chaosgate.gate import Gate
from chaosgate.gate.base import in_backward, rank_of_process
from chaosgate.inject.calls import Call, replaced, tensors
from chaosgate.inject.effect import SiteReport, check_effect, require_all_fired
from chaosgate.inject.hooks import GATED, Hook, Site
from chaosgate.inject.layout import Place, require_layout
from chaosgate.inject.modes import Forced, MonteCarlo
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
        rank: int = 0,
        check: bool = False,
        layout: str | None = None,
        grid: Sequence[int] | None = None,
        measuring: bool = False,
    ) -> None:
        sides = require_layout(layout, grid)
        self.model = model
        device = next(model.parameters(), torch.empty(0)).device
        self.sites = [
            Site.on(gates[asked], asked, Place.of(model, module, layout, sides), (seed, rank), device)
            for asked, module in resolve_sites(model, list(gates)).items()
        ]
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._fired = torch.zeros((), dtype=torch.int64, device=device)
        self._forced: Forced | None = None
        self._measuring = measuring
        self._inside = False
        self._image: tuple[int, ...] | None = None
        self._pending = PendingForwards()
        self.on_first_call: Callable[[Call], object] | None = self._check_call if check else None
        """Called with the first training forward, before it; again with the next one if it raises."""
        self._monte_carlo: MonteCarlo | None = None
        self._dials: dict[Gate, Tensor | None] = {}
        self._hooks: list[Hook] = []
        if not measuring:
            self._occupy()
        self._register()

    # -- what a user sees ------------------------------------------------------------------------------------------

    @classmethod
    def on(cls, model: nn.Module) -> list["Attachment"]:
        """The attachments on ``model``, for those who have lost their handles."""
        return list(dict.fromkeys(GATED[module] for module in model.modules() if module in GATED))

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
        for gate in dict.fromkeys(self.gates.values()):
            self._dials.setdefault(gate, gate.dial)
            if gate.dial is None or gate.dial is self._dials[gate]:
                gate.dial = torch.ones((), device=self._step.device)
            gate.dial.fill_(factor)

    @contextmanager
    def monte_carlo(self, draws: int, step: int = 0, class_axis: int | None = None) -> Iterator[Self]:
        """In here an evaluation forward returns the log of the mean probabilities of ``draws`` gated passes.

        ``step`` tells batches apart. ``class_axis`` is the axis of the classes in outputs other than (B, K), e.g. 1 for
        a segmentation map (B, K, H, W). :attr:`uncertainty` holds, per prediction of the last batch, the predictive
        ``entropy`` and the ``mutual_information`` between prediction and gate.
        """
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
        """Continue from saved counters."""
        self._step.fill_(int(state["step"]))
        self._fired.fill_(int(state["fired"]))

    def remove(self) -> None:
        """Take the gates off; model and gates are as they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for site in self.sites:
            if GATED.get(site.place.chain[0]) is self:
                del GATED[site.place.chain[0]]
        for gate, dial in self._dials.items():
            gate.dial = dial
        self._dials = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "an attachment belongs to its model object and cannot be copied or saved. Save handle.state_dict(), and "
            "attach anew to the copy."
        )

    def __repr__(self) -> str:
        at = ", ".join(
            f"{s.asked if s.asked == s.module else f'{s.asked} -> {s.module}'}: {s.gate}" for s in self.sites
        )
        return f"Attachment({at})"

    def _check_call(self, call: Call) -> None:
        self.check(*call.args, **call.kwargs)

    # -- what the hooks do -----------------------------------------------------------------------------------------

    @contextmanager
    def forced(self, draw: int, only: set[str] | None = None, record: bool = False) -> Iterator[None]:
        """In here gates act in evaluation mode too, with the noise of one numbered draw, on some or all sites."""
        previous = self._forced
        self._forced = Forced(draw, None if only is None else frozenset(only), record)
        try:
            yield
        finally:
            self._forced = previous

    def _occupy(self) -> None:
        for site in self.sites:
            module = site.place.chain[0]
            if module in GATED:
                raise ValueError(
                    f"'{site.module}' already has a gate, by {GATED[module]!r}. Two gates at one place would be one of "
                    "another strength. Call remove() on the first handle (chaosgate.Attachment.on(model) finds it)."
                )
        for site in self.sites:
            GATED[site.place.chain[0]] = self

    def _register(self) -> None:
        self._hooks.append(Hook(self.model, self._enter).before())
        for site in self.sites:
            self._hooks.append(Hook(site.place.chain[0], self._acting_on(site)).behind())
        self._hooks.append(Hook(self.model, self._leave).behind())
        self._hooks.append(Hook(self.model, self._left).behind(always=True))
        stem = next((m for m in self.model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
        if stem is not None:
            self._hooks.append(Hook(stem, self._see_image).before())

    def _see_image(self, args: Any, kwargs: Any) -> None:
        """Remember the size of the input where the model is not entered as a whole."""
        if not self._inside and args:
            self._image = tuple(args[0].shape[2:])

    def _enter(self, args: Any, kwargs: Any) -> None:
        if in_backward():  # the whole model is recomputed
            return
        training = self._forced is None and any(site.place.chain[0].training for site in self.sites)
        if training and self.on_first_call is not None and not torch.compiler.is_compiling():
            self.on_first_call(Call(args, kwargs))
            self.on_first_call = None
        for site in self.sites:
            site.passes, site.skipped = 0, False
        self._inside = True
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim >= 3]
        self._image = tuple(given[0].shape[2:]) if given else None
        if training:
            self._step.add_(1)

    def _acting_on(self, site: Site) -> Callable[..., Any]:
        def act(args: Any, kwargs: Any, output: Any) -> Any:
            if self._forced is None:
                if self._measuring or not site.place.chain[0].training:
                    site.skipped = True
                    return None
            elif self._forced.only is not None and site.module not in self._forced.only:
                return None
            return self._perturbed(site, output)

        return act

    def _perturbed(self, site: Site, output: Any) -> Any:
        features = output if isinstance(output, Tensor) else site.place.features(output)
        again = self._pending.recomputed(site.module) if self._forced is None and in_backward() else None
        if site.layout is None and torch.compiler.is_compiling():
            raise RuntimeError(
                f"the layout at '{site.module}' is read from real features, which a compiler does not have. Call "
                "handle.check(batch) before the compiled model runs."
            )
        if site.layout is None or site.layout.kind == "NLC":
            site.layout = site.place.read(output, self._image if again is None else again.image)
        h = site.layout.to_map(features)
        if self._step.device != h.device:
            self._move(h.device)
        perturbed = site.gate.perturb(h, self._noise(site) if again is None else _training_noise(site, again.step))
        if self._forced is not None and self._forced.record:
            site.before, site.after = h.detach(), perturbed.detach()
        changed = site.layout.from_map(perturbed, features)
        if self._forced is None and again is None:
            self._fired.add_(1)
            if not self._inside and not torch.compiler.is_compiling():
                self._pending.add([changed], self._step, self._image, {site.module: 1}, site.module)
        if self._inside and again is None:
            site.passes += 1
        return changed if output is features else replaced(output, features, changed)

    def _noise(self, site: Site) -> Noise:
        if self._forced is not None:
            return Noise(advance(advance(site.key(), self._step), self._forced.draw))
        if not self._inside:
            self._step.add_(1)
        return _training_noise(site, self._step)

    def _leave(self, args: Any, kwargs: Any, output: Any) -> Any:
        passes = {site.module: site.passes for site in self.sites}
        self._left()
        if self._forced is not None or self._measuring or in_backward():
            return None
        if self.model.training:
            require_all_fired(self, passes)
        if any(passes.values()) and not torch.compiler.is_compiling():
            self._pending.add(tensors(output), self._step, self._image, passes)
        if self._monte_carlo is not None and self._monte_carlo.active and not self.model.training:
            return self._monte_carlo(self, Call(args, kwargs))
        return None

    def _left(self, *call: Any) -> None:
        """Outside of the model again, also by an exception (out of memory, say) that the loop survives."""
        self._inside = False
        for site in self.sites:
            site.passes = 0

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
        seed: Selects the noise, together with a seed of the gate's own if it has one. Never touches torch's global
            stream.
        rank: This process among several; None asks ``torch.distributed``.
        check: At the first training forward, run the batch with the gate off and on, and refuse a gate that the network
            normalises away. Under ``torch.compile`` call ``h.check(batch)`` yourself before compiling.
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
    rank = rank_of_process() if rank is None else rank
    return Attachment(model, gates_by_stage(gate, stages), seed, rank, check, layout, grid)


def _training_noise(site: Site, step: Tensor) -> Noise:
    return Noise(advance(advance(site.key(), step), 0))
