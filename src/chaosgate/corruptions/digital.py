r"""Contrast, saturation, elastic transform, pixelation and JPEG.

The elastic transform is a random affine map :math:`A`, then a smooth random displacement of every
pixel:

.. math:: y(p) = (Ax)(p + \alpha\, G_\sigma u(p)), \qquad u(p) \sim \mathrm{Uniform}(-1, 1)^2

as in the benchmark. The package ``imagecorruptions`` omits the affine map and has other values of
:math:`\alpha` and :math:`\sigma`: at 224 pixels its local displacements are 1.06, 1.32, 1.73, 2.04,
2.51 pixels (root mean square, severities 1 to 5); the benchmark's are 0.12, 4.88, 0.81, 1.18, 1.93
in addition to the affine map.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from chaosgate.corruptions.levels import Bytes, Plane, Precision, bands, in_hsv, truncate


def contrast(image: Bytes, factor: float) -> Bytes:
    r"""Move an (H, W, C) image toward its channel means: :math:`(x - \bar x) c + \bar x`."""
    result = np.empty_like(image)
    for channel, mean in enumerate(np.mean(image / 255.0, axis=(0, 1)).tolist()):
        result[..., channel] = truncate((np.arange(256) / 255.0 - mean) * factor + mean).take(
            image[..., channel]
        )
    return result


def saturate(image: Bytes, scale: float, shift: float) -> Bytes:
    """Map the saturation S of an (H, W, 3) image to ``scale * S + shift``, clipped to [0, 1]."""
    if image.shape[2] == 1:
        raise ValueError("saturate needs color and this image has one channel; leave it out.")
    return in_hsv(image, lambda s, v: (np.clip(s * scale + shift, 0, 1), v))


class ElasticDraws(NamedTuple):
    """Uniform draws on (-1, 1): three corner shifts (3, 2), and the raw fields for columns and
    rows, each (H, W).
    """

    corners: Plane
    across: Plane
    down: Plane


def draw_elastic(
    stream: np.random.Generator, shape: tuple[int, ...], given: dict[str, Any]
) -> ElasticDraws:
    """The random numbers of one elastic transform of an image of the given shape."""
    size = shape[:2]
    return ElasticDraws(
        stream.uniform(-1, 1, (3, 2)), stream.uniform(-1, 1, size), stream.uniform(-1, 1, size)
    )


def elastic_transform(
    image: Bytes,
    draws: ElasticDraws,
    alpha: float,
    sigma: float,
    jitter: float,
    precision: Precision = "float32",
) -> Bytes:
    """Warp an (H, W, C) image: three points move by up to ``jitter`` pixels, then each pixel by
    ``alpha`` * blur.
    """
    height, width = image.shape[:2]
    center, arm = np.array([height, width], dtype=np.float32) // 2, min(height, width) // 3
    corners = np.array(
        [center + arm, [center[0] + arm, center[1] - arm], center - arm], dtype=np.float32
    )
    affine = cv2.getAffineTransform(corners, corners + (jitter * draws.corners).astype(np.float32))
    pixels = image.astype(np.float32) / np.float32(255)
    warped = cv2.warpAffine(pixels, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    warped = np.asarray(warped, dtype=np.float32).reshape(image.shape)
    if precision == "float64":
        shifts = [
            alpha * ndimage.gaussian_filter(u, sigma, mode="reflect", truncate=3)
            for u in (draws.down, draws.across)
        ]
    else:
        left, right = smoothing(height, sigma), smoothing(width, sigma).T
        shifts = [alpha * (left @ u.astype(np.float32) @ right) for u in (draws.down, draws.across)]
    y = np.arange(height)[:, None] + shifts[0].astype(np.float32)
    x = np.arange(width)[None, :] + shifts[1].astype(np.float32)
    result = np.empty_like(image)
    planes = np.ascontiguousarray(np.moveaxis(warped, 2, 0))
    if precision == "float64":
        for channel, plane in enumerate(planes):
            moved = ndimage.map_coordinates(plane, (y, x), order=1, mode="reflect")
            result[..., channel] = truncate(moved)
    else:
        for rows in bands(image.shape):
            moved = bilinear(planes, y[rows], x[rows], reach=int(alpha) + 2)
            result[rows] = truncate(np.stack(moved, axis=-1))
    return result


def bilinear(
    planes: npt.NDArray[np.float32], y: Plane, x: Plane, reach: int
) -> list[npt.NDArray[np.float32]]:
    """Bilinear values of (C, H, W) planes at rows ``y`` and columns ``x``, mirrored with the edge
    repeated.

    Coordinates may lie up to ``reach`` pixels outside. OpenCV is not used, because before version 5
    it rounds coordinates to 1/32 pixel.
    """
    height, width = planes.shape[1:]
    top, left = np.floor(y).astype(np.intp), np.floor(x).astype(np.intp)
    down, right = y - top, x - left
    rows = [_mirror(height, reach).take(top + (reach + step)) * width for step in (0, 1)]
    columns = [_mirror(width, reach).take(left + (reach + step)) for step in (0, 1)]
    corners = [
        (row + column, weight * share)
        for row, weight in zip(rows, (1 - down, down), strict=True)
        for column, share in zip(columns, (1 - right, right), strict=True)
    ]
    values = (sum(plane.take(index) * weight for index, weight in corners) for plane in planes)
    return [np.asarray(value, dtype=np.float32) for value in values]


@lru_cache(maxsize=16)
def smoothing(size: int, sigma: float) -> npt.NDArray[np.float32]:
    """The Gaussian filter along one axis as a (size, size) matrix; cheaper than its 1025 taps at
    severity 1.
    """
    return np.asarray(
        ndimage.gaussian_filter1d(np.eye(size), sigma, axis=0, mode="reflect", truncate=3),
        dtype=np.float32,
    )


@lru_cache(maxsize=16)
def _mirror(size: int, reach: int) -> npt.NDArray[np.intp]:
    """Where the pixels -reach .. size + reach of an axis are found, the axis being mirrored at both
    edges.
    """
    place = np.arange(-reach, size + reach + 1) % (2 * size)
    return np.minimum(place, 2 * size - 1 - place)


def pixelate(image: Bytes, factor: float) -> Bytes:
    """Shrink an (H, W, C) image by ``factor`` (sizes truncated) and enlarge it again, both with
    Pillow's box filter.

    When enlarging, the box filter only copies pixels, which Pillow does faster with
    nearest-neighbor interpolation.
    """
    height, width = image.shape[:2]
    size = max(1, int(width * factor)), max(1, int(height * factor))
    plain = image[..., 0] if image.shape[2] == 1 else image
    small = Image.fromarray(plain).resize(size, Image.Resampling.BOX)
    copies = _nearest_is_box(size[0], width) and _nearest_is_box(size[1], height)
    enlarge = Image.Resampling.NEAREST if copies else Image.Resampling.BOX
    return np.array(small.resize((width, height), enlarge)).reshape(image.shape)


@lru_cache(maxsize=256)
def _nearest_is_box(small: int, large: int) -> bool:
    """Whether nearest and box enlarge a row of ``small`` pixels alike: all but where a center falls
    between two.
    """
    ramp = Image.fromarray(np.arange(small, dtype=np.float32)[None])
    ways = (Image.Resampling.NEAREST, Image.Resampling.BOX)
    nearest, box = (np.asarray(ramp.resize((large, 1), way)) for way in ways)
    return bool(np.array_equal(nearest, box))


def jpeg(image: Bytes, quality: int) -> Bytes:
    """Encode and decode an (H, W, C) image as JPEG at 4:2:0; one channel is encoded as luma.

    The benchmark was made with Pillow. OpenCV has the same encoder (libjpeg-turbo with accurate
    transforms), gives the same bits, and takes two thirds of the time.
    """
    color = image.shape[2] == 3
    given = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if color else image
    _, code = cv2.imencode(".jpg", given, [cv2.IMWRITE_JPEG_QUALITY, quality])
    decoded = cv2.imdecode(code, cv2.IMREAD_COLOR_RGB if color else cv2.IMREAD_GRAYSCALE)
    return np.asarray(decoded, np.uint8).reshape(image.shape)
