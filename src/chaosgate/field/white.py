r"""White noise as a pure function of a key: the same key gives the same numbers, on any device, in
any order.

Noise in a network must be reproducible after a restart and under activation checkpointing, leave
the global random stream unchanged, and compile into one graph. A ``torch.Generator`` cannot do all
of this, so the bits come from a counter: number :math:`i` of key :math:`k` is ``mix(k + (i + 1)
g)`` with the finalizer and the odd constant :math:`g` of SplitMix64 (Steele, Lea, Flood 2014). Keys
are 0-dimensional int64 tensors on the device of the features, so no step waits for the host. On the
CPU, keys are plain integers and numpy mixes the words, because torch's overhead would dominate on
small grids.

>>> key = torch.tensor(fold(0, "layer4"))        # of a run and a place
>>> noise = Noise(advance(key, 17))              # of the 17th step there
>>> noise.normal((64, 1, 7, 7)).shape
torch.Size([64, 1, 7, 7])
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 15
"""Words that a CPU converts at a time, so that thirty elementwise passes stay in its cache.
"""

Words = TypeVar("Words", Tensor, "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]", int)
"""64-bit words in torch (as signed integers) or numpy, or one word."""

_WORD = 1 << 64
_ALL_BITS = _WORD - 1
_LOW_BITS = (1 << 32) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 1)
_SHIFTS = (30, 27, 31)
_CPU = torch.device("cpu")
_PLACES = np.arange(1, CHUNK + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def mix(words: Words) -> Words:
    """SplitMix64's finalizer, a bijection of 64-bit words in which every input bit changes about
    half of the output bits.
    """
    signed, plain = isinstance(words, Tensor), type(words) is int
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=True):
        upper = words >> shift
        if signed:  # >> copies the sign bit; the mask makes it the unsigned shift of the definition
            upper &= (1 << (64 - shift)) - 1
        words = words ^ upper  # type: ignore[assignment]  # to numpy's stubs, an unsigned word shifted by an int is signed
        if multiplier != 1:
            words *= _signed(multiplier) if signed else multiplier
        if plain:  # Python's integers do not wrap around by themselves
            words &= _ALL_BITS
    return words


def fold(*parts: int | str) -> int:
    """One int64 from names and numbers, as in ``fold(seed, rank, "layer4")``; the same in every
    process.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True
    )


Key = Tensor | int
"""A key as a tensor on its device, or as a plain integer on the CPU."""


def advance(key: Key, counter: Tensor | int) -> Key:
    """The key of the ``counter``-th event under ``key`` (both may live on the device)."""
    if not (type(key) is int and type(counter) is int) and not torch.compiler.is_compiling():
        key, counter = _on_host(key), _on_host(counter)
    if type(key) is int and type(counter) is int:
        return _signed(mix((key + (counter + 1) * _GOLDEN) & _ALL_BITS))
    if isinstance(counter, int):
        assert isinstance(key, Tensor)
        return mix(key + _signed((counter + 1) * _GOLDEN))
    return mix((counter + 1) * _signed(_GOLDEN) + key)


def _on_host(number: Key) -> Key:
    """A number in the memory of the CPU as a plain integer; any other as it is, since reading it
    would wait.
    """
    return int(number) if type(number) is Tensor and number.device == _CPU else number


class Noise:
    """White noise for one key. Every call uses its own sub-stream, in the order of calls.

    Args:
        key: A plain integer, or a 0-dimensional int64 tensor.
        device: Device of the numbers; None is the device of the key, the CPU for an integer.
    """

    def __init__(self, key: Key, device: torch.device | None = None) -> None:
        self.key = key
        self.device = device if device is not None else _CPU if isinstance(key, int) else key.device
        self._calls = 0

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Independent standard normals (Box-Muller; 32-bit uniforms, so no absolute value above
        6.8).
        """
        return self._draw(shape, dtype, normal=True)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Independent uniforms on (0, 1), on a lattice of step 2^-32 (float32 rounds the upper half
        to 2^-24).
        """
        return self._draw(shape, dtype, normal=False)

    def _draw(self, shape: Sequence[int], dtype: torch.dtype, normal: bool) -> Tensor:
        """Two numbers from each word: first those of all upper halves, then of all lower halves."""
        key = advance(self.key, self._calls)
        self._calls += 1
        count = math.prod(shape)
        half = (count + 1) // 2
        if isinstance(key, int) and self.device == _CPU:
            numbers = np.empty((2, half), np.float64 if dtype == torch.float64 else np.float32)
            for start in range(0, half, CHUNK):
                _fill_on_host(numbers[:, start : start + CHUNK], key, start, normal)
            return torch.from_numpy(numbers.reshape(-1)[:count].reshape(shape))
        index = torch.arange(1, half + 1, dtype=torch.int64, device=self.device)
        bits = mix(index.mul_(_signed(_GOLDEN)).add_(key))
        pairs = torch.empty(2, half, dtype=dtype, device=self.device)
        pairs[0] = (bits >> 32).bitwise_and_(_LOW_BITS)
        pairs[1] = bits.bitwise_and_(_LOW_BITS)
        pairs.add_(0.5).mul_(2.0**-32)
        if normal:
            radius, angle = pairs[0].log_().mul_(-2.0).sqrt_(), pairs[1].mul_(2.0 * math.pi)
            cosine = angle.cos()
            angle.sin_().mul_(radius)
            radius.mul_(cosine)
        return pairs.view(-1)[:count].view(shape)


def _fill_on_host(
    pairs: "np.ndarray[tuple[int, ...], np.dtype[Any]]", key: int, start: int, normal: bool
) -> None:
    """Uniforms on (0, 1), or normals (Box and Muller 1958), of the words from ``start`` on.

    The half step keeps zero out. Numpy multiplies, which is exact in both libraries and costs less
    on few numbers; torch computes the functions.
    """
    count = pairs.shape[1]
    words = mix(_PLACES[:count] + np.uint64((key + start * _GOLDEN) % _WORD))
    pairs[::-1] = words.astype("<u8", copy=False).view("<u4").reshape(count, 2).T
    pairs += 0.5
    pairs *= 2.0**-32
    if not normal:
        return
    radius, angle = pairs
    cosine = np.empty_like(angle)
    dtype = torch.float64 if pairs.dtype == np.float64 else torch.float32
    radii, angles, cosines = (torch.frombuffer(x, dtype=dtype) for x in (radius, angle, cosine))
    radii.log_()
    radius *= -2.0
    radii.sqrt_()
    angle *= 2.0 * math.pi
    torch.cos(angles, out=cosines)
    angles.sin_()
    angle *= radius
    radius *= cosine
