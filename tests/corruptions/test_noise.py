"""The four pointwise noises: exact laws on gray levels, computed and not sampled."""

import numpy as np
import pytest
from scipy import stats

from chaosgate import corruptions
from chaosgate.corruptions import TABLES, noise, parameters
from chaosgate.corruptions.apply import generator, words

FULL = 1 << 24
LAWS = {
    "gaussian_noise": noise.gaussian_law,
    "shot_noise": noise.shot_law,
    "impulse_noise": noise.impulse_law,
    "speckle_noise": noise.speckle_law,
}
CASES = [(n, s, t) for n in LAWS for s in (1, 2, 3, 4, 5) for t in TABLES]


def exact_law(name, gray, parameter):
    """P(output = k) from the formula with clipping and truncation, by scipy.stats."""
    law = np.zeros(256)
    if name == "shot_noise":
        counts = np.arange(int(parameter + 60 * np.sqrt(parameter) + 200))
        pixel = (np.clip(counts / float(parameter), 0, 1) * 255).astype(np.uint8)
        np.add.at(law, pixel, stats.poisson(gray / 255 * parameter).pmf(counts))
    elif name == "impulse_noise":
        np.add.at(law, [gray, 0, 255], [1 - parameter, parameter / 2, parameter / 2])
    elif name == "speckle_noise" and gray == 0:
        law[0] = 1
    else:
        spread = 255 * parameter * (1 if name == "gaussian_noise" else gray / 255)
        below = stats.norm(gray, spread).cdf(np.arange(1, 256))  # clipped at both ends
        law = np.diff(below, prepend=0, append=1)
    return law


def realized_law(table, gray):
    """The law that ``act`` realizes: asked on both sides of every threshold of every column."""
    column, image = np.arange(256, dtype=np.uint32), np.full(256, gray, dtype=np.uint8)
    own = (table[gray] >> 8).astype(np.uint32)
    lowest, highest, below, at = (
        noise.act(image, np.uint32(word << 8) | column, table)
        for word in (np.uint32(0), np.uint32(FULL - 1), np.maximum(own, 1) - 1, own)
    )
    np.testing.assert_array_equal(below[own > 0], lowest[own > 0])  # constant below the threshold
    np.testing.assert_array_equal(at, highest)  # and from it on
    counts = np.zeros(256, dtype=np.int64)
    np.add.at(counts, lowest, own.astype(np.int64))
    np.add.at(counts, highest, FULL - own.astype(np.int64))
    return counts


@pytest.mark.parametrize(("name", "severity", "table"), CASES)
def test_the_realized_law_is_the_exact_law(name, severity, table):
    (parameter,) = parameters(name, severity, table).values()
    counts = noise.quantize(LAWS[name](parameter))
    assert (counts.sum(axis=1) == 2**32).all() and counts.min() >= 0
    built = noise.alias_table(counts)
    for gray in (0, 1, 2, 17, 64, 127, 128, 200, 254, 255):
        # the table adds no error to the rounded law, and rounding hardly any to the exact one
        np.testing.assert_array_equal(realized_law(built, gray), counts[gray])
        assert 0.5 * np.abs(counts[gray] / 2**32 - exact_law(name, gray, parameter)).sum() < 1e-6


@pytest.mark.parametrize("name", LAWS)
def test_corrupt_draws_from_the_law_by_the_words_of_its_stream(name, photo):
    (parameter,) = parameters(name, 3).values()
    draws = words(generator(3, name, 3, index=9), photo.shape)
    expected = noise.act(photo, draws, noise.alias_table(noise.quantize(LAWS[name](parameter))))
    np.testing.assert_array_equal(corruptions.corrupt(photo, name, 3, seed=3, index=9), expected)
