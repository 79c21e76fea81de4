"""Gaussian and disk filters."""

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from scipy import ndimage

from chaosgate.corruptions.levels import Bytes, Drops, Precision, drops, truncate, truncate_filtered

Floats = npt.NDArray[np.float64]


def gaussian_taps(sigma: float, truncate: float = 4.0) -> Floats:
    r"""Sampled Gaussian, normalised, of radius :math:`\lfloor \text{truncate} \cdot \sigma + 1/2 \rfloor`."""
    radius = int(truncate * sigma + 0.5)
    taps = np.exp(-0.5 / sigma**2 * np.arange(-radius, radius + 1) ** 2)
    return np.asarray(taps / taps.sum(), dtype=np.float64)


def gaussian_blur(image: Bytes, sigma: float, precision: Precision = "float32") -> Bytes:
    """Gaussian blur of an (H, W, C) image, edges replicated, radius four sigma, truncated to grey levels."""
    if precision == "float64":
        return _exact_gaussian(image, sigma)
    taps = gaussian_taps(sigma)
    if len(taps) == 1:
        return image.copy()
    depth = cv2.CV_64F if len(taps) <= 13 else cv2.CV_32F  # where it costs little, be exact
    values = cv2.sepFilter2D(image, depth, taps, taps, borderType=cv2.BORDER_REPLICATE)
    return truncate_filtered(values.reshape(image.shape), _gaussian_drops(sigma))


def defocus_blur(image: Bytes, radius: float, alias: float, precision: Precision = "float32") -> Bytes:
    """Correlation of an (H, W, C) image with a softened disk, mirrored at the edges without repeating them.

    The weights are used as they come: at severities 4 and 5 of the 224-pixel table they sum to 1.013 and 1.011.
    """
    if precision == "float64":
        values = cv2.filter2D(image / 255.0, cv2.CV_64F, disk(radius, alias)).reshape(image.shape)
        return truncate(values)
    lens = _cropped_disk(radius, alias)
    if len(lens) <= 11:
        values = cv2.filter2D(image.astype(np.float32), cv2.CV_32F, lens)
    else:  # OpenCV goes through Fourier space, where double precision costs no more
        values = cv2.filter2D(image, cv2.CV_64F, lens)
    return truncate_filtered(values.reshape(image.shape), _disk_drops(radius, alias))


@lru_cache(maxsize=32)
def disk(radius: float, alias: float) -> npt.NDArray[np.float32]:
    """The lens of the defocus: a disk on a 17 x 17 grid (wider beyond radius 8), softened by a small Gaussian.

    The grid cuts the Gaussian off and mirrors it, which is why a disk that touches the edge gains weight.
    """
    reach = np.arange(-8, 8 + 1) if radius <= 8 else np.arange(-radius, radius + 1)
    width = 3 if radius <= 8 else 5
    inside = (reach[None, :] ** 2 + reach[:, None] ** 2 <= radius**2).astype(np.float32)
    lens = cv2.GaussianBlur(inside / inside.sum(), (width, width), sigmaX=alias)
    return np.asarray(lens, dtype=np.float32)


def _exact_gaussian(image: Bytes, sigma: float) -> Bytes:
    values = ndimage.gaussian_filter(image / 255.0, (sigma, sigma, 0), mode="nearest", truncate=4.0)
    return truncate(values)


@lru_cache(maxsize=32)
def _gaussian_drops(sigma: float) -> Drops | None:
    flat = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 3, 256))
    return drops(_exact_gaussian(flat, sigma)[1, 1])


@lru_cache(maxsize=32)
def _disk_drops(radius: float, alias: float) -> Drops | None:
    weight = disk(radius, alias).astype(np.float64).sum()
    return drops(truncate(np.arange(256) / 255.0 * weight))


@lru_cache(maxsize=32)
def _cropped_disk(radius: float, alias: float) -> npt.NDArray[np.float32]:
    """The disk without its margin of weights that cannot be seen (below 1e-12)."""
    lens = disk(radius, alias)
    margin = int((lens.max(axis=0) > 1e-12).argmax())
    return np.ascontiguousarray(lens[margin : len(lens) - margin, margin : len(lens) - margin])
