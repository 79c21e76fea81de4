"""One random stream per image: where every draw of a corruption comes from."""

import numpy as np

from chaosgate.corruptions.tables import NUMBER

_WORD = 1 << 64


def generator(seed: int, name: str, severity: int, index: int) -> np.random.Generator:
    r"""The stream of one (seed, corruption, severity, image index), a pure function of these four.

    Philox is counter based: (seed, corruption, severity) make its key, the index of the image stands in the upper half
    of its 256-bit counter, and each image may use :math:`2^{128}` blocks before it would meet its neighbour. Nothing
    depends on the order of the calls or on the number of workers.

    >>> a = generator(0, "shot_noise", 3, index=7).integers(100, size=4)
    >>> b = generator(0, "shot_noise", 3, index=7).integers(100, size=4)
    >>> bool((a == b).all())
    True
    """
    for label, value in (("seed", seed), ("index", index)):
        if not 0 <= value < _WORD:
            raise ValueError(f"{label} {value} is outside 0 .. 2**64 - 1; it names a random stream.")
    key = int(seed) + _WORD * (8 * NUMBER[name] + int(severity))
    return np.random.Generator(np.random.Philox(key=key, counter=int(index) * _WORD * _WORD))


def words(stream: np.random.Generator, shape: tuple[int, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]":
    """Independent uniform 32-bit words of the given shape (raw output: several times faster than ``integers``)."""
    count = int(np.prod(shape))
    raw = np.asarray(stream.bit_generator.random_raw((count + 1) // 2), dtype="<u8")
    return raw.view("<u4")[:count].reshape(shape)
