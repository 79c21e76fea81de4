r"""White noise as a pure function of a key: the same key gives the same numbers, on any device, in any order.

Noise inside a network must replay after a restart, agree with itself when activations are recomputed, leave the global
random stream alone, and compile into one graph. A ``torch.Generator`` can do none of the last two, so the bits come
from a counter: number :math:`i` under key :math:`k` is ``mix(k + (i + 1) g)`` with the finaliser and the odd constant
:math:`g` of SplitMix64 (Steele, Lea, Flood 2014). Keys live in 0-dimensional int64 tensors on the device of the
features, so no step of this ever waits for the host.

Where the features are in the host's own memory, the same words are computed by the host itself (numpy, Python's
integers): on a feature map of 7 x 7 sites the cost is in the number of calls, and twenty of torch's take longer than
the multiplication by the gate.
"""

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_InPlace = Callable[[Tensor, Tensor], None]
_CHUNK = 1 << 15  # words per pass on a CPU: twenty elementwise passes over this much stay in the cache
_TORCH_TO_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


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
    if _on_host(key) and (isinstance(counter, int) or _on_host(counter)):
        return torch.tensor(_signed(_advanced(int(key), int(counter))))
    if isinstance(counter, int):  # Python's integers do not wrap around by themselves
        return mix(key + _signed((counter + 1) * _GOLDEN))
    return mix(key + (counter + 1) * _signed(_GOLDEN))


def _on_host(number: Tensor) -> bool:
    """Whether reading the number is free: a plain tensor in the host's memory, and nobody is tracing."""
    return type(number) is Tensor and number.device.type == "cpu" and not torch.compiler.is_compiling()


def _advanced(key: int, counter: int) -> int:
    """:func:`advance` in Python's integers, unsigned."""
    word = (key + (counter + 1) * _GOLDEN) % _WORD
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, 1), strict=True):
        word = (word ^ (word >> shift)) * multiplier % _WORD
    return word


def _words(key: Tensor, count: int) -> Tensor:
    index = torch.arange(1, count + 1, dtype=torch.int64, device=key.device)
    return mix(index * _signed(_GOLDEN) + key)


def _host_words(key: int, start: int, stop: int) -> NDArray[np.uint64]:
    """:func:`_words` from ``start`` to ``stop``, computed in place."""
    words = np.arange(start + 1, stop + 1, dtype=np.uint64)
    words *= np.uint64(_GOLDEN)
    words += np.uint64(key % _WORD)
    shifted = np.empty_like(words)
    for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, None), strict=True):
        words ^= np.right_shift(words, np.uint64(shift), out=shifted)
        if multiplier is not None:
            words *= np.uint64(multiplier)
    return words


def _uniform_pair(words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two uniforms on (0, 1) from the upper and the lower 32 bits; the half step keeps zero out."""
    low_bits = (1 << 32) - 1
    upper, lower = ((words >> 32) & low_bits).to(dtype), (words & low_bits).to(dtype)
    return (upper + 0.5) * 2.0**-32, (lower + 0.5) * 2.0**-32


def _host_uniforms(words: NDArray[np.uint64], dtype: torch.dtype) -> NDArray[np.floating]:
    """The same as two rows."""
    halves = words.astype("<u8", copy=False).view("<u4").reshape(-1, 2).T[::-1]
    uniforms = halves.astype(_TORCH_TO_NUMPY[dtype], order="C")
    uniforms += 0.5
    uniforms *= 2.0**-32
    return uniforms


def _to_normals(first: Tensor, second: Tensor) -> None:
    """Turn two independent uniforms into two independent normals, in place (Box and Muller 1958)."""
    radius, angle = first.log_().mul_(-2.0).sqrt_(), second.mul_(2.0 * math.pi)
    cosine = torch.cos(angle)
    angle.sin_().mul_(radius)
    radius.mul_(cosine)


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
        return self._draw(_to_normals, shape, dtype)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Independent uniforms on (0, 1), on a lattice of step 2^-32 (float32 rounds the upper half to 2^-24)."""
        return self._draw(None, shape, dtype)

    def _draw(self, transform: _InPlace | None, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        calls, self._calls = self._calls, self._calls + 1
        count = math.prod(shape)
        half = (count + 1) // 2
        if _on_host(self.key):
            numbers = _drawn_on_host(_advanced(int(self.key), calls), half, transform, dtype)
        else:
            first, second = _uniform_pair(_words(advance(self.key, calls), half), dtype)
            if transform is not None:
                transform(first, second)
            numbers = torch.cat((first, second))
        return numbers[:count].view(tuple(shape))


def _drawn_on_host(key: int, half: int, transform: _InPlace | None, dtype: torch.dtype) -> Tensor:
    """What the tensor operations give, chunk by chunk so that it stays in the cache."""
    chunks = []
    for start in range(0, half, _CHUNK):
        pair = _host_uniforms(_host_words(key, start, min(start + _CHUNK, half)), dtype)
        if transform is not None:
            transform(torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))
        chunks.append(pair)
    numbers = chunks[0] if len(chunks) == 1 else np.concatenate(chunks or [np.empty((2, 0))], axis=1)
    return torch.from_numpy(numbers.reshape(-1)).to(dtype)
