r"""The words of :mod:`~chaosgate.field.white` computed by the host itself, with numpy and Python's integers.

On a feature map of 7 x 7 sites the cost of noise is in the number of calls, and twenty of torch's take longer than the
multiplication by the gate. The bits are those of the tensor operations.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORD = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
InPlace = Callable[[Tensor, Tensor], None]
CHUNK = 1 << 15  # words per pass: twenty elementwise passes over this much stay in the cache
_TORCH_TO_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def on_host(number: Tensor) -> bool:
    """Whether reading the number is free: a plain tensor in the host's memory, and nobody is tracing."""
    return type(number) is Tensor and number.device.type == "cpu" and not torch.compiler.is_compiling()


def advanced(key: int, counter: int) -> int:
    """:func:`~chaosgate.field.white.advance` in Python's integers, unsigned."""
    word = (key + (counter + 1) * GOLDEN) % WORD
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, 1), strict=True):
        word = (word ^ (word >> shift)) * multiplier % WORD
    return word


def drawn(keys: Sequence[int], half: int, transform: InPlace | None, dtype: torch.dtype) -> NDArray[np.floating]:
    """Numbers (len(keys), 2 half): under each key what the tensor operations give, chunk by chunk."""
    step = max(1, CHUNK // len(keys))
    chunks = []
    for start in range(0, half, step):
        pair = _uniforms(_words(keys, start, min(start + step, half)), dtype)
        if transform is not None:
            transform(torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))
        chunks.append(pair)
    pairs = chunks[0] if len(chunks) == 1 else np.concatenate(chunks or [_nothing(keys, dtype)], axis=2)
    return pairs.transpose(1, 0, 2).reshape(len(keys), 2 * half)


def _words(keys: Sequence[int], start: int, stop: int) -> NDArray[np.uint64]:
    """Words ``start`` to ``stop`` under every key, a row each, mixed in place."""
    index = np.arange(start + 1, stop + 1, dtype=np.uint64)
    index *= np.uint64(GOLDEN)
    words = np.add.outer(np.array([key % WORD for key in keys], dtype=np.uint64), index)
    shifted = np.empty_like(words)
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, None), strict=True):
        words ^= np.right_shift(words, np.uint64(shift), out=shifted)
        if multiplier is not None:
            words *= np.uint64(multiplier)
    return words


def _uniforms(words: NDArray[np.uint64], dtype: torch.dtype) -> NDArray[np.floating]:
    """Two uniforms of each word, (2, keys, words): the upper half of its bits, and the lower."""
    halves = words.astype("<u8", copy=False).view("<u4").reshape(*words.shape, 2)
    uniforms = np.stack((halves[..., 1], halves[..., 0])).astype(_TORCH_TO_NUMPY[dtype])
    uniforms += 0.5
    uniforms *= 2.0**-32
    return uniforms


def to_normals(first: Tensor, second: Tensor) -> None:
    """Turn two independent uniforms into two independent normals, in place (Box and Muller 1958)."""
    radius, angle = first.log_().mul_(-2.0).sqrt_(), second.mul_(2.0 * math.pi)
    cosine = torch.cos(angle)
    angle.sin_().mul_(radius)
    radius.mul_(cosine)


def _nothing(keys: Sequence[int], dtype: torch.dtype) -> NDArray[np.floating]:
    return np.empty((2, len(keys), 0), dtype=_TORCH_TO_NUMPY[dtype])
