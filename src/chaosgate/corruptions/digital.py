"""Pixelation and JPEG: the corruptions that Pillow does alone."""

from functools import lru_cache
from io import BytesIO

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
    """Encode and decode an (H, W, C) image with Pillow's JPEG at 4:2:0; one channel is coded as luma alone."""
    buffer = BytesIO()
    _to_pillow(image).save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return np.array(Image.open(buffer)).reshape(image.shape)


def _to_pillow(image: Bytes) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
