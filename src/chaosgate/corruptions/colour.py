r"""Brightness, saturation and contrast.

The first two go through hue, saturation and value. With :math:`V = \max(r, g, b)` and :math:`S = 1 - \min(r, g, b) / V`
the colour is rebuilt from the four numbers :math:`V`, :math:`V(1 - S)`, :math:`V(1 - fS)` and :math:`V(1 - (1 - f)S)`,
where :math:`f` is the position within a sixth of the hue circle. Many results are whole grey levels up to the last bit,
so the order of operations matters for the truncation; it is kept, in double precision, in both modes.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chaosgate.corruptions.levels import Bytes, bands, truncate

Plane = npt.NDArray[np.float64]

# Which of (V, V(1-S), V(1-fS), V(1-(1-f)S)) the red, the green and the blue channel are in each sixth of the circle.
_SIXTHS = np.array([[0, 2, 1, 1, 3, 0], [3, 0, 0, 2, 1, 1], [1, 1, 3, 0, 0, 2]], dtype=np.intp)


def brightness(image: Bytes, shift: float) -> Bytes:
    """Raise the value V of an (H, W, C) image by ``shift``, clipped to 1; of a grey image V is the grey level."""
    if image.shape[2] == 1:
        return truncate(image / 255.0 + shift)
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
        result[..., channel] = truncate((np.arange(256) / 255.0 - mean) * factor + mean).take(image[..., channel])
    return result


def _in_hsv(image: Bytes, change: Callable[[Plane, Plane], tuple[Plane, Plane]]) -> Bytes:
    return np.concatenate([_change_hsv(image[rows], change) for rows in bands(image.shape)])


def _change_hsv(image: Bytes, change: Callable[[Plane, Plane], tuple[Plane, Plane]]) -> Bytes:
    # Choices are made by arithmetic on 0 and 1: branches on the channels of a photograph cannot be predicted.
    r, g, b = (np.ascontiguousarray(image[..., channel]).reshape(-1) / 255.0 for channel in range(3))
    value = np.maximum(np.maximum(r, g), b)
    spread = value - np.minimum(np.minimum(r, g), b)
    grey = spread == 0
    third = np.maximum((g == value).view(np.uint8), (b == value).view(np.uint8) * np.uint8(2))  # red, green, blue
    third *= ~grey  # grey counts as red
    here = np.arange(len(r))
    difference = np.concatenate([g - b, b - r, r - g]).take(third.astype(np.intp) * len(r) + here)
    turn = (2.0 * third + difference / (spread + grey)) / 6.0
    turn += turn < 0
    turn *= 6.0
    sixth = np.floor(turn)
    part = turn - sixth
    saturation, value = change(spread / (value + (value == 0)), value)
    levels = (1 - saturation, 1 - part * saturation, 1 - (1 - part) * saturation)
    corners = np.concatenate([truncate(value), *(truncate(value * level) for level in levels)])
    place = sixth.astype(np.intp)
    place[place == 6] = 0
    planes = [corners.take(_SIXTHS[channel].take(place) * len(r) + here) for channel in range(3)]
    return np.stack(planes, axis=1).reshape(image.shape)
