"""Snow, frost and fog."""

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from chaosgate.corruptions import zoom as zooming
from chaosgate.corruptions.levels import Bytes, Precision, bands, truncate
from chaosgate.corruptions.motion import draw_angle, motion_blur

Field = npt.NDArray[np.float64]

FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""The textures that the benchmark draws from; its sixth is never drawn."""


class SnowDraws(NamedTuple):
    """Standard normal flakes on the (h, w) crop that the zoom enlarges, and the direction of the fall in degrees."""

    flakes: Field
    angle: float


def draw_snow(stream: np.random.Generator, shape: tuple[int, ...], zoom: float) -> SnowDraws:
    """All randomness of one snowfall; noise outside the crop would never be seen and is not drawn."""
    size = tuple(zooming.crop(length, zoom).size for length in shape[:2])
    return SnowDraws(stream.standard_normal(size), draw_angle(stream, -135.0, -45.0))


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
    """Whiten an (H, W, C) image and add blurred flakes together with their copy turned by 180 degrees."""
    layer = flakes(image.shape, draws.flakes * scale + loc, zoom, precision)
    layer[layer < threshold] = 0
    fallen = motion_blur(truncate(layer), draws.angle, radius, sigma, precision)
    turned = fallen[::-1, ::-1]
    result = np.empty_like(image)
    for rows in bands(image.shape):
        pixels = image[rows].astype(np.float32) / np.float32(255)
        grey = pixels if image.shape[2] == 1 else cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None]
        hazy = mix * pixels + (1 - mix) * np.maximum(pixels, grey * 1.5 + 0.5)
        result[rows] = truncate(hazy + fallen[rows] / 255.0 + turned[rows] / 255.0)
    return result


def flakes(shape: tuple[int, ...], noise: Field, zoom: float, precision: Precision) -> Field:
    """The noise of the centre crop enlarged to an (H, W, 1) layer."""
    height, width = shape[:2]
    rows, columns = zooming.crop(height, zoom), zooming.crop(width, zoom)
    canvas = np.zeros((height, width))
    canvas[rows.start : rows.start + rows.size, columns.start : columns.start + columns.size] = noise
    if precision == "float64":
        return zooming.enlarge(canvas[..., None], zoom)
    tall = zooming.interpolation(height, zoom) @ canvas
    return np.asarray((zooming.interpolation(width, zoom) @ tall.T).T[..., None])


def load_frost(folder: str | PathLike[str] | None) -> tuple[Bytes, ...]:
    """The five frost textures as (H, W, 3) arrays, decoded once per folder."""
    names = ", ".join(FROST_FILES)
    source = "They come with the ImageNet-C generating code (hendrycks/robustness, ImageNet-C/create_c)."
    if folder is None:
        raise ValueError(f"frost needs the textures {names}; set frost_textures to the folder that has them. {source}")
    missing = [name for name in FROST_FILES if not (Path(folder) / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"no {', '.join(missing)} in {folder}; set frost_textures to the folder that has {names}. {source}"
        )
    return _decode(str(folder))


@lru_cache(maxsize=4)
def _decode(folder: str) -> tuple[Bytes, ...]:
    return tuple(np.asarray(Image.open(Path(folder) / name).convert("RGB")) for name in FROST_FILES)


def draw_frost(stream: np.random.Generator, shape: tuple[int, ...], textures: Sequence[Bytes]) -> tuple[int, int, int]:
    """Which texture, and the row and column where its crop of the image's size begins."""
    which = int(stream.integers(len(textures)))
    room = [have - need for have, need in zip(textures[which].shape[:2], shape[:2], strict=True)]
    if min(room) < 0:
        raise ValueError(
            f"an image of {shape[0]} x {shape[1]} pixels under the frost texture {FROST_FILES[which]} of "
            f"{textures[which].shape[0]} x {textures[which].shape[1]}; frost is cut at its own scale. Shrink the image."
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
    """Weighted sum of an (H, W, C) image and a crop of a frost texture (its luma, for a grey image)."""
    which, row, column = draws
    ice = textures[which][row : row + image.shape[0], column : column + image.shape[1]]
    if image.shape[2] == 1:
        ice = np.asarray(cv2.cvtColor(ice, cv2.COLOR_RGB2GRAY), dtype=np.uint8)[..., None]
    return np.clip(image_weight * image + frost_weight * ice, 0, 255).astype(np.uint8)


def draw_fog(stream: np.random.Generator, shape: tuple[int, ...]) -> list[Field]:
    r"""Uniform draws on (-1, 1) for every level of the plasma, coarse to fine: one (3, n, n) array for n = 1, 2, 4, ...

    The map is the smallest power of two that covers the image (256 for 224 pixels, 32 for 28); the three planes are
    the middles of the squares, and the middles of their horizontal and vertical sides.
    """
    levels = max(1, (max(shape[:2]) - 1).bit_length())
    return [stream.uniform(-1, 1, (3, 2**level, 2**level)) for level in range(levels)]


def fog(image: Bytes, draws: Sequence[Field], amount: float, decay: float) -> Bytes:
    r"""Add plasma :math:`P` to an (H, W, C) image and scale back to its maximum: :math:`(x + aP) m / (m + a)`."""
    brightest = image.max() / 255.0
    cloud = plasma(draws, decay)[: image.shape[0], : image.shape[1], None]
    result = np.empty_like(image)
    for rows in bands(image.shape):
        result[rows] = truncate((image[rows] / 255.0 + amount * cloud[rows]) * brightest / (brightest + amount))
    return result


def plasma(draws: Sequence[Field], decay: float) -> Field:
    r"""Diamond-square fractal on a torus, scaled to [0, 1].

    Level by level the middles of squares, then of sides, become the mean of their four neighbours plus
    :math:`w^2 U(-1, 1)`; the width :math:`w` starts at 100 and is divided by ``decay`` after every level.
    """
    size = 2 ** len(draws)
    field = np.zeros((size, size))
    width = 100.0
    for square, across, down in draws:
        step = size // len(square)
        half = step // 2
        corner = field[::step, ::step]
        sides = corner + np.roll(corner, -1, axis=0)
        field[half::step, half::step] = (sides + np.roll(sides, -1, axis=1)) / 4 + width * (width * square)
        middle = field[half::step, half::step]
        above = (middle + np.roll(middle, 1, axis=0)) + (corner + np.roll(corner, -1, axis=1))
        beside = (middle + np.roll(middle, 1, axis=1)) + (corner + np.roll(corner, -1, axis=0))
        field[::step, half::step] = above / 4 + width * (width * across)
        field[half::step, ::step] = beside / 4 + width * (width * down)
        width /= decay
    field -= field.min()
    return np.asarray(field / field.max(), dtype=np.float64)
