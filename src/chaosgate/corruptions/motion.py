"""Motion blur along a line, as ImageMagick does it (the benchmark called that program)."""

from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from chaosgate.corruptions.levels import Bytes, Precision

Values = npt.NDArray[np.floating[Any]]


def draw_angle(stream: np.random.Generator, low: float = -45.0, high: float = 45.0) -> float:
    """A direction in degrees, uniform between the two bounds."""
    return float(stream.uniform(low, high))


def motion_blur(image: Bytes, angle: float, radius: float, sigma: float, precision: Precision = "float32") -> Bytes:
    r"""Half-Gaussian average of an (H, W, C) image along one direction, edges replicated.

    .. math:: y(p) = \sum_{i=0}^{2r} k_i\, x(p + o_i), \qquad k_i \propto e^{-i^2 / 2\sigma^2}, \qquad
              o_i = (\lceil i \sin a - \tfrac12 \rceil, \lceil i \cos a - \tfrac12 \rceil)

    with offsets :math:`o_i` as (row, column).

    The sum is rounded to the nearest grey level, not truncated, because the program that made the benchmark does so.
    """
    height, width = image.shape[:2]
    down, right, weights = path(angle, radius, sigma)
    top, left = max(0, -int(down.min())), max(0, -int(right.min()))
    bottom, far = max(0, int(down.max())), max(0, int(right.max()))
    depth: type[np.floating[Any]] = np.float32 if precision == "float32" else np.float64
    padded: Values = cv2.copyMakeBorder(image, top, bottom, left, far, cv2.BORDER_REPLICATE).astype(depth)
    total = np.full(image.shape[: padded.ndim], 0.5, dtype=depth)
    for dy, dx, weight in zip(down.tolist(), right.tolist(), weights.tolist(), strict=True):
        shifted = padded[top + dy : top + dy + height, left + dx : left + dx + width]
        cv2.scaleAdd(shifted, weight, total, dst=total)
    return total.astype(np.uint8).reshape(image.shape)


def path(
    angle: float, radius: float, sigma: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Row offsets, column offsets and weights of the taps; taps that fall on the same pixel are merged."""
    weights = _half_gaussian(radius, sigma)
    step = np.arange(len(weights))
    down = np.ceil(step * np.sin(np.deg2rad(angle)) - 0.5).astype(np.intp)
    right = np.ceil(step * np.cos(np.deg2rad(angle)) - 0.5).astype(np.intp)
    first = np.flatnonzero(np.r_[True, (np.diff(down) != 0) | (np.diff(right) != 0)])
    return down[first], right[first], np.add.reduceat(weights, first)


@lru_cache(maxsize=32)
def _half_gaussian(radius: float, sigma: float) -> npt.NDArray[np.float64]:
    weights = np.exp(-(np.arange(2 * int(np.ceil(radius)) + 1) ** 2) / (2.0 * sigma**2))
    return np.asarray(weights / weights.sum(), dtype=np.float64)
