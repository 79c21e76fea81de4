r"""Glass blur: pixels replaced by near neighbours, one after the other, between two Gaussian blurs.

The benchmark writes the exchange of two pixels, but on array views, so that the second assignment reads what the first
has just written: what happens is the copy :math:`x_{h,w} \leftarrow x_{h + \delta_y,\, w + \delta_x}`. The copies run
from the bottom right to the top left and see each other's results, so a scan is a chain of pointers rather than a
gather; following the chains for all pixels at once gives the same image as the loop, bit for bit.
"""

import cv2
import numpy as np
import numpy.typing as npt

from chaosgate.corruptions.filters import gaussian_blur
from chaosgate.corruptions.levels import Bytes, Precision


def draw_offsets(stream: np.random.Generator, shape: tuple[int, ...], reach: int, scans: int) -> Bytes:
    r"""Sources of all copies, shape (scans, H - 2d, W - 2d) for reach :math:`d`, uniform on :math:`0..4d^2 - 1`.

    Entry [t, i, j] belongs to the pixel (d + 1 + i, d + 1 + j) and means
    :math:`(\delta_y, \delta_x) = \mathrm{divmod}(\cdot, 2d) - d`, so both lie in :math:`\{-d, \dots, d - 1\}`.
    """
    size = (scans, max(0, shape[0] - 2 * reach), max(0, shape[1] - 2 * reach))
    return stream.integers(0, 4 * reach * reach, size=size, dtype=np.uint8)


def glass_blur(
    image: Bytes, offsets: Bytes, sigma: float, reach: int, scans: int, precision: Precision = "float32"
) -> Bytes:
    """Blur, copy near neighbours in ``scans`` scans, blur again; (H, W, C) image, ``offsets`` as in `draw_offsets`."""
    if len(offsets) != scans:
        raise ValueError(f"offsets for {len(offsets)} scans, the table asks for {scans}; draw them by draw_offsets.")
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
        # A forward jump lands on a pixel that has been replaced before: go on from there with that pixel's own jump.
        chasing = np.flatnonzero(step > 0)
        while chasing.size:
            onward = step.take(position.take(chasing))
            position[chasing] += onward
            chasing = chasing[onward > 0]
        total = total.take(position)
    return total


def take_pixels(image: Bytes, index: npt.NDArray[np.intp]) -> Bytes:
    """Gather whole pixels of an (H, W, C) image; three channels travel as one 32-bit word."""
    if image.shape[2] == 1:
        return image.reshape(-1).take(index).reshape(image.shape)
    packed = cv2.cvtColor(image, cv2.COLOR_RGB2RGBA).view(np.uint32).reshape(-1)
    moved = packed.take(index).view(np.uint8).reshape(*image.shape[:2], 4)
    return np.asarray(cv2.cvtColor(moved, cv2.COLOR_RGBA2RGB), dtype=np.uint8)
