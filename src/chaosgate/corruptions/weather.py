"""Snow, frost, fog, brightness, and spatter: drops of water (severities 1 to 3) or splashes of mud
(4 and 5).

If the package ``imagecorruptions`` differs from the benchmark, this module follows the benchmark.
*Snow*: the layer of flakes is cropped to the image and made 8-bit before the motion blur, so its
edges are replicated; the package blurs the enlarged layer, crops it afterwards, and quantizes it
once. *Frost*: the texture is cropped at its original scale; the package first enlarges it by 1.1.
"""

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from chaosgate.corruptions.blur import (
    gaussian_taps,
    motion_blur,
    zoom_center,
    zoom_crop,
    zoom_matrix,
)
from chaosgate.corruptions.levels import Array, Bytes, Plane, Precision, bands, in_hsv, truncate

FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""The textures used by the benchmark, which never uses its sixth."""

WATER = (175, 238, 238)
MUD = (63, 42, 20)


class SnowDraws(NamedTuple):
    """Standard normal flakes on the (h, w) crop that the zoom enlarges, and the direction of the
    fall in degrees.
    """

    flakes: Plane
    angle: float


def draw_snow(
    stream: np.random.Generator, shape: tuple[int, ...], given: dict[str, Any]
) -> SnowDraws:
    """The random numbers of one snow corruption; noise outside the crop is not drawn."""
    crops = [zoom_crop(length, given["zoom"]) for length in shape[:2]]
    flakes = stream.standard_normal([crop.stop - crop.start for crop in crops])
    return SnowDraws(flakes, float(stream.uniform(-135, -45)))


def snow(
    image: Bytes,
    draws: SnowDraws,
    loc: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    mix: float,
    precision: Precision = "float32",
) -> Bytes:
    """Whiten an (H, W, C) image and add blurred flakes and their copy rotated by 180 degrees."""
    layer = flakes(image.shape, draws.flakes * scale + loc, zoom, precision)
    layer[layer < threshold] = 0
    fallen = motion_blur(truncate(layer), draws.angle, radius, sigma, precision)
    turned = fallen[::-1, ::-1]
    result = np.empty_like(image)
    for rows in bands(image.shape):
        pixels = image[rows].astype(np.float32) / np.float32(255)
        gray: Any = pixels
        if image.shape[2] == 3:
            gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None]
        hazy = mix * pixels + (1 - mix) * np.maximum(pixels, gray * 1.5 + 0.5)
        result[rows] = truncate(hazy + fallen[rows] / 255.0 + turned[rows] / 255.0)
    return result


def flakes(shape: tuple[int, ...], noise: Plane, zoom: float, precision: Precision) -> Plane:
    """The noise of the center crop enlarged to an (H, W, 1) layer."""
    height, width = shape[:2]
    canvas = np.zeros((height, width))
    canvas[zoom_crop(height, zoom), zoom_crop(width, zoom)] = noise
    if precision == "float64":
        return zoom_center(canvas[..., None], zoom)
    tall = zoom_matrix(height, zoom) @ canvas
    return np.asarray((zoom_matrix(width, zoom) @ tall.T).T[..., None])


def load_frost(folder: str | PathLike[str] | None) -> tuple[Bytes, ...]:
    """The five frost textures as (H, W, 3) arrays, decoded once per folder."""
    missing = [name for name in FROST_FILES if not (Path(folder or "") / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"frost needs the textures {', '.join(missing)} in {folder or 'a folder'}. They come "
            "with the ImageNet-C generating code (hendrycks/robustness, ImageNet-C/create_c); set "
            "frost_textures to their folder."
        )
    return _decode(str(folder))


@lru_cache(maxsize=4)
def _decode(folder: str) -> tuple[Bytes, ...]:
    return tuple(np.asarray(Image.open(Path(folder) / name).convert("RGB")) for name in FROST_FILES)


def draw_frost(
    stream: np.random.Generator, shape: tuple[int, ...], given: dict[str, Any]
) -> tuple[int, int, int]:
    """The texture, and the row and column of the crop."""
    which = int(stream.integers(len(FROST_FILES)))
    texture = given["textures"][which]
    room = [have - need for have, need in zip(texture.shape[:2], shape[:2], strict=True)]
    if min(room) < 0:
        raise ValueError(
            f"an image of {shape[0]} x {shape[1]} pixels is larger than the frost texture "
            f"{FROST_FILES[which]}, which is not enlarged. Shrink the image."
        )
    row, column = (int(stream.integers(max(1, space))) for space in room)
    return which, row, column


def frost(
    image: Bytes,
    draws: tuple[int, int, int],
    image_weight: float,
    frost_weight: float,
    textures: Sequence[Bytes],
) -> Bytes:
    """Weighted sum of an (H, W, C) image and a crop of a frost texture (its luma, for a gray
    image).
    """
    which, row, column = draws
    ice = textures[which][row : row + image.shape[0], column : column + image.shape[1]]
    if image.shape[2] == 1:
        ice = np.asarray(cv2.cvtColor(ice, cv2.COLOR_RGB2GRAY), dtype=np.uint8)[..., None]
    return np.clip(image_weight * image + frost_weight * ice, 0, 255).astype(np.uint8)


def draw_fog(
    stream: np.random.Generator, shape: tuple[int, ...], given: dict[str, Any]
) -> list[Plane]:
    r"""Uniform draws on (-1, 1) for every level of the plasma, coarse to fine: one (3, n, n) array
    for n = 1, 2, 4, ...

    The map is the smallest power of two that covers the image (256 for 224 pixels, 32 for 28); the
    three planes are the centers of the squares, and the centers of their horizontal and vertical
    sides.
    """
    levels = max(1, (max(shape[:2]) - 1).bit_length())
    return [stream.uniform(-1, 1, (3, 2**level, 2**level)) for level in range(levels)]


def fog(image: Bytes, draws: Sequence[Plane], amount: float, decay: float) -> Bytes:
    r"""Add plasma :math:`P` to an (H, W, C) image and scale back to its maximum: :math:`(x + aP) m
    / (m + a)`.
    """
    brightest = image.max() / 255.0
    cloud = plasma(draws, decay)[: image.shape[0], : image.shape[1], None]
    result = np.empty_like(image)
    for rows in bands(image.shape):
        result[rows] = truncate(
            (image[rows] / 255.0 + amount * cloud[rows]) * brightest / (brightest + amount)
        )
    return result


def plasma(draws: Sequence[Plane], decay: float) -> Plane:
    r"""Diamond-square fractal on a torus, scaled to [0, 1].

    At each level the centers of squares, then of sides, become the mean of their four neighbors
    plus :math:`w^2 U(-1, 1)`; the width :math:`w` starts at 100 and is divided by ``decay`` after
    every level.
    """
    size = 2 ** len(draws)
    field = np.zeros((size, size))
    width = 100.0
    for square, across, down in draws:
        step = size // len(square)
        half = step // 2
        corner = field[::step, ::step]
        sides = corner + np.roll(corner, -1, axis=0)
        field[half::step, half::step] = (sides + np.roll(sides, -1, axis=1)) / 4 + width * (
            width * square
        )
        middle = field[half::step, half::step]
        above = (middle + np.roll(middle, 1, axis=0)) + (corner + np.roll(corner, -1, axis=1))
        beside = (middle + np.roll(middle, 1, axis=1)) + (corner + np.roll(corner, -1, axis=0))
        field[::step, half::step] = above / 4 + width * (width * across)
        field[half::step, ::step] = beside / 4 + width * (width * down)
        width /= decay
    field -= field.min()
    return np.asarray(field / field.max(), dtype=np.float64)


def brightness(image: Bytes, shift: float) -> Bytes:
    """Increase the value V of an (H, W, C) image by ``shift``, clipped to 1; for gray images V is
    the gray level.
    """
    if image.shape[2] == 1:
        return truncate(image / 255.0 + shift)
    return in_hsv(image, lambda s, v: (s, np.clip(v + shift, 0, 1)))


def draw_spatter(stream: np.random.Generator, shape: tuple[int, ...], given: object) -> Plane:
    """A standard normal (H, W) field."""
    return stream.standard_normal(shape[:2])


def spatter(
    image: Bytes,
    draws: Plane,
    loc: float,
    scale: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: bool,
    precision: Precision = "float32",
) -> Bytes:
    """Spatter an (H, W, C) image with liquid from a standard normal (H, W) field (in luma, for a
    gray image).
    """
    liquid = _blur(draws * scale + loc, sigma, precision)
    liquid[liquid < threshold] = 0
    pixels = image.astype(np.float32) / np.float32(255)
    if mud:
        cover = _blur((liquid > threshold).astype(np.float32), strength, precision)[..., None]
        cover[cover < 0.8] = 0  # mud covers the wet region, with soft edges
        pixels = pixels * (1 - cover) + _color(MUD, image.shape[2]) * cover
    else:
        pixels = pixels + water(liquid, strength)[..., None] * _color(WATER, image.shape[2])
    return truncate(pixels)


def water(liquid: Plane, strength: float) -> npt.NDArray[np.float32]:
    """The light that each pixel gains from water: edges of the liquid, widened, equalized and
    embossed.
    """
    layer = (liquid * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(layer, 50, 150), cv2.DIST_L2, 5)
    _, near = cv2.threshold(distance, 20, 20, cv2.THRESH_TRUNC)
    relief = cv2.equalizeHist(cv2.blur(near, (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
    relief = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, emboss), (3, 3)).astype(np.float32)
    gain = layer * relief
    peak = gain.max()
    # No liquid above the threshold: a dry lens (a small image can have one; the benchmark would
    # divide by zero).
    return gain if peak == 0 else gain / peak * np.float32(strength)


def _color(rgb: tuple[int, int, int], channels: int) -> npt.NDArray[np.float32]:
    color = (np.array(rgb) / 255.0).astype(np.float32)
    luma = np.array([[0.299], [0.587], [0.114]], dtype=np.float32)
    return color if channels == 3 else color @ luma


def _blur(field: Array, sigma: float, precision: Precision) -> Array:
    if precision == "float64":
        return np.asarray(ndimage.gaussian_filter(field, sigma, mode="nearest", truncate=4.0))
    taps = gaussian_taps(sigma)
    return np.asarray(cv2.sepFilter2D(field, -1, taps, taps, borderType=cv2.BORDER_REPLICATE))
