"""Spatter: drops of water (severities 1 to 3) or splashes of mud (4 and 5) on the lens."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from scipy import ndimage

from chaosgate.corruptions.filters import gaussian_taps
from chaosgate.corruptions.levels import Bytes, Precision, truncate

Field = npt.NDArray[np.float64]

WATER = (175, 238, 238)
MUD = (63, 42, 20)


def spatter(
    image: Bytes,
    draws: Field,
    loc: float,
    scale: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: bool,
    precision: Precision = "float32",
) -> Bytes:
    """Spatter an (H, W, C) image with liquid from a standard normal (H, W) field (in luma, for a grey image)."""
    liquid = _blur(draws * scale + loc, sigma, precision)
    liquid[liquid < threshold] = 0
    pixels = image.astype(np.float32) / np.float32(255)
    if mud:
        cover = splashes(liquid, threshold, strength, precision)[..., None]
        pixels = pixels * (1 - cover) + _colour(MUD, image.shape[2]) * cover
    else:
        pixels = pixels + drops(liquid, strength)[..., None] * _colour(WATER, image.shape[2])
    return truncate(pixels)


def drops(liquid: Field, strength: float) -> npt.NDArray[np.float32]:
    """How much light each pixel gains from water: edges of the liquid, widened, equalised and embossed."""
    layer = (liquid * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(layer, 50, 150), cv2.DIST_L2, 5)
    _, near = cv2.threshold(distance, 20, 20, cv2.THRESH_TRUNC)
    relief = cv2.equalizeHist(cv2.blur(near, (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
    relief = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, emboss), (3, 3)).astype(np.float32)
    gain = layer * relief
    peak = gain.max()
    # No liquid above the threshold: a dry lens (a small image can have one; the benchmark would divide by zero).
    return gain if peak == 0 else gain / peak * np.float32(strength)


def splashes(liquid: Field, threshold: float, strength: float, precision: Precision) -> npt.NDArray[np.float32]:
    """How much of each pixel mud covers: the wet region with soft edges, cut at 0.8."""
    wet = (liquid > threshold).astype(np.float32)
    cover = _blur(wet, strength, precision).astype(np.float32)
    cover[cover < 0.8] = 0
    return cover


def _colour(rgb: tuple[int, int, int], channels: int) -> npt.NDArray[np.float32]:
    colour = (np.array(rgb) / 255.0).astype(np.float32)
    return colour if channels == 3 else colour @ np.array([[0.299], [0.587], [0.114]], dtype=np.float32)


def _blur(field: npt.NDArray[Any], sigma: float, precision: Precision) -> npt.NDArray[Any]:
    if precision == "float64":
        return np.asarray(ndimage.gaussian_filter(field, sigma, mode="nearest", truncate=4.0))
    taps = gaussian_taps(sigma)
    return np.asarray(cv2.sepFilter2D(field, -1, taps, taps, borderType=cv2.BORDER_REPLICATE))
