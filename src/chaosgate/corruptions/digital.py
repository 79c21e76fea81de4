"""Pixelation and JPEG: the corruptions that an image library does alone."""

from functools import lru_cache

import cv2
import numpy as np
from PIL import Image

from chaosgate.corruptions.levels import Bytes


def pixelate(image: Bytes, factor: float) -> Bytes:
    """Shrink an (H, W, C) image by ``factor`` (sizes truncated) and enlarge it again, both with Pillow's box filter.

    Enlarging, the box holds one source pixel, so the box filter only copies; Pillow copies faster when asked to.
    """
    height, width = image.shape[:2]
    size = max(1, int(width * factor)), max(1, int(height * factor))
    small = _to_pillow(image).resize(size, Image.Resampling.BOX)
    copies = _nearest_is_box(size[0], width) and _nearest_is_box(size[1], height)
    enlarge = Image.Resampling.NEAREST if copies else Image.Resampling.BOX
    return np.array(small.resize((width, height), enlarge)).reshape(image.shape)


@lru_cache(maxsize=256)
def _nearest_is_box(small: int, large: int) -> bool:
    """Whether nearest and box enlarge a row of ``small`` pixels alike: all but where a centre falls between two."""
    ramp = Image.fromarray(np.arange(small, dtype=np.float32)[None])
    ways = (Image.Resampling.NEAREST, Image.Resampling.BOX)
    nearest, box = (np.asarray(ramp.resize((large, 1), way)) for way in ways)
    return bool(np.array_equal(nearest, box))


def jpeg(image: Bytes, quality: int) -> Bytes:
    """Encode and decode an (H, W, C) image as JPEG at 4:2:0; one channel is coded as luma alone.

    The benchmark was made with Pillow. OpenCV has the same coder (libjpeg-turbo with its accurate transforms), gives
    the same bits, and takes two thirds of the time.
    """
    colour = image.shape[2] == 3
    given = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if colour else np.ascontiguousarray(image[..., 0])
    _, code = cv2.imencode(".jpg", given, [cv2.IMWRITE_JPEG_QUALITY, quality])
    decoded = cv2.imdecode(code, cv2.IMREAD_COLOR if colour else cv2.IMREAD_GRAYSCALE)
    if decoded is None:
        raise ValueError(f"an image of {image.shape[0]}x{image.shape[1]} pixels cannot be coded as JPEG.")
    return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB) if colour else decoded, np.uint8).reshape(image.shape)


def _to_pillow(image: Bytes) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
