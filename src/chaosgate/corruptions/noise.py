r"""Pointwise noise as exact distributions of gray levels.

Noise that is the same for every channel value and results in a gray level is a stochastic matrix

.. math:: K(g, k) = \Pr(\text{output} = k \mid \text{input} = g), \qquad g, k \in \{0, \dots, 255\},

because inputs are 8-bit. The matrix of each noise follows from its formula with the benchmark's
clipping and truncation, :math:`\lfloor 255 \min(1, \max(0, \cdot)) \rfloor`. It is rounded to
multiples of :math:`2^{-32}` and sampled by Walker's alias method with one uniform 32-bit word per
value: 8 bits choose a column, 24 bits decide between the column and its alias. The samples follow
the rounded matrix exactly, within :math:`2^{-25}` of :math:`K` in total variation, at
a fraction of the cost of normal or Poisson variates.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from chaosgate.corruptions.levels import Bytes, Plane

Words = npt.NDArray[np.uint32]
Law = Plane

_LEVELS = np.arange(256)
_COLUMN = 1 << 24  # 256 columns of 2**24 make 2**32


def gaussian_law(sigma: float) -> Law:
    r"""Law of :math:`x + \sigma z`; level k collects :math:`k \le g + 255\sigma z < k + 1`."""
    edges = np.arange(1, 256)[None, :] - _LEVELS[:, None]
    return _from_cdf(special.ndtr(edges / (255.0 * sigma)))


def speckle_law(sigma: float) -> Law:
    r"""Multiplicative :math:`x + x \sigma z`; black stays black."""
    gray = _LEVELS[1:, None]
    law = np.zeros((256, 256))
    law[1:] = _from_cdf(special.ndtr((np.arange(1, 256)[None, :] - gray) / (gray * sigma)))
    law[0, 0] = 1.0
    return law


def shot_law(photons: float) -> Law:
    r"""Law of :math:`\mathrm{Poisson}(c x) / c`, with :math:`c` photons at white."""
    counts = np.arange(photons)  # c photons or more are white
    mean = photons * _LEVELS[:, None] / 255.0
    weights = np.exp(special.xlogy(counts, mean) - mean - special.gammaln(counts + 1.0))
    law = np.zeros((256, 256))
    np.add.at(law.T, (counts / float(photons) * 255).astype(np.intp), weights.T)
    law[:, 255] += special.gammainc(photons, mean[:, 0])
    return law


def impulse_law(amount: float) -> Law:
    r"""Law of salt and pepper: black or white with probability ``amount / 2`` each, unchanged
    otherwise.
    """
    law = np.eye(256) * (1.0 - amount)
    law[:, 0] += amount / 2
    law[:, 255] += amount / 2
    return law


def draw(law: Callable[[float], Law], image: Bytes, words: Words, **parameter: float) -> Bytes:
    """Noise of a law with its one parameter; one uniform 32-bit word per value of the image."""
    return act(image, words, _table(law, *parameter.values()))


def quantize(law: Law) -> npt.NDArray[np.int64]:
    r"""Round rows to multiples of :math:`2^{-32}` that sum to one, largest remainders first."""
    scaled = law / law.sum(axis=1, keepdims=True) * 2.0**32
    counts: npt.NDArray[np.int64] = np.floor(scaled).astype(np.int64)
    rank = np.argsort(np.argsort(counts - scaled, axis=1, kind="stable"), axis=1)
    counts += rank < 2**32 - counts.sum(axis=1, keepdims=True)
    return counts


def alias_table(counts: npt.NDArray[np.int64]) -> Words:
    r"""Walker's table for rows of 256 integers that sum to :math:`2^{32}`, exact in integers.

    Column :math:`j` of a row holds :math:`2^{24}` units: ``entry >> 8`` of them belong to level
    :math:`j`, the others to its alias ``entry & 255``; the alias of a full column is itself. All
    rows are processed together, one column per step: while the donor has a full column or more, it
    fills the next incomplete column; then the donor is incomplete and is filled by the next donor.
    """
    rows = np.arange(len(counts))
    order = np.argsort(counts < _COLUMN, axis=1, kind="stable")  # givers first, then the poor
    giving, taking = np.zeros_like(rows), (counts >= _COLUMN).sum(axis=1)
    giver = order[:, 0]
    rest = counts[rows, giver]
    table = np.zeros(counts.shape, dtype=np.uint32)
    for _ in range(256):
        gives = (rest >= _COLUMN) & (taking < 256)
        following = order[rows, np.minimum(giving + 1, 255)]
        settled = np.where(gives, order[rows, np.minimum(taking, 255)], giver)
        own = np.where(gives, counts[rows, settled], rest)
        alias = np.where(gives, giver, following)
        table[rows, settled] = np.where(own == _COLUMN, settled, own * 256 + alias)
        rest = np.where(gives, rest, counts[rows, following]) - (_COLUMN - own)
        giver = alias
        giving += ~gives
        taking += gives
    return table


def act(image: Bytes, words: Words, table: Words) -> Bytes:
    """Sample every gray level: the low byte of the word is the column, the upper 24 bits are
    compared with the threshold.
    """
    column = words.astype(np.uint8)
    entry = table.reshape(-1).take((image.astype(np.uint16) << 8) | column)
    stays = words < (entry & np.uint32(0xFFFFFF00))
    alias = entry.astype(np.uint8)
    # A choice without branches: random branches cost twenty times as much as these three byte
    # operations.
    return alias ^ ((column ^ alias) & -stays.view(np.uint8))


@lru_cache(maxsize=64)
def _table(law: Callable[[float], Law], parameter: float) -> Words:
    return alias_table(quantize(law(parameter)))


def _from_cdf(below: Law) -> Law:
    """Rows of P(output < k), k = 1..255, to rows of P(output = k); both ends collect what is
    clipped.
    """
    return np.diff(below, axis=1, prepend=0.0, append=1.0)
