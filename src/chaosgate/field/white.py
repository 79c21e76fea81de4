r"""White noise as a pure function of a key: the same key gives the same numbers, on any device, in any order.

Noise inside a network must replay after a restart, agree with itself when activations are recomputed, leave the global
random stream alone, and compile into one graph. A ``torch.Generator`` can do none of the last two, so the bits come
from a counter: number :math:`i` under key :math:`k` is ``mix(k + (i + 1) g)`` with the finaliser and the odd constant
:math:`g` of SplitMix64 (Steele, Lea, Flood 2014). Keys live in 0-dimensional int64 tensors on the device of the
features, so no step of this ever waits for the host. Where the features are in the host's own memory, the host computes
the same bits by itself (:mod:`~chaosgate.field.host_noise`).
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chaosgate.field.host_noise import GOLDEN, MULTIPLIERS, SHIFTS, WORD, InPlace, advanced, drawn, on_host, to_normals

_AHEAD = 16  # events that a stream computes at once, where they are small
_SMALL = 1 << 16  # numbers that are cheap to keep
_KINDS = 8  # sizes and uses of a draw that a stream keeps at a time


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    word %= WORD
    return word - WORD if word >= WORD // 2 else word


def mix(words: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of the 64-bit words in which every input bit moves about half the output."""
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, None), strict=True):
        # >> on int64 copies the sign bit; the mask makes it the unsigned shift of the definition.
        words = words ^ ((words >> shift) & ((1 << (64 - shift)) - 1))
        if multiplier is not None:
            words = words * _signed(multiplier)
    return words


def fold(*parts: int | str) -> int:
    """One int64 from names and numbers, as in ``fold(seed, rank, "layer4")``; the same in every process."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def advance(key: Tensor, counter: Tensor | int) -> Tensor:
    """The key of the ``counter``-th event under ``key`` (both may live on the device)."""
    if on_host(key) and (isinstance(counter, int) or on_host(counter)):
        return torch.tensor(_signed(advanced(int(key), int(counter))))
    if isinstance(counter, int):  # Python's integers do not wrap around by themselves
        return mix(key + _signed((counter + 1) * GOLDEN))
    return mix(key + (counter + 1) * _signed(GOLDEN))


def _words(key: Tensor, count: int) -> Tensor:
    index = torch.arange(1, count + 1, dtype=torch.int64, device=key.device)
    return mix(index * _signed(GOLDEN) + key)


def _uniform_pair(words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two uniforms on (0, 1) from the upper and the lower 32 bits; the half step keeps zero out."""
    low_bits = (1 << 32) - 1
    upper, lower = ((words >> 32) & low_bits).to(dtype), (words & low_bits).to(dtype)
    return (upper + 0.5) * 2.0**-32, (lower + 0.5) * 2.0**-32


class Noise:
    """White noise under one key. Each call draws from a sub-stream of its own, in call order.

    Args:
        key: 0-dimensional int64 tensor; its device is where the numbers appear.
    """

    def __init__(self, key: Tensor) -> None:
        self.key = key
        self._calls = 0

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Independent standard normals (Box-Muller; 32-bit uniforms, so no value beyond 6.8 in size)."""
        return self._draw(to_normals, shape, dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Independent uniforms on (0, 1), on a lattice of step 2^-32 (float32 rounds the upper half to 2^-24)."""
        return self._draw(None, shape, dtype)

    def derived(self, shape: Sequence[int], dtype: torch.dtype, then: Callable[[Tensor], Tensor]) -> Tensor:
        """``then(self.normal(shape, dtype))``, for a ``then`` that treats the entries of the first axis independently.

        A stream makes use of that: it lets ``then`` work on several events at once.
        """
        return then(self.normal(shape, dtype))

    def _draw(self, transform: InPlace | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        call, self._calls = self._calls, self._calls + 1
        count = math.prod(shape)
        return self._numbers(call, (count + 1) // 2, transform, dtype)[:count].view(tuple(shape))

    def _numbers(self, call: int, half: int, transform: InPlace | None, dtype: torch.dtype) -> Tensor:
        """``2 * half`` numbers of one call."""
        if on_host(self.key):
            return torch.from_numpy(drawn([advanced(int(self.key), call)], half, transform, dtype)[0])
        first, second = _uniform_pair(_words(advance(self.key, call), half), dtype)
        if transform is not None:
            transform(first, second)
        return torch.cat((first, second))


class Stream:
    """The noise of one event after the other under a key: event ``n`` gets ``Noise(advance(key, n))``.

    On the host, small draws are made for some events at once and kept until they are asked for: what a training step
    costs then is a copy. Which events share a draw changes no bit of it. What is derived from a draw may depend on its
    company in the last bit (a product of matrices sums in another order), so there the company is fixed: events share
    it by their number, whichever comes first.

    Args:
        key: 0-dimensional int64 tensor.
        tail: Counters that the key is advanced by after the event's own.
    """

    def __init__(self, key: Tensor, tail: Sequence[int] = ()) -> None:
        self.key = key
        self.tail = tuple(tail)
        self._ahead: dict[tuple[Any, ...], tuple[int, NDArray[np.floating]]] = {}
        self._derived: dict[tuple[Any, ...], tuple[int, Tensor]] = {}

    def at(self, event: Tensor) -> Noise:
        """The noise of one event, counted on the key's device."""
        if on_host(self.key) and on_host(event):
            return _StreamNoise(self, int(event))
        key = advance(self.key, event)
        for counter in self.tail:
            key = advance(key, counter)
        return Noise(key)

    def numbers(self, event: int, call: int, half: int, transform: InPlace | None, dtype: torch.dtype) -> Tensor:
        """What ``at(event)`` draws at its ``call``-th call, from the events that were drawn ahead if it is there."""
        kind = (call, half, transform, dtype)
        first, block = self._ahead.get(kind, (0, None))
        if block is None or not first <= event < first + len(block):
            first, block = event, drawn(self._keys(event, call, _together(2 * half)), half, transform, dtype)
            self._ahead[kind] = first, block
        return torch.from_numpy(block[event - first]).clone()  # whoever gets it may write to it

    def derived(
        self, event: int, call: int, shape: tuple[int, ...], dtype: torch.dtype, then: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """``then`` of the normals that ``at(event)`` draws at its ``call``-th call."""
        count = math.prod(shape)
        together = _together(count)
        kind = (call, shape, dtype, then)
        first = event - event % together
        known = self._derived.get(kind)
        if known is None or known[0] != first:
            keys = self._keys(first, call, together)
            normals = torch.from_numpy(drawn(keys, (count + 1) // 2, to_normals, dtype)[:, :count])
            with torch.inference_mode(False), torch.no_grad():  # what is kept may be used under another mode
                results = then(normals.reshape(-1, *shape[1:]))
            known = first, results.view(together, shape[0], *results.shape[1:])
            if len(self._derived) >= _KINDS:
                self._derived.clear()
            self._derived[kind] = known
        return known[1][event - first].clone()

    def _keys(self, first: int, call: int, events: int) -> list[int]:
        return [advanced(self._key_of(first + i), call) for i in range(events)]

    def _key_of(self, event: int) -> int:
        key = advanced(int(self.key), event)
        for counter in self.tail:
            key = advanced(key, counter)
        return key

    def __getstate__(self) -> dict[str, Any]:
        """A copy draws anew."""
        return {**self.__dict__, "_ahead": {}, "_derived": {}}


def _together(count: int) -> int:
    """How many events of ``count`` numbers each are worth a common draw."""
    return max(1, min(_AHEAD, _SMALL // max(1, count)))


class _StreamNoise(Noise):
    """The noise of one event of a stream, on the host."""

    def __init__(self, stream: Stream, event: int) -> None:
        self._stream, self._event, self._calls = stream, event, 0

    @property
    def key(self) -> Tensor:  # type: ignore[override]
        """As in :class:`Noise`, made when somebody asks."""
        return torch.tensor(_signed(self._stream._key_of(self._event)))

    def derived(self, shape: Sequence[int], dtype: torch.dtype, then: Callable[[Tensor], Tensor]) -> Tensor:
        """As in :class:`Noise`; several events at once where they are small."""
        call, self._calls = self._calls, self._calls + 1
        return self._stream.derived(self._event, call, tuple(shape), dtype, then)

    def _numbers(self, call: int, half: int, transform: InPlace | None, dtype: torch.dtype) -> Tensor:
        return self._stream.numbers(self._event, call, half, transform, dtype)
