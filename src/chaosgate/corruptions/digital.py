"""Pixelation and JPEG: the corruptions that Pillow does alone."""

from io import BytesIO

import numpy as np
from PIL import Image

from chaosgate.corruptions.levels import Bytes


def pixelate(image: Bytes, factor: float) -> Bytes:
    """Shrink an (H, W, C) image by ``factor`` (sizes truncated) and enlarge it again, both with Pillow's box filter."""
    height, width = image.shape[:2]
    size = max(1, int(width * factor)), max(1, int(height * factor))
    small = _to_pillow(image).resize(size, Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX)).reshape(image.shape)


def jpeg(image: Bytes, quality: int) -> Bytes:
    """Encode and decode an (H, W, C) image with Pillow's JPEG at 4:2:0; one channel is coded as luma alone."""
    buffer = BytesIO()
    _to_pillow(image).save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return np.array(Image.open(buffer)).reshape(image.shape)


def _to_pillow(image: Bytes) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
