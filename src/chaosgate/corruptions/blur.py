r"""Gaussian, defocus, glass, motion and zoom blur.

*Glass.* The benchmark's code exchanges two pixels, but on array views, so the second assignment
reads the result of the first. The effect is the copy :math:`x_{h,w} \leftarrow
x_{h + \delta_y,\, w + \delta_x}`. The copies run from the bottom right to the top left and use
earlier results, so a scan is a chain of pointers rather than a gather. Following the chains of all
pixels at once gives an image that is bit-identical to that of the loop.

*Motion.* The benchmark used ImageMagick, which rounds to the nearest gray level, as here. The
package ``imagecorruptions`` truncates, so its images are half a gray level darker on average.
"""

from functools import lru_cache
from math import ceil
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from scipy import ndimage, sparse

from chaosgate.corruptions.levels import (
    Array,
    Bytes,
    Drops,
    Plane,
    Precision,
    drops,
    truncate,
    truncate_filtered,
)


def gaussian_taps(sigma: float) -> Plane:
    r"""Sampled Gaussian, normalized, of radius :math:`\lfloor 4 \sigma + 1/2 \rfloor`."""
    radius = int(4.0 * sigma + 0.5)
    taps = np.exp(-0.5 / sigma**2 * np.arange(-radius, radius + 1) ** 2)
    return np.asarray(taps / taps.sum(), dtype=np.float64)


def gaussian_blur(image: Bytes, sigma: float, precision: Precision = "float32") -> Bytes:
    r"""Gaussian blur of an (H, W, C) image, edges replicated, radius four sigma, truncated to gray
    levels.

    In float32 (sigma of 1.6 and more) one or two values in ten thousand of a photograph are one
    level off. With 42 % white values it is 2 %, with 89 % it is 5 to 8 % (measured), because near
    white the exact result is a whole level less 1e-4.
    """
    if precision == "float64":
        return _exact_gaussian(image, sigma)
    taps = gaussian_taps(sigma)
    if len(taps) == 1:
        return image.copy()
    depth = cv2.CV_64F if len(taps) <= 13 else cv2.CV_32F  # where it costs little, be exact
    values = cv2.sepFilter2D(image, depth, taps, taps, borderType=cv2.BORDER_REPLICATE)
    return truncate_filtered(values.reshape(image.shape), _gaussian_drops(sigma))


def defocus_blur(
    image: Bytes, radius: float, alias: float, precision: Precision = "float32"
) -> Bytes:
    """Correlation of an (H, W, C) image with a softened disk, mirrored at the edges without
    repeating them.

    The weights are not normalized: at severities 4 and 5 of the 224-pixel table they sum to 1.013
    and 1.011.
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
    """The kernel of the defocus: a disk on a 17 x 17 grid (larger for a radius above 8), softened
    by a small Gaussian.

    The Gaussian is cut off and mirrored at the edge of the grid, so a disk that touches the edge
    gains weight.
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


def draw_offsets(
    stream: np.random.Generator, shape: tuple[int, ...], given: dict[str, Any]
) -> Bytes:
    r"""Sources of all copies, shape (scans, H - 2d, W - 2d) for reach :math:`d`, uniform on
    :math:`0..4d^2 - 1`.

    Entry [t, i, j] belongs to the pixel (d + 1 + i, d + 1 + j) and means
    :math:`(\delta_y, \delta_x) = \mathrm{divmod}(\cdot, 2d) - d`, so both lie in :math:`\{-d,
    \dots, d - 1\}`.
    """
    reach = given["reach"]
    size = (given["scans"], max(0, shape[0] - 2 * reach), max(0, shape[1] - 2 * reach))
    return stream.integers(0, 4 * reach * reach, size=size, dtype=np.uint8)


def glass_blur(
    image: Bytes,
    offsets: Bytes,
    sigma: float,
    reach: int,
    scans: int,
    precision: Precision = "float32",
) -> Bytes:
    """Blur, copy near neighbors in ``scans`` scans, blur again; (H, W, C) image, ``offsets`` as in
    `draw_offsets`.
    """
    blurred = gaussian_blur(image, sigma, precision)
    moved = take_pixels(blurred, sources(offsets, image.shape, reach))
    return gaussian_blur(moved, sigma, precision)


def sources(offsets: Bytes, shape: tuple[int, ...], reach: int) -> npt.NDArray[np.intp]:
    """Flat index of the pixel that each of the H * W pixels shows after all scans."""
    height, width = shape[:2]
    row, column = np.divmod(np.arange(4 * reach * reach), 2 * reach)
    jump = (row - reach) * width + column - reach
    here = total = np.arange(height * width)
    grid = np.zeros((height, width), dtype=np.intp)
    step, position = grid.reshape(-1), np.empty_like(here)
    for scan in offsets:
        grid[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = jump.take(scan)
        np.add(here, step, out=position)
        # A forward jump lands on a pixel that has been replaced before: go on from there with that
        # pixel's own jump.
        chasing = np.flatnonzero(step > 0)
        while chasing.size:
            onward = step.take(position.take(chasing))
            position[chasing] += onward
            chasing = chasing[onward > 0]
        total = total.take(position)
    return total


def take_pixels(image: Bytes, index: npt.NDArray[np.intp]) -> Bytes:
    """Gather whole pixels of an (H, W, C) image; three channels are packed into one 32-bit word."""
    if image.shape[2] == 1:
        return image.reshape(-1).take(index).reshape(image.shape)
    packed = cv2.cvtColor(image, cv2.COLOR_RGB2RGBA).view(np.uint32).reshape(-1)
    moved = packed.take(index).view(np.uint8).reshape(*image.shape[:2], 4)
    return np.asarray(cv2.cvtColor(moved, cv2.COLOR_RGBA2RGB), dtype=np.uint8)


def draw_angle(stream: np.random.Generator, shape: object = None, given: object = None) -> float:
    """A direction in degrees, uniform between -45 and 45."""
    return float(stream.uniform(-45, 45))


def motion_blur(
    image: Bytes, angle: float, radius: float, sigma: float, precision: Precision = "float32"
) -> Bytes:
    r"""Half-Gaussian average of an (H, W, C) image along one direction, edges replicated.

    .. math::
        y(p) = \sum_{i=0}^{2r} k_i\, x(p + o_i), \qquad k_i \propto e^{-i^2 / 2\sigma^2}, \qquad
        o_i = (\lceil i \sin a - \tfrac12 \rceil, \lceil i \cos a - \tfrac12 \rceil)

    with offsets :math:`o_i` as (row, column).

    The sum is rounded to the nearest gray level, as in the benchmark, not truncated.
    """
    height, width = image.shape[:2]
    down, right, weights = motion_path(angle, radius, sigma)
    top, left = max(0, -int(down.min())), max(0, -int(right.min()))
    bottom, far = max(0, int(down.max())), max(0, int(right.max()))
    bordered = cv2.copyMakeBorder(image, top, bottom, left, far, cv2.BORDER_REPLICATE)
    padded = bordered.astype(precision)
    total = np.full(image.shape[: padded.ndim], 0.5, dtype=precision)
    for dy, dx, weight in zip(down.tolist(), right.tolist(), weights.tolist(), strict=True):
        shifted = padded[top + dy : top + dy + height, left + dx : left + dx + width]
        cv2.scaleAdd(shifted, weight, total, dst=total)
    return total.astype(np.uint8).reshape(image.shape)


def motion_path(
    angle: float, radius: float, sigma: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Plane]:
    """Row offsets, column offsets and weights of the taps; taps that fall on the same pixel are
    merged.
    """
    weights = _half_gaussian(radius, sigma)
    step = np.arange(len(weights))
    down = np.ceil(step * np.sin(np.deg2rad(angle)) - 0.5).astype(np.intp)
    right = np.ceil(step * np.cos(np.deg2rad(angle)) - 0.5).astype(np.intp)
    first = np.flatnonzero(np.r_[True, (np.diff(down) != 0) | (np.diff(right) != 0)])
    return down[first], right[first], np.add.reduceat(weights, first)


@lru_cache(maxsize=32)
def _half_gaussian(radius: float, sigma: float) -> Plane:
    weights = np.exp(-(np.arange(2 * int(np.ceil(radius)) + 1) ** 2) / (2.0 * sigma**2))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def zoom_crop(size: int, factor: float) -> slice:
    """The smallest central crop of ``size`` pixels that covers them again when enlarged."""
    inner = ceil(size / factor)
    return slice((size - inner) // 2, (size - inner) // 2 + inner)


def zoom_center(image: Array, factor: float) -> Array:
    """Enlarge the center of (H, W, C) floats to H x W by SciPy's linear zoom (first and last
    samples stay in place).
    """
    height, width = image.shape[:2]
    inner = image[zoom_crop(height, factor), zoom_crop(width, factor)]
    grown = ndimage.zoom(inner, (factor, factor, 1), order=1)
    top, left = (grown.shape[0] - height) // 2, (grown.shape[1] - width) // 2
    return np.asarray(grown[top : top + height, left : left + width])


def zoom_blur(image: Bytes, stop: float, step: float, precision: Precision = "float32") -> Bytes:
    r"""Average of an (H, W, C) image and its centered enlargements by :math:`1, 1 + s, 1 + 2s,
    \dots` below ``stop``.

    The number of factors follows NumPy's floating ``arange``, which at severity 1 includes the end.
    The benchmark computes only this corruption in float32; the reference mode does the same.
    """
    factors = np.arange(1, stop, step)
    if precision == "float64":
        pixels = (image / 255.0).astype(np.float32)
        total = np.zeros_like(pixels)
        for factor in factors:
            total += zoom_center(pixels, factor)
        return truncate((pixels + total) / (len(factors) + 1))
    height, width, channels = image.shape
    flat = image.astype(np.float32).reshape(height, -1)
    # Both axes are interpolated as rows, which are contiguous; the second time on the transposed
    # picture.
    across = np.ascontiguousarray(cv2.transpose(image)).astype(np.float32).reshape(width, -1)
    for factor in factors:
        tall = (zoom_matrix(height, factor) @ flat).reshape(height, width, channels)
        across += zoom_matrix(width, factor) @ cv2.transpose(tall).reshape(width, -1)
    across /= len(factors) + 1
    average = cv2.transpose(across.reshape(width, height, channels)).reshape(image.shape)
    return truncate_filtered(average, _zoom_drops(len(factors)))


@lru_cache(maxsize=128)
def zoom_matrix(size: int, factor: float) -> Any:
    """The linear map of `zoom_center` along one axis: a sparse (size, size) matrix with two entries
    in each row.
    """
    crop = zoom_crop(size, factor)
    inner = crop.stop - crop.start
    length = round(inner * factor)
    place = (np.arange(size) + (length - size) // 2) * ((inner - 1) / max(1, length - 1))
    lower = np.minimum(place.astype(np.intp), max(0, inner - 2))
    share = place - lower
    rows = np.repeat(np.arange(size), 2)
    columns = crop.start + np.minimum(np.stack([lower, lower + 1], axis=1), inner - 1).reshape(-1)
    weights = np.stack([1 - share, share], axis=1).reshape(-1)
    return sparse.csr_array((weights.astype(np.float32), (rows, columns)), shape=(size, size))


@lru_cache(maxsize=16)
def _zoom_drops(count: int) -> Drops | None:
    """Which gray levels the float32 average of ``count`` + 1 equal images truncates downwards."""
    level = (np.arange(256) / 255.0).astype(np.float32)
    total = np.zeros_like(level)
    for _ in range(count):
        total += level
    return drops(truncate((level + total) / (count + 1)))
