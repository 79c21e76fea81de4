"""The base class of every perturbation of a feature map."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from itertools import count
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.module_tracker import ModuleTracker

from chaosgate.field.operator import Grid, at_least_float32
from chaosgate.field.white import Noise, advance, fold


class Counter:
    """An event counter shared by eager and compiled code.

    Eager code uses an integer, so it does not wait for a device. Compiled code uses a tensor on the
    same memory, because an integer would become a constant of the graph.
    """

    def __init__(self, value: int = 0) -> None:
        self._memory = np.array(value, dtype=np.int64)
        self.tensor = torch.from_numpy(self._memory)

    @property
    def value(self) -> int:
        return int(self._memory)

    @value.setter
    def value(self, value: int) -> None:
        self._memory[...] = value

    def now(self, compiling: bool) -> Tensor | int:
        """The current number; a tensor in compiled code."""
        return self.tensor if compiling else int(self._memory)

    def next(self, compiling: bool) -> Tensor | int:
        """Count one event and return the new number."""
        if compiling:
            return self.tensor.add_(1)
        with _COUNTING:  # two threads never get the same number
            self._memory += 1
            return int(self._memory)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counter, (self.value,)


_COUNTING = threading.Lock()


class Gate(nn.Module, ABC):
    """A random perturbation of a feature map in training mode; the identity in evaluation mode.

    A subclass implements :meth:`perturb`. All random numbers must come from the
    :class:`~chaosgate.field.white.Noise` argument; then a restarted run repeats the noise, and the
    gate can be compiled. Counters and caches are not in the ``state_dict``, so models with and
    without a gate can exchange checkpoints.

    A gate is also a layer: in ``nn.Sequential(..., GaussianChaos(log_std=1.0), ...)`` it has its
    own key and counter. The key depends on the seed and the rank of the process;
    :func:`noise_state_dict` saves both. A copy (``copy.deepcopy``) gets a new key, so two layers
    never share noise. With activation checkpointing use :func:`~chaosgate.attach`, which recognizes
    a recomputed forward; a layer cannot, and raises an error. Before ``torch.compile(...,
    fullgraph=True)`` run one training forward, or call :meth:`prepare`.

    Args:
        seed: Selects the noise of direct calls; None numbers the gates in order of construction.
            In an attached gate it is combined with the seed of the attachment.

    >>> class Flip(Gate):
    ...     def perturb(self, h, noise):
    ...         return h * (noise.uniform((len(h), 1, 1, 1)) < 0.5).to(h.dtype) * 2
    >>> x = torch.ones(2, 3, 4, 4)
    >>> torch.equal(Flip().eval()(x), x)
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.factor: Tensor | None = None
        """Factor on the nominal strength, a 0-dimensional tensor set by a schedule; None is one."""
        self.reseed(seed)

    @abstractmethod
    def perturb(self, h: Tensor, noise: Noise) -> Tensor:
        r"""The perturbed map, same shape, dtype and memory format as ``h`` (B, C, \*grid).

        Scale the strength by :attr:`factor` if it is set. Without this, a schedule only switches
        the gate off (at zero) or on.
        """

    def expected_energy(self, h: Tensor) -> Tensor:
        r"""Expected injected energy :math:`E\|\tilde h-h\|^2` per sample (B,), for matching other
        gates to this one.

        By default the mean over 32 fixed draws; subclasses with a better formula override it.
        """
        key = torch.tensor(fold("expected energy"), device=h.device)
        h = h.detach()
        moves = [self.perturb(h, Noise(advance(key, i))) - h for i in range(32)]
        return torch.stack([move.float().square().flatten(1).sum(1) for move in moves]).mean(0)

    def nominal(self, grid: Grid) -> dict[str, float]:
        """The configured strength, as numbers for a logger (``tau``, ``log_std``, ``p`` ...)."""
        return {}

    def check(self, grid: Grid) -> None:
        """Raise an error if the gate would have no effect on this grid."""

    def prepare(self, grid: Grid, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Fill the caches for one grid, before ``torch.compile``."""

    def reseed(self, seed: int | None) -> None:
        """Restart the counter of direct calls with this seed, or with the next number in order of
        construction.

        An attachment keeps the seed that the gate had when it was attached.
        """
        key = fold("gate", next(CONSTRUCTED)) if seed is None else fold(seed, "direct call")
        self.seed = seed
        self._key, self._calls = key, Counter()

    def noise_state(self) -> dict[str, float]:
        """What :func:`noise_state_dict` saves of this gate."""
        return {"key": self._key, "calls": self._calls.value}

    def load_noise_state(self, state: Mapping[str, float]) -> None:
        """Continue from :meth:`noise_state`."""
        self._key, self._calls.value = int(state["key"]), int(state["calls"])

    def forward(self, h: Tensor) -> Tensor:
        r"""Perturb ``h`` (B, C, \*grid) in training mode and advance the counter; otherwise return
        ``h`` itself.
        """
        if not self.training:
            return h
        if not torch.compiler.is_compiling() and TRACKER.is_bw:  # a forward is run again
            raise RuntimeError(
                "a gate that is a layer inside activation checkpointing would draw again at "
                "recomputation. Use chaosgate.attach."
            )
        require_fresh_draws(h)
        key = self._key if (rank := rank_of_process()) == 0 else advance(self._key, rank)
        call = self._calls.next(torch.compiler.is_compiling()) - 1
        return self.perturb(h, Noise(advance(key, call), h.device))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(deepcopy(self.__dict__, memo))
        copied.reseed(None)
        return copied


CONSTRUCTED = count()
"""Numbers of the gates without a seed, in order of construction."""


def rank_of_process() -> int:
    """Rank among the processes of ``torch.distributed``; 0 if there are none."""
    initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if initialized else 0


TRACKER = ModuleTracker()
"""Knows whether autograd is running backward: then a forward is the second run of one under
activation checkpointing.
"""


def require_fresh_draws(*values: Tensor) -> None:
    """Raise an error where one draw would be reused: in a trace, or in a transform of
    ``torch.func``.
    """
    if torch.compiler.is_compiling():
        return
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(
            "torch.jit.trace would keep the noise of one forward. Trace in evaluation mode."
        )
    for value in values:
        if value.layout is not torch.strided:
            continue
        try:
            value.untyped_storage()
        except NotImplementedError:  # the tensors of a transform have none
            raise RuntimeError(
                "a gate cannot draw inside a transform of torch.func: vmap would repeat the noise."
            ) from None


def noise_state_dict(model: nn.Module) -> dict[str, dict[str, float]]:
    """Keys and counters of all gates that are layers of ``model``, as plain numbers, by the name of
    the layer.

    They are not in ``model.state_dict()``, so networks with and without gates can exchange
    checkpoints. Save them too; after :func:`load_noise_state_dict` a resumed run continues with the
    same noise.

    >>> from chaosgate.gate import Dropout
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), Dropout(0.1))
    >>> noise_state_dict(model)["1"]["calls"]
    0
    """
    return {name: gate.noise_state() for name, gate in _gates(model).items()}


def load_noise_state_dict(model: nn.Module, state: Mapping[str, Mapping[str, float]]) -> None:
    """Continue from what :func:`noise_state_dict` returned for the same model."""
    gates = _gates(model)
    if set(gates) != set(state):
        raise ValueError(
            f"the saved noise has gates at {sorted(state)}; this model has them at {sorted(gates)}."
        )
    for name, gate in gates.items():
        gate.load_noise_state(state[name])


def _gates(model: nn.Module) -> dict[str, Gate]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Gate)}


def one_of(name: str, value: object, *choices: str) -> None:
    """Raise an error unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not one of {choices}.")


def grid_of(h: Tensor) -> Grid:
    """The spatial size of a map (B, C, L), (B, C, H, W) or (B, C, D, H, W) of real numbers."""
    if h.ndim not in (3, 4, 5) or not h.is_floating_point():
        raise ValueError(
            "a gate acts on real maps (batch, channel, ...) with one to three axes; got "
            f"{h.dtype} of shape {tuple(h.shape)}. Use chaosgate.attach, or permute."
        )
    return tuple(int(side) for side in h.shape[2:])


def field_dtype(h: Tensor) -> torch.dtype:
    """The type of fields: float32 or better, independent of the features."""
    return torch.float64 if h.dtype == torch.float64 else torch.float32


def weighted_energy(h: Tensor, site_energy: Tensor) -> Tensor:
    r""":math:`\sum_x m(x)\|h(x)\|^2` per sample (B,): the injected energy of a multiplicative gate
    with :math:`m(x)=E(\nu(x)-1)^2` given as a map.
    """
    power = at_least_float32(h.detach()).square().sum(1)
    return (power * site_energy.to(power)).flatten(1).sum(1)


def squared_norm(h: Tensor) -> Tensor:
    r""":math:`\|h\|^2` per sample (B,), in float32 at least; no gradient."""
    return at_least_float32(h.detach()).square().flatten(1).sum(1)
