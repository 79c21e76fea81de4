r"""Confidence intervals of differences between networks, and which of them may be called better or worse.

Two things vary: the seed, which makes the network, and the test images. With :math:`D_s` the difference of a metric
at seed :math:`s`, paired by seed and by image, and :math:`D` its mean over :math:`S` seeds,

.. math:: \hat D \pm \Bigl(\sqrt{h_t^2 + (1.96\, s_\text{img})^2} + |b|\Bigr), \qquad
          h_t = t_{S-1}\, \frac{\mathrm{sd}(D_s)}{\sqrt S}, \qquad
          s_\text{img}^2 = \frac{S\, V(D^*) - \overline{V(D^*_s)}}{S - 1}.

Stars are bootstrap draws of test images: an image is drawn with all its cells and for all networks at once.
:math:`V(D^*)` is the variance of the mean difference of these networks; taking off its seed-by-image part, which
:math:`h_t` holds already, leaves what the choice of images adds for networks in general.

The binned ECE is too large on finite samples, more so the better the calibration, and resampling repeats the bias.
:math:`b = \overline{D^*} - D` estimates how far it moves a difference: the centre is :math:`\hat D = D - b`, and as
the bootstrap finds only a part of a bias that comes from absolute values, the interval is widened by :math:`|b|`. For
metrics that are means, :math:`b = 0`.

The widening by :math:`|b|` was chosen among six variants on simulated studies; on fresh random numbers
(``tests/study/report/test_coverage.py``, 600 studies each) the intervals cover between 93 and 98 % for Top-1, NLL and
ECE with 1, 3 and 5 seeds, of moderate and of small calibration error.

One seed: :math:`h_t` is unknown, :math:`s_\text{img}^2 = V(D^*)`. The interval is about these two networks and says
nothing about what another training would give, so nothing is marked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from math import fsum, isfinite, sqrt
from statistics import NormalDist, stdev
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import Cell
from chaosgate.run.outputs import Samples

RESAMPLES = 400  # the relative standard error of a standard deviation is 1 / sqrt(2 * 400) = 3.5 %
_AT_A_TIME = 100  # bounds the memory: 40 MB for 50,000 images
_REMEMBERED = 10_000  # images up to which draws are kept for the next network: 32 MB
NUM_BINS = 15
RESAMPLED = ("top1", "nll", "ece", "gap", "confidence", "aurc", "ood_auroc")
"""Metrics that are resampled from the kept outputs; NLL and ECE also after temperature scaling."""
LEVEL = 0.95
Floats = NDArray[np.float64]
Groups = Mapping[str, Sequence[Sequence[Cell]]]
Over = Literal["these two networks", "seeds and images", "seeds"]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Interval:
    """An interval of a difference.

    Args:
        centre: Its middle: the difference, less an estimated bias.
        seed_error: Standard error over seeds; 0 where there is one seed.
        image_error: Standard error over test images; 0 where no outputs were kept.
        bias: The bias that was taken off.
        seeds: How many there were.
        over: What it is about: ``seeds and images``, the population; ``seeds``, on these test images, where no outputs
            were kept; ``these two networks``, where there is one seed.
    """

    centre: float
    seed_error: float
    image_error: float
    bias: float
    seeds: int
    over: Over

    def half_width(self, level: float = LEVEL) -> float:
        """Half of the width at a level."""
        from scipy.stats import t

        tail = (1 + level) / 2
        by_seed = float(t.ppf(tail, self.seeds - 1)) * self.seed_error if self.seeds > 1 else 0.0
        return sqrt(by_seed**2 + (NormalDist().inv_cdf(tail) * self.image_error) ** 2) + abs(self.bias)

    @cached_property
    def low(self) -> float:
        """The lower end at 95 %."""
        return self.centre - self.half_width()

    @cached_property
    def high(self) -> float:
        """The upper end at 95 %."""
        return self.centre + self.half_width()

    @cached_property
    def p_value(self) -> float:
        """One minus the largest level at which the interval excludes zero."""
        low, high = 1e-12, 1 - 1e-12
        if abs(self.centre) <= self.half_width(low):
            return 1.0
        for _ in range(60):  # halves the bracket on the scale of p
            middle = sqrt(low * high)
            low, high = (middle, high) if abs(self.centre) <= self.half_width(1 - middle) else (low, middle)
        return high


def interval_of(
    differences: Sequence[float], drawn: Sequence[Floats] | None = None, biased: bool = False
) -> Interval | None:
    """The interval of a mean difference; None where there is one seed and no outputs were kept, or one is not finite.

    Args:
        differences: One per seed.
        drawn: For each seed the difference as the kept outputs have it, then under every resampling.
        biased: Whether resampling has a bias to be taken off, as for the ECE.

    >>> interval = interval_of([-0.02, -0.03, -0.01])
    >>> f"{interval.low:.4f} to {interval.high:.4f}"
    '-0.0448 to 0.0048'
    """
    seeds = len(differences)
    if not all(map(isfinite, differences)):
        return None
    mean = fsum(differences) / seeds if seeds else 0.0
    seed_error = stdev(differences) / sqrt(seeds) if seeds > 1 else 0.0
    if drawn is None or not seeds:
        return Interval(mean, seed_error, 0.0, 0.0, seeds, "seeds") if seeds > 1 else None
    stars = np.stack(drawn)
    bias = float(stars[:, 1:].mean() - stars[:, 0].mean()) if biased else 0.0
    of_mean = float(stars[:, 1:].mean(0).var(ddof=1))
    if seeds == 1:
        return Interval(mean - bias, 0.0, sqrt(of_mean), bias, seeds, "these two networks")
    of_each = float(stars[:, 1:].var(1, ddof=1).mean())
    images = max(0.0, (seeds * of_mean - of_each) / (seeds - 1))
    return Interval(mean - bias, seed_error, sqrt(images), bias, seeds, "seeds and images")


def is_biased(metric: str) -> bool:
    """Whether a metric of a finite sample is too large: the ECE, which sums absolute values."""
    return metric.startswith("ece")


def holm(p_values: Mapping[Key, float]) -> set[Key]:
    """The hypotheses that Holm's method rejects: any of them wrongly with probability at most 5 %.

    >>> sorted(holm({"a": 0.01, "b": 0.04, "c": 0.03}))
    ['a']
    """
    rejected: set[Key] = set()
    for k, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > (1 - LEVEL) / (len(p_values) - k):
            break
        rejected.add(key)
    return rejected


def require_same_images(samples: Iterable[Samples]) -> None:
    """Refuse to pair networks that were tested on different images."""
    first: Samples | None = None
    for one in samples:
        first = one if first is None else first
        if not np.array_equal(first.index, one.index):
            raise ValueError(
                f"two runs of this study were tested on different images ({len(first.index)} and {len(one.index)} of "
                "them, or with other indices), so they cannot be paired. Remove their `outputs` and `tested` folders "
                "and run the study again."
            )


def resample(
    samples: Samples, groups: Groups, metrics: Sequence[str], bins: int = NUM_BINS
) -> dict[tuple[str, str], Floats]:
    """Metrics of one network, (1 + resamples,): as measured, then for every resampling of the test images.

    The images drawn are a function of their number alone, so that differences between networks are paired.

    Args:
        samples: What the network said about each image.
        groups: Name of a column, and its cells by corruption: a metric is averaged within a corruption, then over
            corruptions.
        metrics: Those among :data:`RESAMPLED`, with and without temperature; others are left out.
        bins: Of the ECE.
    """
    found: dict[tuple[str, str], list[Floats]] = {}
    for weights, shift in _weights(samples):
        for part, corruptions in groups.items():
            means: dict[str, list[Floats]] = {}
            for cells in corruptions:
                by_cell = [_cell_metrics(samples, cell, weights, shift, bins) for cell in cells]
                if "aurc" in metrics:
                    by_cell = [
                        {**found, "aurc": _aurc(samples, cell, weights)}
                        for found, cell in zip(by_cell, cells, strict=True)
                    ]
                for metric in metrics:
                    if metric in by_cell[0]:
                        means.setdefault(metric, []).append(np.mean([cell[metric] for cell in by_cell], axis=0))
            for metric, values in means.items():
                found.setdefault((part, metric), []).append(np.mean(values, axis=0))
    return {column: np.concatenate(parts) for column, parts in found.items()}


def _weights(samples: Samples) -> Iterable[tuple[Floats, Floats | None]]:
    """How often each image is drawn, and by how much the refitted log temperature moves; first not at all."""
    images, scaled = len(samples.index), samples.scaled
    yield np.ones((1, images)), None if scaled is None else np.zeros(1)
    fits = repeat(None) if scaled is None else _counts(images, 0) if scaled.on_test else _counts(len(scaled.slope), 1)
    for weights, fitted in zip(_counts(images, 0), fits, strict=False):
        if scaled is None or fitted is None:
            yield weights, None
        else:  # one Newton step in log T from the fitted temperature: with b = 1 / T, d log T = -db / b
            yield weights, (fitted @ scaled.slope) / (fitted @ scaled.curvature)


def _counts(images: int, stream: int) -> Iterable[Floats]:
    """How often each image is drawn, in pieces (draws, images): always the same for a number of images and a stream."""
    return _remembered(images, stream) if images <= _REMEMBERED else _drawn(images, stream)


@lru_cache(maxsize=4)
def _remembered(images: int, stream: int) -> list[Floats]:
    return list(_drawn(images, stream))


def _drawn(images: int, stream: int) -> Iterator[Floats]:
    generator = np.random.default_rng(images + stream)
    for _ in range(RESAMPLES // _AT_A_TIME):
        draws = generator.integers(images, size=(_AT_A_TIME, images))
        yield np.stack([np.bincount(row, minlength=images) for row in draws]).astype(np.float64)


def _cell_metrics(samples: Samples, cell: Cell, weights: Floats, shift: Floats | None, bins: int) -> dict[str, Floats]:
    """The metrics of one cell under every weighting, each (weightings,)."""
    row = samples.cells.index(cell)
    confidence, correct = samples.confidence[row].astype(np.float64), samples.correct[row].astype(np.float64)
    images = len(correct)
    single = np.stack((confidence, correct, samples.nll[row]), axis=1)
    sums = weights @ np.hstack((single, binned(confidence, confidence - correct, bins))) / images
    found = {"confidence": sums[:, 0], "top1": sums[:, 1], "gap": sums[:, 0] - sums[:, 1], "nll": sums[:, 2]}
    found["ece"] = np.abs(sums[:, 3:]).sum(1)
    if samples.scaled is None or shift is None:
        return found
    confidence, nll, confidence_slope, nll_slope = samples.scaled.per_image[:, row].astype(np.float64)
    moving = (binned(confidence, confidence - correct, bins), binned(confidence, confidence_slope, bins))
    sums = weights @ np.hstack((np.stack((nll, nll_slope), axis=1), *moving)) / images
    found["nll_T"] = sums[:, 0] + shift * sums[:, 1]
    found["ece_T"] = np.abs(sums[:, 2 : 2 + bins] + shift[:, None] * sums[:, 2 + bins :]).sum(1)
    return found


def _aurc(samples: Samples, cell: Cell, weights: Floats) -> Floats:
    """The area under the risk-coverage curve under every weighting, (weightings,)."""
    row = samples.cells.index(cell)
    order = np.argsort(-samples.confidence[row], kind="stable")
    error, drawn = ~samples.correct[row][order], weights[:, order]
    answered = drawn.cumsum(1)
    risk = (drawn * error).cumsum(1) / np.maximum(answered, 1)
    area: Floats = (drawn * risk).sum(1) / answered[:, -1]
    return area


def resample_auroc(inside: NDArray[np.float32], outside: NDArray[np.float32]) -> Floats:
    """AUROC of one network, (1 + resamples,): as measured, then with both sets of images resampled."""
    low = np.argsort(outside, kind="stable")
    below, up_to = (np.searchsorted(outside[low], inside, side=side) for side in ("left", "right"))
    measured = np.ones((1, len(inside))), np.ones((1, len(outside)))
    found = []
    for weights, theirs in (measured, *zip(_counts(len(inside), 0), _counts(len(outside), 2), strict=True)):
        smaller = np.pad(theirs[:, low].cumsum(1), ((0, 0), (1, 0)))
        found.append((weights * (smaller[:, below] + smaller[:, up_to])).sum(1) / (2 * len(inside) * len(outside)))
    return np.concatenate(found)


def binned(confidence: Floats, values: NDArray[np.floating], bins: int = NUM_BINS) -> Floats:
    """Values (images,) spread over the columns of their confidence bins, (images, bins); bins (a, b], first closed."""
    table = np.zeros((len(values), bins))
    table[np.arange(len(values)), np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)] = values
    return table


def ece_floor(
    confidence: NDArray[np.float32],
    cells: Sequence[Cell],
    corruptions: Sequence[Sequence[Cell]],
    bins: int = NUM_BINS,
) -> tuple[float, float]:
    r"""What a perfectly calibrated network with these confidences would show as its ECE: mean and 95th percentile.

    Were each answer right with probability :math:`c_i`, its confidence, then the sum of :math:`c_i` minus correctness
    over a bin would be about normal with variance :math:`v_m = \sum_{i\in m} c_i(1 - c_i)`, and the ECE have mean
    :math:`\frac1n\sum_m\sqrt{2v_m/\pi}`. The percentile is that of 2,000 draws, independent between cells.

    Args:
        confidence: Of every image, (cells, images).
        cells: The cells.
        corruptions: Those of the column, by corruption.
        bins: Of the ECE.
    """
    generator = np.random.default_rng(0)
    means, draws = [], []
    for own in corruptions:
        deviations = []
        for cell in own:
            claimed = confidence[cells.index(cell)].astype(np.float64)
            deviations.append(np.sqrt(binned(claimed, claimed * (1 - claimed), bins).sum(0)) / len(claimed))
        spread = np.stack(deviations)
        means.append(float(np.sqrt(2 / np.pi) * spread.sum(1).mean()))
        draws.append(np.abs(generator.standard_normal((2000, *spread.shape)) * spread).sum(2).mean(1))
    return float(np.mean(means)), float(np.quantile(np.mean(draws, axis=0), 0.95))
