r"""White noise as a pure function of a key: the same key gives the same numbers, on any device, in any order.

Noise inside a network must replay after a restart, agree with itself when activations are recomputed, leave the global
random stream alone, and compile into one graph. A ``torch.Generator`` can do none of the last two, so the bits come
from a counter: number :math:`i` under key :math:`k` is ``mix(k + (i + 1) g)`` with the finaliser and the odd constant
:math:`g` of SplitMix64 (Steele, Lea, Flood 2014). Keys live in 0-dimensional int64 tensors on the device of the
features, so no step of this ever waits for the host.
"""

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_Pair = Callable[[Tensor, torch.dtype], tuple[Tensor, Tensor]]
_CHUNK = 1 << 16  # numbers per pass on a CPU: twelve elementwise passes over this much stay in the cache


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def mix(words: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of the 64-bit words in which every input bit moves about half the output."""
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, None), strict=True):
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
    if isinstance(counter, int):  # Python's integers do not wrap around by themselves
        return mix(key + _signed((counter + 1) * _GOLDEN))
    return mix(key + (counter + 1) * _signed(_GOLDEN))


def _words(key: Tensor, start: int, stop: int) -> Tensor:
    index = torch.arange(start + 1, stop + 1, dtype=torch.int64, device=key.device)
    return mix(index * _signed(_GOLDEN) + key)


def _uniform_pair(words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two uniforms on (0, 1) from the upper and the lower 32 bits; the half step keeps zero out."""
    low_bits = (1 << 32) - 1
    upper, lower = ((words >> 32) & low_bits).to(dtype), (words & low_bits).to(dtype)
    return (upper + 0.5) * 2.0**-32, (lower + 0.5) * 2.0**-32


def _normal_pair(words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    first, second = _uniform_pair(words, dtype)
    radius = torch.sqrt(-2.0 * torch.log(first))
    angle = second * (2.0 * math.pi)
    return radius * torch.cos(angle), radius * torch.sin(angle)


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
        return self._draw(_normal_pair, shape, dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Independent uniforms on (0, 1), on a lattice of step 2^-32 (float32 rounds the upper half to 2^-24)."""
        return self._draw(_uniform_pair, shape, dtype)

    def _draw(self, pair: _Pair, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        key = advance(self.key, self._calls)
        self._calls += 1
        count = math.prod(shape)
        half = (count + 1) // 2
        if key.device.type != "cpu" or half <= _CHUNK or torch.compiler.is_compiling():
            return torch.cat(pair(_words(key, 0, half), dtype))[:count].reshape(tuple(shape))
        out = torch.empty(2 * half, dtype=dtype)
        for start in range(0, half, _CHUNK):
            stop = min(start + _CHUNK, half)
            out[start:stop], out[half + start : half + stop] = pair(_words(key, start, stop), dtype)
        return out[:count].reshape(tuple(shape))
