"""Time of the paper's seven corruptions against their description written down plainly.

The reference is the benchmark's own recipe with the tools it names (scikit-image, OpenCV, Pillow,
NumPy's generators), in double precision and step by step, as one writes it from the paper: that of
the tests, except where theirs is slower than need be.
"""

import math
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from skimage import data

from benchmarks.timing import Row, compare, versus
from chaosgate.corruptions import PAPER, blur, corrupt, parameters

Bytes = npt.NDArray[np.uint8]
Random = np.random.Generator


def run(repeats: int = 9, images: list[Bytes] | None = None, severity: int = 3) -> list[Row]:
    """Median milliseconds per image, both on the same images; the last row adds the others up.

    ``images`` are (H, W, 3) photographs; without any, those of scikit-image are cut to 224 pixels.
    """
    pictures = images or [
        np.array(ImageOps.fit(Image.fromarray(photo), (224, 224), Image.Resampling.LANCZOS))
        for photo in (getattr(data, name)() for name in ("astronaut", "cat", "coffee", "rocket"))
    ]
    rows: list[Row] = []
    for name in PAPER:
        plain, given, turns = _REFERENCE[name], parameters(name, severity), (count(), count())

        def ours(name: str = name, turns: Any = turns) -> None:
            turn = next(turns[0])
            corrupt(pictures[turn % len(pictures)], name, severity, index=turn)

        def peer(plain: Any = plain, given: Any = given, turns: Any = turns) -> None:
            turn = next(turns[1])
            plain(pictures[turn % len(pictures)], np.random.default_rng(turn), **given)

        rows.append(compare(name, ours, peer, repeats))
    sums = (sum(row[key] for row in rows) for key in ("ours_ms", "reference_ms"))
    return [*rows, versus("sum", *sums)]


def _finish(values: npt.NDArray[Any]) -> Bytes:
    return np.asarray(np.clip(values, 0, 1) * 255).astype(np.uint8)


def _gaussian_noise(image: Bytes, random: Random, sigma: float) -> Bytes:
    return _finish(image / 255.0 + random.normal(size=image.shape, scale=sigma))


def _shot_noise(image: Bytes, random: Random, photons: int) -> Bytes:
    return _finish(random.poisson(image / 255.0 * photons) / float(photons))


def _defocus_blur(image: Bytes, random: Random, radius: int, alias: float) -> Bytes:
    reach = max(8, radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = (x**2 + y**2 <= radius**2).astype(np.float32)
    width = 3 if radius <= 8 else 5
    lens = np.asarray(cv2.GaussianBlur(disc / disc.sum(), (width, width), sigmaX=alias), np.float32)
    channels = [cv2.filter2D(image[..., c] / 255.0, -1, lens) for c in range(3)]
    return _finish(np.stack(channels, axis=-1))


def _glass_blur(image: Bytes, random: Random, **given: Any) -> Bytes:
    offsets = blur.draw_offsets(random, image.shape, given)
    return np.asarray(_TESTED.glass_blur(image, offsets, **given))


def _motion_blur(image: Bytes, random: Random, radius: int, sigma: float) -> Bytes:
    height, width = image.shape[:2]
    size, angle = 2 * radius + 1, math.radians(random.uniform(-45, 45))
    weights = np.exp(-(np.arange(size) ** 2) / (2 * sigma**2))
    padded = np.pad(image, ((size, size), (size, size), (0, 0)), mode="edge")
    total = np.zeros(image.shape)
    for i, weight in enumerate(weights / weights.sum()):
        y = size + math.ceil(i * math.sin(angle) - 0.5)
        x = size + math.ceil(i * math.cos(angle) - 0.5)
        total += weight * padded[y : y + height, x : x + width]
    return np.asarray(np.floor(total + 0.5)).astype(np.uint8)


_TESTED: Any = import_module("tests.corruptions.reference")
_REFERENCE: dict[str, Callable[..., Bytes]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "pixelate": lambda image, random, factor: _TESTED.pixelate(image, factor),
    "jpeg_compression": lambda image, random, quality: _TESTED.jpeg_compression(image, quality),
}
