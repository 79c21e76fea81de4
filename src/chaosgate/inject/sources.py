"""Find every source of random numbers in a model and measure its effect.

A ``TorchFunctionMode`` intercepts the functions that draw. It seeds each draw by (module, operator,
number), so that two forwards are equal; then a forward in which only one source has another seed
shows the effect on the output.
"""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from chaosgate.field.white import fold
from chaosgate.gate import Gate, load_noise_state_dict, noise_state_dict
from chaosgate.inject.attachment import Attachment
from chaosgate.inject.dryrun import example_input, without_zeros
from chaosgate.inject.effect import compare, output_of, relative_change, silent
from chaosgate.inject.layout import LoopError, tensors

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

Key = tuple[str, str]  # path of a module, operator
_RATES = (
    *("p", "drop_prob", "drop_rate", "dropout", "dropout_p", "dropout_prob", "attention_dropout"),
)
_RANDOM = set(
    """rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform
    exponential log_normal cauchy geometric random multinomial poisson dropout dropout1d dropout2d
    dropout3d alpha_dropout feature_alpha_dropout feature_dropout native_dropout rrelu
    fractional_max_pool2d fractional_max_pool3d scaled_dot_product_attention
    multi_head_attention_forward gumbel_softmax lstm gru rnn_tanh rnn_relu""".split()
)
_LEAST = 1e-5  # relative change of the output below which noise counts as removed


@dataclass(frozen=True)
class Source:
    """One source of random numbers.

    ``draws`` per training forward; ``requested`` and ``realized`` rates of dropped values;
    ``energy``, injected energy relative to its input; ``change`` of the output (relative) when only
    this source is redrawn; ``independent`` draws of samples and channels.
    """

    module: str
    kind: str
    operator: str
    draws: int = 0
    evaluation: int = 0
    independent: str = ""
    requested: float = math.nan
    realized: float = math.nan
    energy: float = math.nan
    change: float = math.nan
    verdict: str = "acts"

    @property
    def healthy(self) -> bool:
        """Whether it acts, or is switched off by a rate of zero."""
        return self.verdict == "acts" or (self.verdict == "never draws" and self.requested == 0)


@dataclass(frozen=True)
class Audit:
    """What :func:`audit` found; prints as a table."""

    sources: tuple[Source, ...]
    forwards: int

    def require(
        self,
        training: Literal["acts"] | None = None,
        evaluation: Literal["silent"] | None = None,
    ) -> "Audit":
        """Raise an ``AssertionError`` with the table unless the noise acts, or evaluation is
        silent.
        """
        loud = [s.module for s in self.sources if s.verdict == "active in evaluation"]
        wrong = [s for s in self.sources if not s.healthy and s.module not in loud]
        if training and (wrong or not any(s.draws for s in self.sources)):
            cause = ", ".join(f"{s.module} ({s.verdict})" for s in wrong) or "there is none"
            raise AssertionError(f"not all noise acts in training: {cause}.\n{self}")
        if evaluation and loud:
            raise AssertionError(f"noise is active in evaluation: {', '.join(loud)}.\n{self}")
        return self

    def to_frame(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame([asdict(source) for source in self.sources])

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, float_format="{:.3g}".format))

    def __rich__(self) -> "Table":
        from rich.table import Table

        table = Table(title=f"{len(self.sources)} sources of noise, {self.forwards} forwards")
        for name in Source.__dataclass_fields__:
            table.add_column(name, overflow="fold")
        for source in self.sources:
            cells = [f"{v:.3g}" if type(v) is float else str(v) for v in asdict(source).values()]
            style = "" if source.healthy else "bold red"
            table.add_row(*("" if cell == "nan" else cell for cell in cells), style=style)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=150)
        with console.capture() as text:
            console.print(self)
        return text.get()


@dataclass
class _Draws:
    """What one source drew in one forward."""

    number: int = 0
    shape: tuple[int, ...] = ()
    zeros: int = 0
    values: int = 0
    fixed: bool = False  # seeded by the model, or the same for every seed
    states: list[bytes] = field(default_factory=list)  # of a generator of the model


class _Watch(TorchFunctionMode):
    """Random operators become functions of (module, operator, number, version); ``redrawn`` has
    another.
    """

    def __init__(self, model: nn.Module, version: int = 0, redrawn: Key | None = None) -> None:
        super().__init__()
        self.version, self.redrawn = version, redrawn
        self.draws: dict[Key, _Draws] = {}
        self.seen: dict[str, tuple[float, float]] = {}  # of modules: dropped, energy
        self._names = {module: name for name, module in model.named_modules()}
        self._running, self._state = [""], torch.get_rng_state()

    def __enter__(self) -> Any:
        before = register_module_forward_pre_hook(self._start)
        self._hooks = before, register_module_forward_hook(self._end, always_call=True)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _start(self, module: nn.Module, args: Any) -> None:
        self._running.append(self._names.get(module, self._running[-1]))

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        name, x = self._running.pop(), args[0] if args else None
        if [*module.children()] or not isinstance(x, Tensor) or not isinstance(output, Tensor):
            return
        drew = any(path == name for path, _ in self.draws)
        if drew and x is not output and x.shape == output.shape and x.is_floating_point():
            x, y = x.double(), output.double()
            dropped = float((y[x != 0] == 0).double().mean())
            self.seen[name] = dropped, float((y - x).norm() / x.norm().clamp_min(1e-150)) ** 2

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "").removesuffix("_")
        if name not in _RANDOM:
            return func(*args, **kwargs)
        if kwargs.get("inplace"):  # it may be called several times
            changed = self.__torch_function__(func, types, args, kwargs | {"inplace": False})
            return args[0].copy_(changed)
        reseeded = not torch.equal(self._state, torch.get_rng_state())
        key = self._running[-1], name
        seen = self.draws.get(key, _Draws())
        states = list(seen.states)
        if (own := kwargs.get("generator")) is not None:
            states.append(own.get_state().numpy().tobytes())
            func(*args, **kwargs)  # its own generator goes on, but this draw is replayed
            kwargs["generator"] = None

        def draw(version: int) -> tuple[Any, Tensor, bool]:
            torch.manual_seed(fold(*key, seen.number, version))
            before = torch.get_rng_state()
            result = func(*args, **kwargs)
            self._state = torch.get_rng_state()
            values = next(iter(tensors(result)), torch.empty(0))
            return result, values, not torch.equal(before, self._state)

        result, values, drew = draw(self.version)
        if not drew:  # attention with p = 0
            return result
        fixed = seen.fixed or reseeded
        if key == self.redrawn:
            first = values.clone()
            # Other seeds until a rare event (one sample dropped, say) happens, or does not; of
            # uniform numbers, which are compared with a rate, the smallest.
            tries = range(1, 1024 if values.numel() <= 4096 else 64)
            if key[1] == "rand":
                tries = [min(tries, key=lambda v: float(draw(-v)[1].min()))]  # type: ignore[assignment]
            for version in tries:
                result, values, _ = draw(-version)
                if not torch.equal(values, first):
                    break
            else:
                fixed = True
        zeros, size = seen.zeros + int((values == 0).sum()), seen.values + values.numel()
        shape = tuple(values.shape)
        self.draws[key] = _Draws(seen.number + 1, shape, zeros, size, fixed, states)
        return result


def audit(model: nn.Module, *example: Any, **kwargs: Any) -> Audit:
    """Find every source of random numbers in a model, and measure the effect of each.

    Weights, buffers, counters and random streams do not change. Weights that are almost zero
    (branches at initialization) are replaced for the measurement. Attached gates are measured at
    full strength. Verdicts: acts, never draws, drawn but constant, result unused, removed by a
    normalization, active in evaluation, rate differs from the request.

    Args:
        model: Any module.
        example: Arguments of the module; without them, noise images of the declared size are used.
        kwargs: Further arguments, by name.

    >>> model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    >>> [(source.module, source.verdict) for source in audit(model, torch.ones(8, 4)).sources]
    [('1', 'acts')]
    """
    args = example or (example_input(model),)
    weights, forwards = without_zeros(model), 0

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, weights, args, kwargs)

    def run(train: bool, version: int = 0, redrawn: Key | None = None) -> tuple[Tensor, _Watch]:
        nonlocal forwards
        forwards += 1
        with silent(model, train):
            noise = noise_state_dict(model)
            if redrawn is not None and redrawn[0] in noise:
                noise[redrawn[0]]["calls"] += 1 << 20
                load_noise_state_dict(model, noise)
            with _Watch(model, version, redrawn) as watch:
                found = output_of(model, args, kwargs, call)
            for name, state in noise_state_dict(model).items():
                if calls := state["calls"] - noise[name]["calls"]:
                    watch.draws[name, "gate"] = _Draws(int(calls))
        return found, watch

    y, first = run(True)
    again, second = run(True)
    watches = [first, *(run(True, version)[1] for version in (1, 2, 3, 4))]
    quiet, evaluated = run(False)
    sources = []
    for key in dict.fromkeys((*first.draws, *evaluated.draws)):
        drawn, module = first.draws.get(key, _Draws()), model.get_submodule(key[0])
        redrawn, watch = run(True, redrawn=key) if drawn.number else (y, first)
        fixed = drawn.fixed or watch.draws.get(key, drawn).fixed
        fixed |= bool(drawn.states) and drawn.states == second.draws[key].states
        axes = zip(("samples", "channels"), drawn.shape[: max(1, len(drawn.shape) - 1)])  # noqa: B905
        seen = [w.seen[key[0]] for w in watches if key[0] in w.seen]
        draws = [w.draws[key] for w in watches if key in w.draws]
        zeros, values = sum(d.zeros for d in draws), sum(d.values for d in draws)
        realized = zeros / values if values and key[1] in _BERNOULLI else math.nan
        if any(dropped > 0 for dropped, _ in seen):  # what the module dropped, rather than drew
            realized = sum(dropped for dropped, _ in seen) / len(seen)
        source = Source(
            module=key[0],
            kind=type(module).__name__,
            operator=key[1],
            draws=drawn.number,
            evaluation=evaluated.draws.get(key, _Draws()).number,
            independent=", ".join(axis for axis, size in axes if size > 1),
            requested=_rate(module),
            realized=realized,
            energy=max((energy for _, energy in seen), default=math.nan),
            change=relative_change(y, redrawn),
        )
        sources.append(replace(source, verdict=_verdict(source, fixed, values, module)))
    for attachment in Attachment.on(model):
        for site in attachment.sites:
            source = Source(site.module, type(site.gate).__name__, "attached gate")
            try:
                gate = compare(attachment, args, kwargs, train=True)[site.module]
            except LoopError:
                source = replace(source, verdict="never draws")
            else:
                change = relative_change(gate.plain, gate.gated)
                source = replace(source, draws=1, energy=gate.energy, change=change)
                verdict = _verdict(source, gate.energy == 0, 0, site.gate)
                lost = verdict == "acts" and not gate.arrives
                source = replace(source, verdict=_LOST if lost else verdict)
            forwards += 1 + len(attachment.sites)
            sources.append(source)
    known = {source.module for source in sources}
    rateless = {source.module for source in sources if math.isnan(source.requested)}
    for name, module in model.named_modules():
        rate, kinds = _rate(module), " ".join(one.__name__ for one in type(module).__mro__).lower()
        off = "drop" in kinds or "rrelu" in kinds or isinstance(module, Gate)
        by_parent = rate and name.rpartition(".")[0] in rateless  # which draws with this rate
        if off and name not in known and not by_parent:
            kind = type(module).__name__
            sources.append(Source(name, kind, "", requested=rate, verdict="never draws"))
    for one, other, verdict in ((y, again, "acts"), (quiet, run(False)[0], _LOUD)):
        if not torch.equal(one, other):
            change, loud = relative_change(one, other), int(verdict == _LOUD)
            source = Source("", type(model).__name__, "outside torch", 1, loud, change=change)
            sources.append(replace(source, verdict=verdict))
    return Audit(tuple(sources), forwards)


_LOUD, _LOST = "active in evaluation", "removed by a normalization"
_BERNOULLI = ("bernoulli", "native_dropout")


def _rate(module: nn.Module) -> float:
    stated = (getattr(module, name, None) for name in _RATES)
    rates = (float(rate) for rate in stated if isinstance(rate, int | float) and 0 <= rate <= 1)
    return next(rates, math.nan)


def _verdict(source: Source, fixed: bool, decisions: int, module: nn.Module) -> str:
    if source.evaluation and not source.draws:
        return _LOUD
    if fixed:
        return "drawn but constant"
    if source.change == 0:
        return "result unused"
    least = _LEAST * (min(1.0, math.sqrt(source.energy)) if source.energy > 0 else 1.0)
    if source.change < least:
        return _LOST
    if source.evaluation:
        return _LOUD
    p, block = source.requested, float(getattr(module, "block_size", 1) or 1)
    spread = 5 * math.sqrt(p * (1 - p) * block**2 / max(1, decisions)) if 0 <= p <= 1 else math.nan
    if abs(source.realized - p) > 0.3 * p + spread:
        return "rate differs from the request"
    return "acts"
