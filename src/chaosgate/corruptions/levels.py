r"""From real values to gray levels: the benchmark's final truncation, made fast.

If the exact value is an integer, truncation turns an error of :math:`10^{-6}` into a whole gray
level. This happens in every flat region: there the benchmark's double precision gives :math:`n` or
:math:`n - 1`, depending on the last bit of the filter weights. The fast filters add in another
order or in float32, so they use a table of the benchmark's results for constant images (``drops``).
Differences remain only at isolated values that are close to an integer by chance.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Precision = Literal["float32", "float64"]
Drops = npt.NDArray[np.bool_]
Plane = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

SLACK = {np.dtype(np.float32): 1.5e-4, np.dtype(np.float64): 1e-10}
"""Bounds on the rounding error of a filtered value on the 0..255 scale."""

# Which of (V, V(1-S), V(1-fS), V(1-(1-f)S)) the red, the green and the blue channel are in each
# sixth of the circle.
_SIXTHS = np.array([[0, 2, 1, 1, 3, 0], [3, 0, 0, 2, 1, 1], [1, 1, 3, 0, 0, 2]], dtype=np.intp)


def truncate(values: Array) -> Bytes:
    r"""The benchmark's last step, :math:`\lfloor 255 \min(1, \max(0, x)) \rfloor`.

    >>> truncate(np.array([-0.1, 0.5, 0.999, 1.2])).tolist()
    [0, 127, 254, 255]
    """
    return np.asarray(np.clip(values, 0, 1) * 255).astype(np.uint8)


def truncate_filtered(values: Array, drops: Drops | None) -> Bytes:
    """Clip values to [0, 255] and truncate them; if ``drops[n]``, the exact value ``n``
    becomes ``n - 1``.

    ``values`` is overwritten, because new memory costs as much time as the arithmetic.
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
    """The table for `truncate_filtered`, from the results for constant images of all 256 levels."""
    lower = flat == np.arange(256) - 1
    return lower if lower.any() else None


def bands(shape: tuple[int, ...]) -> Iterator[slice]:
    """Cut an (H, W, C) image into bands of whole rows, which fit into the processor's cache."""
    rows = max(1, 16384 // max(1, shape[1] * shape[2]))
    return (slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows))


def in_hsv(image: Bytes, change: Callable[[Plane, Plane], tuple[Plane, Plane]]) -> Bytes:
    r"""Apply ``change`` to saturation and value of an (H, W, 3) image, both in [0, 1]; the hue
    does not change.

    With :math:`V = \max(r, g, b)` and :math:`S = 1 - \min(r, g, b) / V` the color is rebuilt from
    the four numbers :math:`V`, :math:`V(1 - S)`, :math:`V(1 - fS)` and :math:`V(1 - (1 - f)S)`,
    where :math:`f` is the position within a sixth of the hue circle. Many results are whole gray
    levels up to the last bit, so the order of operations matters for the truncation; both modes use
    the benchmark's order in double precision.
    """
    return np.concatenate([_change_hsv(image[rows], change) for rows in bands(image.shape)])


def _change_hsv(image: Bytes, change: Callable[[Plane, Plane], tuple[Plane, Plane]]) -> Bytes:
    # Choices are made by arithmetic on 0 and 1: branches on the channels of a photograph cannot be
    # predicted.
    r, g, b = (
        np.ascontiguousarray(image[..., channel]).reshape(-1) / 255.0 for channel in range(3)
    )
    value = np.maximum(np.maximum(r, g), b)
    spread = value - np.minimum(np.minimum(r, g), b)
    gray = spread == 0
    third = np.maximum(
        (g == value).view(np.uint8), (b == value).view(np.uint8) * np.uint8(2)
    )  # red, green, blue
    third *= ~gray  # gray counts as red
    here = np.arange(len(r))
    difference = np.concatenate([g - b, b - r, r - g]).take(third.astype(np.intp) * len(r) + here)
    turn = (2.0 * third + difference / (spread + gray)) / 6.0
    turn += turn < 0
    turn *= 6.0
    sixth = np.floor(turn)
    part = turn - sixth
    saturation, value = change(spread / (value + (value == 0)), value)
    levels = (1 - saturation, 1 - part * saturation, 1 - (1 - part) * saturation)
    corners = np.concatenate([truncate(value), *(truncate(value * level) for level in levels)])
    place = sixth.astype(np.intp)
    place[place == 6] = 0
    planes = [corners.take(_SIXTHS[channel].take(place) * len(r) + here) for channel in range(3)]
    return np.stack(planes, axis=1).reshape(image.shape)
