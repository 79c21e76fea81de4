r"""Confidence intervals of differences between networks, and which may be called better or worse.

Two things vary: the seed, which makes the network, and the test images. With :math:`D_s` the
difference of a metric at seed :math:`s`, paired by seed and by image, and :math:`D` its mean over
:math:`S` seeds,

.. math:: \hat D \pm \Bigl(\sqrt{h_t^2 + (1.96\, s_\text{img})^2} + |b|\Bigr), \qquad
          h_t = t_{d + d_0}\, \frac{\tilde s}{\sqrt S}, \qquad
          s_\text{img}^2 = \frac{S\, V(D^*) - \overline{V(D^*_s)}}{S - 1}.

**Seeds.** Few seeds give a poor variance :math:`s^2` of :math:`D_s` (:math:`d = S - 1` degrees of
freedom). So it borrows from the other methods, as limma does for genes (Smyth 2004):
:math:`\tilde s^2 = (d_0 s_0^2 + d s^2) / (d_0 + d)`. :math:`s_0^2` and :math:`d_0` come from the
variances of all differences to the same row (:func:`prior`). These differences share that row's
noise, so their variances agree more than independent ones would, and there are few of them.
Therefore :math:`d_0 \le d (n - 1) / (n + 1)` for :math:`n` differences: the other methods together
count less than a method's own seeds. Without this bound, intervals cover less than they should.

**Images.** Stars are bootstrap draws of test images: an image is drawn with all its cells and for
all networks at once. :math:`V(D^*)` is the variance of the mean difference of these networks. Its
seed-by-image part is in :math:`h_t` already and is subtracted.

**Bias.** The binned ECE is too large on finite samples, more so the better the calibration, and
resampling repeats the bias. :math:`b = \overline{D^*} - D` estimates how far it moves a difference:
the center is :math:`\hat D = D - b`. The bootstrap finds only a part of a bias that comes from
absolute values, so the interval is widened by :math:`|b|`. For metrics that are means,
:math:`b = 0`.

``tests/study/report/test_coverage.py`` measures the coverage at 3, 5 and 10 seeds.

One seed: :math:`h_t` is unknown, :math:`s_\text{img}^2 = V(D^*)`. The interval is about these two
networks and says nothing about another training, so nothing is marked.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, fsum, isfinite, log, log1p, sqrt
from statistics import stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import digamma, ndtri, polygamma, stdtrit

from chaosgate.metrics import NUM_BINS
from chaosgate.metrics.aggregate import Cell
from chaosgate.run.outputs import Samples

RESAMPLES = 400  # the relative standard error of a standard deviation is 1 / sqrt(2 * 400) = 3.5 %
_AT_A_TIME = 100  # bounds the memory: 40 MB for 50,000 images
LEVEL = 0.95
Floats = NDArray[np.float64]
Groups = Mapping[str, Sequence[Sequence[Cell]]]


def interval_of(
    differences: Sequence[float],
    covariance: Floats | None = None,
    bias: float = 0.0,
    variances: Sequence[float] = (),
    level: float = LEVEL,
) -> dict[str, Any]:
    """The interval of a mean difference: ``lo``, ``hi``, its population ``over``, and ``p``.

    It is about ``seeds and images``, about ``seeds`` on these test images if no outputs were kept,
    or about ``these two networks`` if there is one seed, which gives no p-value. There is none for
    one seed without kept outputs, or if a difference is not finite.

    Args:
        differences: One per seed.
        covariance: Of the differences over resamplings of the images, (seeds, seeds).
        bias: Mean difference over resamplings minus the measured one; 0 for metrics without bias.
        variances: Variances over the same seeds of all differences to the same row, this one
            included: what the variance over seeds borrows from.
        level: Of the interval.

    >>> interval = interval_of([-0.02, -0.03, -0.01])
    >>> f"{interval['lo']:.4f} to {interval['hi']:.4f}, p = {interval['p']:.3f}"
    '-0.0448 to 0.0048, p = 0.074'
    """
    seeds, over, images = len(differences), "seeds", 0.0
    if seeds < (1 if covariance is not None else 2) or not all(map(isfinite, differences)):
        return {}
    if covariance is not None:
        over, images = "these two networks", float(covariance.mean())
        if seeds > 1:
            of_each = float(np.diag(covariance).mean())
            over, images = "seeds and images", (seeds * images - of_each) / (seeds - 1)
    seed_error, image_error, df = 0.0, sqrt(max(0.0, images)), 1.0
    if seeds > 1:
        d0, scale = prior(variances, seeds - 1)
        df = d0 + seeds - 1
        variance = (d0 * scale + (seeds - 1) * stdev(differences) ** 2) / df
        seed_error = sqrt(variance / seeds)
    center = fsum(differences) / seeds - bias

    def half_width(p: float) -> float:
        by_seed, by_image = stdtrit(df, 1 - p / 2) * seed_error, ndtri(1 - p / 2) * image_error
        return sqrt(by_seed**2 + by_image**2) + abs(bias)

    def outside(log_p: float) -> float:
        return abs(center) - half_width(exp(log_p))

    half, least, most = half_width(1 - level), log(1e-12), log1p(-1e-12)
    found = {"lo": center - half, "hi": center + half, "over": over}
    if seeds > 1:  # p: one minus the largest level at which the interval excludes zero
        found["p"] = 1.0
        if outside(most) > 0:
            low = outside(least) <= 0
            found["p"] = exp(brentq(outside, least, most, xtol=1e-14) if low else least)
    return found


def prior(variances: Sequence[float], df: int) -> tuple[float, float]:
    r"""Degrees of freedom and scale of the prior of a variance, from several variances.

    Smyth's moments: if :math:`\sigma^2` follows a scaled inverse :math:`\chi^2`, the logarithms of
    the sample variances have variance :math:`\psi'(d/2) + \psi'(d_0/2)`. The degrees of freedom are
    bounded, see above; 0 if there are fewer than two variances to learn from.

    Args:
        variances: Sample variances; zeros carry no information here and are left out.
        df: Degrees of freedom of each of them.
    """
    logs = np.log([one for one in variances if one > 0])
    if len(logs) < 2:
        return 0.0, 0.0
    logs = logs - digamma(df / 2) + log(df / 2)
    excess = float(logs.var(ddof=1) - polygamma(1, df / 2))
    most = df * (len(logs) - 1) / (len(logs) + 1)
    if excess < 1e-9:  # no more spread than chance explains: one common variance
        return most, float(np.exp(logs.mean()))
    # 1 / y < trigamma(y) < 1 / y + 1 / y^2
    y = brentq(lambda y: polygamma(1, y) - excess, 1 / excess, 1 / excess + 1, xtol=1e-14)
    return min(2 * y, most), float(np.exp(logs.mean() + digamma(y) - log(y)))


def holm(p_values: Mapping[Any, float]) -> set[Any]:
    """The hypotheses that Holm's method rejects: any of them wrongly with probability at most 5 %.

    >>> sorted(holm({"a": 0.01, "b": 0.04, "c": 0.03}))
    ['a']
    """
    rejected = set()
    for k, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > (1 - LEVEL) / (len(p_values) - k):
            break
        rejected.add(key)
    return rejected


def resample(
    samples: Samples, groups: Groups, metrics: Sequence[str], bins: int = NUM_BINS
) -> dict[tuple[str, str], Floats]:
    """Metrics of one network, (1 + resamples,): as measured, then for every resampling.

    The images drawn depend on their number only, so differences between networks are paired.

    Args:
        samples: What the network said about each image.
        groups: Name of a part, and its cells by corruption: a metric is averaged within a
            corruption, then over corruptions.
        metrics: Those that are made from kept outputs: Top-1, NLL, ECE, gap and confidence; NLL
            and ECE also after temperature scaling. Others are left out.
        bins: Of the ECE.
    """
    found: dict[tuple[str, str], list[Floats]] = {}
    cells = {cell for part in groups.values() for group in part for cell in group}
    for weights, shift in _weights(samples):
        by_cell = {cell: _cell_metrics(samples, cell, weights, shift, bins) for cell in cells}
        for part, corruptions in groups.items():
            for metric in [one for one in metrics if one in by_cell[corruptions[0][0]]]:
                cells_of = ([by_cell[cell][metric] for cell in group] for group in corruptions)
                means = [np.mean(own, axis=0) for own in cells_of]
                found.setdefault((part, metric), []).append(np.mean(means, axis=0))
    return {column: np.concatenate(pieces) for column, pieces in found.items()}


def _weights(samples: Samples) -> Iterator[tuple[Floats, Floats]]:
    """How often each image is drawn, and how far the refitted log temperature moves."""
    images, scaled = len(samples.index), samples.scaled
    yield np.ones((1, images)), np.zeros(1)
    if scaled is None:
        yield from ((weights, np.zeros(len(weights))) for weights in _counts(images, 0))
        return
    fits = _counts(images, 0) if scaled.on_test else _counts(len(scaled.slope), 1)
    for weights, fitted in zip(_counts(images, 0), fits, strict=True):
        # one Newton step in log T from the fitted one: with b = 1 / T, d log T = -db / b
        yield weights, (fitted @ scaled.slope) / (fitted @ scaled.curvature)


def _counts(images: int, stream: int) -> Iterator[Floats]:
    """How often each image is drawn, in pieces (draws, images); always the same."""
    generator = np.random.default_rng(images + stream)
    for _ in range(RESAMPLES // _AT_A_TIME):
        draws = generator.integers(images, size=(_AT_A_TIME, images))
        yield np.stack([np.bincount(row, minlength=images) for row in draws]).astype(np.float64)


def _cell_metrics(
    samples: Samples, cell: Cell, weights: Floats, shift: Floats, bins: int
) -> dict[str, Floats]:
    """The metrics of one cell under every weighting, each (weightings,)."""
    row = samples.cells.index(cell)
    confidence = samples.confidence[row].astype(np.float64)
    correct = samples.correct[row].astype(np.float64)
    images = len(correct)
    single = np.stack((confidence, correct, samples.nll[row]), axis=1)
    sums = weights @ np.hstack((single, binned(confidence, confidence - correct, bins))) / images
    found = {"confidence": sums[:, 0], "top1": sums[:, 1], "nll": sums[:, 2]}
    found |= {"gap": sums[:, 0] - sums[:, 1], "ece": np.abs(sums[:, 3:]).sum(1)}
    if samples.scaled is None:
        return found
    confidence, nll, by_t, nll_by_t = samples.scaled.per_image[:, row].astype(np.float64)
    moving = (binned(confidence, confidence - correct, bins), binned(confidence, by_t, bins))
    sums = weights @ np.hstack((np.stack((nll, nll_by_t), axis=1), *moving)) / images
    found["nll_T"] = sums[:, 0] + shift * sums[:, 1]
    found["ece_T"] = np.abs(sums[:, 2 : 2 + bins] + shift[:, None] * sums[:, 2 + bins :]).sum(1)
    return found


def binned(confidence: Floats, values: NDArray[np.floating], bins: int = NUM_BINS) -> Floats:
    """Values (images,) in the column of their confidence bin, (images, bins); bins (a, b]."""
    table = np.zeros((len(values), bins))
    column = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    table[np.arange(len(values)), column] = values
    return table


def ece_floor(
    confidence: NDArray[np.float32],
    cells: Sequence[Cell],
    corruptions: Sequence[Sequence[Cell]],
    bins: int = NUM_BINS,
) -> tuple[float, float]:
    r"""The ECE of a perfectly calibrated network with these confidences: mean and 95th percentile.

    If each answer were right with probability :math:`c_i`, its confidence, the sum of :math:`c_i`
    minus correctness over a bin would be about normal with variance
    :math:`v_m = \sum_{i\in m} c_i(1 - c_i)`, and the ECE would have mean
    :math:`\frac1n\sum_m\sqrt{2v_m/\pi}`. The percentile is that of 2,000 draws, independent
    between cells.

    Args:
        confidence: Of every image, (cells, images).
        cells: The cells.
        corruptions: Those of the part, by corruption.
        bins: Of the ECE.
    """
    generator = np.random.default_rng(0)
    means, draws = [], []
    for own in corruptions:
        claimed = confidence[[cells.index(cell) for cell in own]].astype(np.float64)
        variance = np.stack([binned(one, one * (1 - one), bins).sum(0) for one in claimed])
        spread = np.sqrt(variance) / claimed.shape[1]
        means.append(float(np.sqrt(2 / np.pi) * spread.sum(1).mean()))
        noise = generator.standard_normal((2000, *spread.shape)) * spread
        draws.append(np.abs(noise).sum(2).mean(1))
    return float(np.mean(means)), float(np.quantile(np.mean(draws, axis=0), 0.95))
