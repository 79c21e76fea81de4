"""Zoom blur, and the enlarged centre crop that snow needs as well."""

from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from scipy import ndimage, sparse

from chaosgate.corruptions.levels import Bytes, Drops, Precision, drops, truncate, truncate_filtered


class Crop(NamedTuple):
    """Geometry of a centre crop along one axis that is enlarged to ``length`` pixels and trimmed at both ends."""

    start: int
    size: int
    length: int
    trim: int


def crop(size: int, factor: float) -> Crop:
    """The smallest centre crop of ``size`` pixels that covers them again when enlarged by ``factor``."""
    inner = ceil(size / factor)
    length = round(inner * factor)
    return Crop((size - inner) // 2, inner, length, (length - size) // 2)


def enlarge(image: npt.NDArray[Any], factor: float) -> npt.NDArray[Any]:
    """Enlarge the centre of (H, W, C) floats to H x W by SciPy's linear zoom (first and last samples stay in place)."""
    height, width = image.shape[:2]
    rows, columns = crop(height, factor), crop(width, factor)
    inner = image[rows.start : rows.start + rows.size, columns.start : columns.start + columns.size]
    grown = ndimage.zoom(inner, (factor, factor, 1), order=1)
    return np.asarray(grown[rows.trim : rows.trim + height, columns.trim : columns.trim + width])


def zoom_blur(image: Bytes, stop: float, step: float, precision: Precision = "float32") -> Bytes:
    r"""Average of an (H, W, C) image and its centred enlargements by :math:`1, 1 + s, 1 + 2s, \dots` below ``stop``.

    The number of factors follows NumPy's floating ``arange``, which at severity 1 includes its own end. The
    benchmark keeps this one corruption in float32; the reference mode does the same.
    """
    factors = np.arange(1, stop, step)
    if precision == "float64":
        pixels = (image / 255.0).astype(np.float32)
        total = np.zeros_like(pixels)
        for factor in factors:
            total += enlarge(pixels, factor)
        return truncate((pixels + total) / (len(factors) + 1))
    height, width, channels = image.shape
    flat = image.astype(np.float32).reshape(height, -1)
    # Both axes are interpolated as rows, which are contiguous; the second time on the transposed picture.
    across = np.ascontiguousarray(cv2.transpose(image)).astype(np.float32).reshape(width, -1)
    for factor in factors:
        tall = (interpolation(height, factor) @ flat).reshape(height, width, channels)
        across += interpolation(width, factor) @ cv2.transpose(tall).reshape(width, -1)
    across /= len(factors) + 1
    average = cv2.transpose(across.reshape(width, height, channels)).reshape(image.shape)
    return truncate_filtered(average, _drops(len(factors)))


@lru_cache(maxsize=128)
def interpolation(size: int, factor: float) -> Any:
    """The linear map of `enlarge` along one axis: a sparse (size, size) matrix with two entries in each row."""
    start, inner, length, trim = crop(size, factor)
    place = (np.arange(size) + trim) * ((inner - 1) / max(1, length - 1))
    lower = np.minimum(place.astype(np.intp), max(0, inner - 2))
    share = place - lower
    rows = np.repeat(np.arange(size), 2)
    columns = start + np.minimum(np.stack([lower, lower + 1], axis=1), inner - 1).reshape(-1)
    weights = np.stack([1 - share, share], axis=1).reshape(-1)
    return sparse.csr_array((weights.astype(np.float32), (rows, columns)), shape=(size, size))


@lru_cache(maxsize=16)
def _drops(count: int) -> Drops | None:
    """Which grey levels the float32 average of ``count`` + 1 equal images truncates downwards."""
    level = (np.arange(256) / 255.0).astype(np.float32)
    total = np.zeros_like(level)
    for _ in range(count):
        total += level
    return drops(truncate((level + total) / (count + 1)))
