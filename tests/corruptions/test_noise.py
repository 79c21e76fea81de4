"""The four pointwise noises: exact laws on gray levels, computed and not sampled."""

import numpy as np
import pytest
from scipy import stats

from chaosgate import corruptions
from chaosgate.corruptions import TABLES, noise, parameters
from chaosgate.corruptions.apply import generator, words

FULL = 1 << 24
GREY = (0, 1, 2, 17, 64, 127, 128, 200, 254, 255)
CASES = [
    (name, severity, table)
    for name in ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")
    for severity in (1, 2, 3, 4, 5)
    for table in TABLES
]
LAWS = {
    "gaussian_noise": noise.gaussian_law,
    "shot_noise": noise.shot_law,
    "impulse_noise": noise.impulse_law,
    "speckle_noise": noise.speckle_law,
}


def exact_law(name, gray, parameter):
    """P(output = k) from the formula with clipping and truncation, written independently of the
    package.
    """
    law = np.zeros(256)
    if name == "shot_noise":
        counts = np.arange(int(parameter + 60 * np.sqrt(parameter) + 200))
        pixel = (np.clip(counts / float(parameter), 0, 1) * 255).astype(np.uint8)
        np.add.at(law, pixel, stats.poisson(gray / 255 * parameter).pmf(counts))
    elif name == "impulse_noise":
        for level, probability in ((gray, 1 - parameter), (0, parameter / 2), (255, parameter / 2)):
            law[level] += probability
    else:
        spread = 255 * parameter * (1 if name == "gaussian_noise" else gray / 255)
        if spread == 0:
            law[gray] = 1
            return law
        normal = stats.norm(gray, spread)  # the value before clipping, on the 0..255 scale
        law[0] = normal.cdf(1)
        law[255] = normal.sf(255)
        levels = np.arange(1, 255)
        law[levels] = normal.cdf(levels + 1) - normal.cdf(levels)
    return law


def realised_law(table, gray):
    """The law that ``act`` realises, found by asking it on both sides of every threshold of every
    column.
    """
    column = np.arange(256, dtype=np.uint32)
    own = (table[gray] >> 8).astype(np.uint32)
    image = np.full(256, gray, dtype=np.uint8)
    lowest, highest = (
        noise.act(image, column, table),
        noise.act(image, np.uint32((FULL - 1) << 8) | column, table),
    )
    below, at = (
        noise.act(image, (np.maximum(own, 1) - 1) << 8 | column, table),
        noise.act(image, own << 8 | column, table),
    )
    np.testing.assert_array_equal(
        below[own > 0], lowest[own > 0]
    )  # constant below the threshold ...
    np.testing.assert_array_equal(at, highest)  # ... and from it on
    counts = np.zeros(256, dtype=np.int64)
    np.add.at(counts, lowest, np.where(own > 0, own, 0).astype(np.int64))
    np.add.at(counts, highest, FULL - own.astype(np.int64))
    assert counts.sum() == 2**32
    return counts


@pytest.mark.parametrize(("name", "severity", "table"), CASES)
def test_the_realised_law_is_the_exact_law(name, severity, table):
    (parameter,) = parameters(name, severity, table).values()
    counts = noise.quantize(LAWS[name](parameter))
    assert (counts.sum(axis=1) == 2**32).all() and counts.min() >= 0
    built = noise.alias_table(counts)
    for gray in GREY:
        realised = realised_law(built, gray)
        np.testing.assert_array_equal(
            realised, counts[gray]
        )  # the table adds no error to the rounded law ...
        assert (
            0.5 * np.abs(realised / 2**32 - exact_law(name, gray, parameter)).sum() < 1e-6
        )  # ... nor rounding to it


def test_an_alias_table_of_any_integers_reproduces_them():
    # hard rows: all on one level, exactly equal, one unit off equal, and random ones from nearly
    # flat to very spiky
    stream = np.random.default_rng(0)
    laws = [
        np.eye(256)[0],
        np.full(256, 1 / 256),
        *(stream.dirichlet(np.full(256, a)) for a in (0.01, 0.1, 1, 100)),
    ]
    counts = noise.quantize(np.stack(laws * 43)[:256])
    counts[7] = FULL
    counts[7, 3] += 1
    counts[7, 200] -= 1
    built = noise.alias_table(counts)
    for row in range(256):
        np.testing.assert_array_equal(realised_law(built, row), counts[row])


@pytest.mark.parametrize("name", LAWS)
def test_corrupt_acts_with_the_law_of_its_table(name, photo):
    (parameter,) = parameters(name, 4).values()
    draws = words(generator(3, name, 4, index=9), photo.shape)
    expected = noise.act(photo, draws, noise.alias_table(noise.quantize(LAWS[name](parameter))))
    np.testing.assert_array_equal(corruptions.corrupt(photo, name, 4, seed=3, index=9), expected)


@pytest.mark.statistical
@pytest.mark.parametrize("name", LAWS)
def test_sampled_noise_follows_the_law_and_is_independent(name):
    # Seed fixed. Chi-square over levels expected at least 20 times (the rest pooled): p > 1e-4
    # holds for all but one seed in ten thousand. Correlations of 90,000 pairs have standard error
    # 1/300; five of them are allowed.
    flat = np.full((300, 300, 3), 90, dtype=np.uint8)
    result = corruptions.corrupt(flat, name, 3, seed=11)
    expected = exact_law(name, 90, *parameters(name, 3).values()) * result.size
    observed = np.bincount(result.reshape(-1), minlength=256)
    often = expected >= 20
    pooled = [np.append(counts[often], counts[~often].sum()) for counts in (observed, expected)]
    keep = pooled[1] > 1
    assert (
        stats.chisquare(
            pooled[0][keep], pooled[1][keep] * pooled[0][keep].sum() / pooled[1][keep].sum()
        ).pvalue
        > 1e-4
    )
    values = result.astype(float) - result.mean()
    for a, b in (
        (values[..., 0], values[..., 1]),
        (values[:, 1:], values[:, :-1]),
        (values[1:], values[:-1]),
    ):
        assert abs(np.mean(a * b) / values.var()) < 5 / 300


def test_black_stays_black_without_light():
    black = np.zeros((40, 40), dtype=np.uint8)
    for name in ("shot_noise", "speckle_noise"):
        assert corruptions.corrupt(black, name, 5).max() == 0
