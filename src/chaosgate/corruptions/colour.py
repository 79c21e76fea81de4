r"""Brightness, saturation and contrast.

The first two go through hue, saturation and value. With :math:`V = \max(r, g, b)` and :math:`S = 1 - \min(r, g, b) / V`
the colour is rebuilt from the four numbers :math:`V`, :math:`V(1 - S)`, :math:`V(1 - fS)` and :math:`V(1 - (1 - f)S)`,
where :math:`f` is the position within a sixth of the hue circle. Many results are whole grey levels up to the last bit,
so the order of operations matters for the truncation; it is kept, in double precision, in both modes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from chaosgate.corruptions.filters import Bytes

Plane = npt.NDArray[np.float64]

# Which of (V, V(1-S), V(1-fS), V(1-(1-f)S)) stands in the red, green and blue channel of each sixth of the circle.
_SIXTHS = np.array([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]], dtype=np.intp)


def brightness(image: Bytes, shift: float) -> Bytes:
    """Raise the value V of an (H, W, C) image by ``shift``, clipped to 1; of a grey image V is the grey level."""
    if image.shape[2] == 1:
        return _bytes(image / 255.0 + shift)
    return _in_hsv(image, lambda s, v: (s, np.clip(v + shift, 0, 1)))


def saturate(image: Bytes, scale: float, shift: float) -> Bytes:
    """Map the saturation S of an (H, W, 3) image to ``scale * S + shift``, clipped to [0, 1]."""
    if image.shape[2] == 1:
        raise ValueError("saturate changes colour and this image has one channel; leave it out, or convert to RGB.")
    return _in_hsv(image, lambda s, v: (np.clip(s * scale + shift, 0, 1), v))


def contrast(image: Bytes, factor: float) -> Bytes:
    r"""Draw an (H, W, C) image towards its channel means: :math:`(x - \bar x) c + \bar x`."""
    result = np.empty_like(image)
    for channel, mean in enumerate(np.mean(image / 255.0, axis=(0, 1)).tolist()):
        result[..., channel] = _bytes((np.arange(256) / 255.0 - mean) * factor + mean).take(image[..., channel])
    return result


def _in_hsv(image: Bytes, change: Callable[[Plane, Plane], tuple[Plane, Plane]]) -> Bytes:
    r, g, b = (image[..., channel].reshape(-1) / 255.0 for channel in range(3))
    value = np.maximum(np.maximum(r, g), b)
    spread = value - np.minimum(np.minimum(r, g), b)
    grey = spread == 0
    unit = np.where(grey, 1.0, spread)
    turn = np.where(b == value, 4.0 + (r - g) / unit, np.where(g == value, 2.0 + (b - r) / unit, (g - b) / unit))
    turn[grey] = 0.0
    turn /= 6.0
    turn += turn < 0
    turn *= 6.0
    sixth = np.floor(turn)
    part = turn - sixth
    saturation, value = change(spread / np.where(grey, 1.0, value), value)
    levels = (1 - saturation, 1 - part * saturation, 1 - (1 - part) * saturation)
    corners = np.stack([_bytes(value), *(_bytes(value * level) for level in levels)], axis=1)
    pick = _SIXTHS.take(sixth.astype(np.intp) % 6, axis=0) + 4 * np.arange(len(r))[:, None]
    return corners.reshape(-1).take(pick).reshape(image.shape)


def _bytes(values: npt.NDArray[Any]) -> Bytes:
    return np.asarray(np.clip(values, 0, 1) * 255).astype(np.uint8)
