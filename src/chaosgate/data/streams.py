"""Random numbers of the data side: each one is a function of what it is for, none comes from a global stream."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray

LARGEST_SEED = 2**63 - 1


def stream_key(purpose: str, *words: int, size: int = 8) -> int:
    """Hash a purpose and whole numbers into an integer of ``size`` bytes; no two argument lists share an encoding."""
    text = "/".join([purpose, *(str(int(word)) for word in words)])
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "little")


def epoch_order(seed: int, epoch: int, length: int) -> NDArray[np.int64]:
    """Order in which the epoch visits ``length`` images: the ranks of that many Philox words.

    Only the raw words are used: numpy promises their stability over versions, which it does not for ``permutation``.

    >>> sorted(epoch_order(seed=0, epoch=3, length=5).tolist())
    [0, 1, 2, 3, 4]
    """
    words = np.random.Philox(key=stream_key("epoch order", seed, epoch, size=16)).random_raw(length)
    return np.argsort(words, kind="stable").astype(np.int64)


def sample_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """Generator of the augmentation of image ``index`` in ``epoch``, whichever process or worker asks for it."""
    return torch.Generator().manual_seed(stream_key("augmentation", seed, epoch, index, size=7))


@contextmanager
def lent_streams(key: int) -> Iterator[None]:
    """The global streams of Python, NumPy and torch (CPU), seeded with ``key`` and put back afterwards.

    For tools that know no other source, such as timm's: what they draw becomes a function of ``key``, and nobody
    else's draws move.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(key)
        np.random.seed(key % 2**32)
        torch.default_generator.manual_seed(key)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
