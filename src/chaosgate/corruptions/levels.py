r"""From real values back to grey levels: truncation, as the benchmark ends with it, and what it needs to be fast.

Truncation turns an error of :math:`10^{-6}` into a whole grey level wherever the exact value is an integer, and it is
one in every flat region. There the benchmark's double precision lands on :math:`n` or on :math:`n - 1` depending on
the last bit of the filter weights. The fast filters add in another order or in float32, where that bit is lost; they
take it from a table of what the benchmark does to constant images (``drops``). What remains are isolated values that
come within the rounding error of an integer by chance.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Precision = Literal["float32", "float64"]
Drops = npt.NDArray[np.bool_]

SLACK = {np.dtype(np.float32): 1.5e-4, np.dtype(np.float64): 1e-10}
"""Bounds on the rounding error of a filtered value on the 0..255 scale."""


def truncate(values: npt.NDArray[Any]) -> Bytes:
    r"""The benchmark's last step, :math:`\lfloor 255 \min(1, \max(0, x)) \rfloor`.

    >>> truncate(np.array([-0.1, 0.5, 0.999, 1.2])).tolist()
    [0, 127, 254, 255]
    """
    return np.asarray(np.clip(values, 0, 1) * 255).astype(np.uint8)


def truncate_filtered(values: npt.NDArray[Any], drops: Drops | None) -> Bytes:
    """Clip values to [0, 255] and truncate them; ``drops[n]``: what should be exactly ``n`` becomes ``n - 1``.

    Works in the memory of ``values``, which is overwritten: fresh pages cost as much as the arithmetic.
    """
    slack = values.dtype.type(SLACK[values.dtype])
    np.clip(values, 0, 255, out=values)
    values += slack
    upper: Bytes = values.astype(np.uint8)
    if drops is not None:
        values -= 2 * slack
        flat = upper.reshape(-1)
        close = np.flatnonzero(flat != values.astype(np.int16).reshape(-1))
        flat[close] -= drops[flat[close]]
    return upper


def drops(flat: Bytes) -> Drops | None:
    """The table for `truncate_filtered`, from the levels that constant images of all 256 levels end in."""
    lower = flat == np.arange(256) - 1
    return lower if lower.any() else None


def bands(shape: tuple[int, ...], values: int = 16384) -> Iterator[slice]:
    """Cut an (H, W, C) image into bands of whole rows; what is computed on one stays in the processor's cache."""
    rows = max(1, values // max(1, shape[1] * shape[2]))
    return (slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows))
