"""Time of the paper's seven corruptions against their description written down plainly.

The reference below is the benchmark's own recipe with the tools it names (scikit-image, SciPy,
OpenCV, Pillow, NumPy's generators), in double precision and step by step, as one writes it from the
paper. It is what the fast versions are compared with; it is not used anywhere else.
"""

import math
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from statistics import median
from time import perf_counter
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from benchmarks.timing import on_threads
from chaosgate.corruptions import PAPER, corrupt, parameters

Bytes = npt.NDArray[np.uint8]
Random = np.random.Generator


def run(
    threads: int = 1,
    repeats: int = 9,
    images: list[Bytes] | None = None,
    severity: int = 3,
    names: tuple[str, ...] = PAPER,
) -> list[dict[str, Any]]:
    """Median milliseconds per image, ours and the reference taking turns on the same images.

    ``images`` are (H, W, 3) photographs; without any, those of scikit-image are cut to 224 pixels.
    The last row adds the others up. Needs scikit-image (``pip install chaosgate[bench]``).
    """
    pictures = images or photographs(224)
    rows: list[dict[str, Any]] = []
    with on_threads(threads):
        for name in names:
            given, plain = parameters(name, severity), _REFERENCE[name]
            ours, theirs = [], []
            corrupt(pictures[0], name, severity)  # tables are built once per process
            for turn in range(repeats):
                picture, random = pictures[turn % len(pictures)], np.random.default_rng(turn)
                start = perf_counter()
                corrupt(picture, name, severity, index=turn)
                middle = perf_counter()
                plain(picture, random, **given)
                ours.append(1e3 * (middle - start))
                theirs.append(1e3 * (perf_counter() - middle))
            rows.append(_row(name, median(ours), median(theirs)))
    rows.append(
        _row("sum", sum(row["ours_ms"] for row in rows), sum(row["reference_ms"] for row in rows))
    )
    return rows


def photographs(size: int) -> list[Bytes]:
    """The photographs that come with scikit-image, shrunk and cut to squares."""
    data = _scikit_image("data")
    pictures = [
        Image.fromarray(getattr(data, name)()) for name in ("astronaut", "cat", "coffee", "rocket")
    ]
    return [
        np.array(ImageOps.fit(picture, (size, size), Image.Resampling.LANCZOS))
        for picture in pictures
    ]


def _scikit_image(module: str) -> Any:
    try:
        return import_module(f"skimage.{module}")
    except ImportError as error:
        raise ImportError("it needs scikit-image: pip install 'chaosgate[bench]'.") from error


def _row(name: str, ours: float, reference: float) -> dict[str, Any]:
    return {
        "corruption": name,
        "ours_ms": ours,
        "reference_ms": reference,
        "ratio": reference / ours,
    }


def _finish(values: npt.NDArray[Any]) -> Bytes:
    return np.asarray(np.clip(values, 0, 1) * 255).astype(np.uint8)


def _gaussian(values: npt.NDArray[Any], sigma: float) -> npt.NDArray[Any]:
    return np.asarray(_scikit_image("filters").gaussian(values, sigma=sigma, channel_axis=-1))


def _gaussian_noise(image: Bytes, random: Random, sigma: float) -> Bytes:
    return _finish(image / 255.0 + random.normal(size=image.shape, scale=sigma))


def _shot_noise(image: Bytes, random: Random, photons: int) -> Bytes:
    return _finish(random.poisson(image / 255.0 * photons) / float(photons))


def _defocus_blur(image: Bytes, random: Random, radius: int, alias: float) -> Bytes:
    reach = max(8, radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    lens = (x**2 + y**2 <= radius**2).astype(np.float32)
    width = 3 if radius <= 8 else 5
    lens = np.asarray(
        cv2.GaussianBlur(lens / lens.sum(), (width, width), sigmaX=alias), dtype=np.float32
    )
    return _finish(
        np.stack([cv2.filter2D(image[..., c] / 255.0, -1, lens) for c in range(3)], axis=-1)
    )


def _glass_blur(image: Bytes, random: Random, sigma: float, reach: int, scans: int) -> Bytes:
    pixels = (_gaussian(image / 255.0, sigma) * 255).astype(np.uint8)
    for _ in range(scans):
        for h in range(image.shape[0] - reach, reach, -1):
            for w in range(image.shape[1] - reach, reach, -1):
                dx, dy = random.integers(-reach, reach, size=2)
                pixels[h, w] = pixels[h + dy, w + dx]
    return _finish(_gaussian(pixels / 255.0, sigma))


def _motion_blur(image: Bytes, random: Random, radius: int, sigma: float) -> Bytes:
    height, width = image.shape[:2]
    count, angle = 2 * radius + 1, math.radians(random.uniform(-45, 45))
    weights = np.exp(-(np.arange(count) ** 2) / (2 * sigma**2))
    padded = np.pad(image, ((count, count), (count, count), (0, 0)), mode="edge")
    total = np.zeros(image.shape)
    for i, weight in enumerate(weights / weights.sum()):
        y = count + math.ceil(i * math.sin(angle) - 0.5)
        x = count + math.ceil(i * math.cos(angle) - 0.5)
        total += weight * padded[y : y + height, x : x + width]
    return np.asarray(np.floor(total + 0.5)).astype(np.uint8)


def _pixelate(image: Bytes, random: Random, factor: float) -> Bytes:
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize(
        (int(width * factor), int(height * factor)), Image.Resampling.BOX
    )
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def _jpeg_compression(image: Bytes, random: Random, quality: int) -> Bytes:
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.array(Image.open(buffer))


_REFERENCE: dict[str, Callable[..., Bytes]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "defocus_blur": _defocus_blur,
    "glass_blur": _glass_blur,
    "motion_blur": _motion_blur,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
