"""Pictures for the tests of corruptions."""

import numpy as np


def make_photo(height, width, channels=3, seed=0):
    """A picture as hard as a photograph: 1/f texture, flat patches (white, black, gray) and a
    coarsely quantized one.

    In the flat patches the exact result of a filter is an integer, so that truncation shows the
    last bit.
    """
    random = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(random.standard_normal((channels, height, width))) / frequency
    texture = np.fft.irfft2(spectrum, s=(height, width))
    texture = np.moveaxis(texture / texture.std(), 0, -1)
    texture = np.clip(120 + 60 * texture + 15 * texture[..., :1], 0, 255).astype(np.uint8)
    h, w = height // 3, width // 3
    texture[:h, :w] = 255
    texture[h : 2 * h, :w] = 0
    texture[2 * h :, :w] = random.integers(256, size=channels)
    texture[:h, 2 * w :] = texture[:h, 2 * w :] // 32 * 32
    return texture
