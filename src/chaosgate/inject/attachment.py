"""Attach a gate to a network with hooks: no new module, no new parameter, no new key in the ``state_dict``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from chaosgate.field.white import Noise, advance, fold
from chaosgate.gate import Gate
from chaosgate.inject.effect import SiteReport, check_effect
from chaosgate.inject.layout import Layout, layout_of
from chaosgate.inject.stages import resolve_site


@dataclass
class Site:
    """One place where the gate acts."""

    asked: str
    module: str
    key: Tensor
    layout: Layout | None = None
    before: Tensor | None = None
    after: Tensor | None = None


class Attachment:
    """A gate on some stages of a model, until :meth:`remove`. Made by :func:`attach`; also a context manager.

    The noise of a training forward is a pure function of (seed, rank, site, micro-step). The micro-step advances when
    the whole model is entered, so a stage that activation checkpointing runs again sees the same gate.
    """

    def __init__(self, model: nn.Module, gate: Gate, stages: Sequence[str], seed: int, rank: int, check: bool) -> None:
        if not isinstance(gate, Gate):
            raise TypeError(f"attach needs a chaosgate.Gate; got {type(gate).__name__}.")
        names = [stages] if isinstance(stages, str) else list(stages)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"stages must name at least one place, each once, e.g. ['L4']; got {names!r}.")
        self.model = model
        self.gate = gate
        device = next(model.parameters(), torch.empty(0)).device
        self.sites = [
            Site(asked, module, torch.tensor(fold(seed, rank, module), device=device))
            for asked, module in ((asked, resolve_site(model, asked)) for asked in names)
        ]
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._fired = torch.zeros((), dtype=torch.int64, device=device)
        self._draw: int | None = None
        self._only: set[str] | None = None
        self._recording = False
        self._fired_now: set[str] = set()
        self._to_check = check
        self._monte_carlo = 0
        self.uncertainty: dict[str, Tensor] = {}
        modules = dict(model.named_modules())
        self._handles = [model.register_forward_pre_hook(self._enter, with_kwargs=True)]
        self._handles += [modules[site.module].register_forward_hook(self._perturber(site)) for site in self.sites]
        self._handles += [model.register_forward_hook(self._leave, with_kwargs=True)]

    # -- what a user sees ------------------------------------------------------------------------------------------

    @property
    def fired(self) -> int:
        """How often a gate acted on features in training mode."""
        return int(self._fired)

    @property
    def step(self) -> int:
        """Micro-steps so far: training forwards of the whole model."""
        return int(self._step)

    def check(self, batch: Tensor) -> list[SiteReport]:
        """Run ``batch`` with the gate off and on; refuse a site where nothing arrives at the logits (``effect.py``).

        Leaves weights, running statistics, the micro-step and every random stream as they were. Also fills all caches,
        which ``torch.compile(fullgraph=True)`` wants to find full.
        """
        self._to_check = False
        return check_effect(self, batch)

    def set_dial(self, factor: float) -> None:
        """Scale the nominal strength; 0 is no noise, 1 the full strength. For schedules."""
        if self.gate.dial is None:
            self.gate.dial = torch.ones((), device=self._step.device)
        self.gate.dial.fill_(factor)

    @contextmanager
    def monte_carlo(self, draws: int, step: int = 0) -> Iterator[Self]:
        """In here an evaluation forward returns the log of the mean probabilities of ``draws`` gated passes.

        ``step`` tells batches apart. :attr:`uncertainty` then holds, per image of the last batch, the predictive
        ``entropy`` and the ``mutual_information`` between prediction and gate.
        """
        if draws < 1:
            raise ValueError(f"Monte Carlo prediction needs at least one draw; got {draws}.")
        kept = int(self._step)
        self._monte_carlo = draws
        self._step.fill_(step)
        try:
            yield self
        finally:
            self._monte_carlo = 0
            self._step.fill_(kept)

    def state_dict(self) -> dict[str, int]:
        """The counters, as plain integers."""
        return {"step": self.step, "fired": self.fired}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from saved counters."""
        self._step.fill_(int(state["step"]))
        self._fired.fill_(int(state["fired"]))

    def remove(self) -> None:
        """Take the gate off; the model is as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        places = ", ".join(s.asked if s.asked == s.module else f"{s.asked} -> {s.module}" for s in self.sites)
        return f"Attachment({self.gate}, at {places})"

    # -- what the hooks do -----------------------------------------------------------------------------------------

    @contextmanager
    def forced(self, draw: int, only: set[str] | None = None, record: bool = False) -> Iterator[None]:
        """Gates act in evaluation mode too, with the noise of one numbered draw, on some or all sites."""
        previous = self._draw, self._only, self._recording
        self._draw, self._only, self._recording = draw, only, record
        try:
            yield
        finally:
            self._draw, self._only, self._recording = previous

    def _enter(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not model.training or self._draw is not None:
            return
        if self._to_check and not torch.compiler.is_compiling():
            self.check(args[0] if args else next(iter(kwargs.values())))
        self._fired_now.clear()
        self._step.add_(1)

    def _perturber(self, site: Site) -> Any:
        def perturb(module: nn.Module, args: Any, output: Any) -> Any:
            if self._draw is None and not self.model.training:
                return None
            if self._only is not None and site.module not in self._only:
                return None
            return self._perturbed(site, output)

        return perturb

    def _perturbed(self, site: Site, output: Any) -> Tensor:
        if site.layout is None or site.layout.kind == "NLC":
            site.layout = layout_of(self.model, site.module, output)
        h = site.layout.to_map(output)
        if self._step.device != h.device:
            self._move(h.device)
        draw = 0 if self._draw is None else self._draw  # training is draw 0; Monte Carlo draws count from 1
        perturbed = self.gate.perturb(h, Noise(advance(advance(site.key, self._step), draw)))
        if self._draw is None:
            self._fired.add_(1)
            self._fired_now.add(site.module)
        if self._recording:
            site.before, site.after = h.detach(), perturbed.detach()
        return site.layout.from_map(perturbed, output)

    def _leave(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self._draw is not None:
            return None
        if model.training:
            self._require_all_fired()
            return None
        return self._averaged(args, kwargs) if self._monte_carlo else None

    def _require_all_fired(self) -> None:
        silent = [site for site in self.sites if site.module not in self._fired_now]
        self._fired_now.clear()
        if not silent:
            return
        site = silent[0]
        inner = [name for name, _ in self.model.named_modules() if name.startswith(site.module + ".")]
        blocks = [name for name in inner if name.count(".") == site.module.count(".") + 1]
        remedy = f" Name the last block inside it instead: stages=[{blocks[-1]!r}]." if blocks else ""
        why = " (activation checkpointing runs its blocks directly)" if _checkpointing(self.model) else ""
        raise RuntimeError(f"the gate at '{site.asked}' never fired: '{site.module}' was not called{why}.{remedy}")

    def _averaged(self, args: Any, kwargs: Any) -> Tensor:
        log_p = []
        for draw in range(1, self._monte_carlo + 1):
            with self.forced(draw):
                log_p.append(self.model(*args, **kwargs).float().log_softmax(-1))
        stacked = torch.stack(log_p)
        mean = torch.logsumexp(stacked, 0) - torch.log(torch.tensor(float(len(log_p)), device=stacked.device))
        entropy = -(mean.exp() * mean).sum(-1)
        within = -(stacked.exp() * stacked).sum(-1).mean(0)
        self.uncertainty = {"entropy": entropy, "mutual_information": (entropy - within).clamp_min(0)}
        return mean

    def _move(self, device: torch.device) -> None:
        self._step, self._fired = self._step.to(device), self._fired.to(device)
        for site in self.sites:
            site.key = site.key.to(device)
        if self.gate.dial is not None:
            self.gate.dial = self.gate.dial.to(device)


def attach(
    model: nn.Module,
    gate: Gate,
    stages: Sequence[str] = ("L4",),
    seed: int = 0,
    rank: int | None = None,
    check: bool = True,
) -> Attachment:
    """Put ``gate`` on the output of some stages of ``model``. Plain PyTorch; training mode only.

    Args:
        model: A timm backbone, or any module if ``stages`` names its modules.
        gate: What to do to the features.
        stages: ``"L1"`` to ``"L4"`` (see :func:`resolve_stages`), or names of modules.
        seed: Selects the noise. It is independent of torch's global stream, and never draws from it.
        rank: This process among several; None asks ``torch.distributed``.
        check: At the first training forward, run the batch with the gate off and on, and refuse a gate that the network
            normalises away. Under ``torch.compile`` call ``h.check(batch)`` yourself before compiling.

    >>> import timm
    >>> from chaosgate import GaussianChaos
    >>> model = timm.create_model("resnet18")
    >>> handle = attach(model, GaussianChaos(log_std=1.0), ["L4"])
    >>> y = model.train()(torch.randn(2, 3, 64, 64))
    >>> handle.fired
    1
    >>> handle.remove()
    """
    if rank is None:
        available = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if available else 0
    return Attachment(model, gate, stages, seed, rank, check)


def _checkpointing(model: nn.Module) -> bool:
    return any(getattr(module, "grad_checkpointing", False) for module in model.modules())
