r"""One comparison of a prediction with a measurement, exact or sampled, and what it takes to pass.

Exact comparisons (algebra carried out by the shipped modules in float64) pass when the error is below :data:`EXACT`,
relative to the largest prediction among those compared. Sampled ones carry a p-value. A finding that looks at k numbers
multiplies its smallest p-value by k, and a run with F sampled findings fails one whose p-value is below
:data:`FALSE_ALARM` / F: then a correct library fails a run with probability at most :data:`FALSE_ALARM`.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import bdtr, bdtrc, chdtr, chdtrc, ndtr, ndtri
from torch import Tensor

Floats = npt.NDArray[np.float64]

EXACT = 1e-9
"""Largest relative error of an exact identity; what is seen is 1e-11 and below."""

SINGLE = 1e-6
"""The same for masks, whose value 1/q the modules write in single precision."""

FALSE_ALARM = 1e-7
"""Probability that a correct library fails a whole run."""

POWER = 0.999
"""With this probability an error of the stated size is caught."""


@dataclass(frozen=True)
class Finding:
    """What was compared, and how it came out.

    Attributes:
        what: The quantity.
        predicted: By the paper's formula; when several numbers are compared, of the least favourable one (or of the
            largest, where all agree exactly).
        measured: The same entry, from the modules.
        samples: Draws behind it; 0 for an exact comparison.
        comparisons: How many numbers were compared.
        error: Relative error of an exact comparison.
        tolerance: The largest error that passes.
        p_value: Of a sampled comparison, corrected for ``comparisons``.
        resolution: Relative standard error of a sampled measurement, the largest among the numbers compared.
    """

    what: str
    predicted: float
    measured: float
    samples: int = 0
    comparisons: int = 1
    error: float | None = None
    tolerance: float = EXACT
    p_value: float | None = None
    resolution: float | None = None

    @property
    def sampled(self) -> bool:
        """Whether chance had a part in it."""
        return self.p_value is not None

    @property
    def z(self) -> float | None:
        """The p-value as a number of standard deviations."""
        return None if self.p_value is None else abs(float(ndtri(max(self.p_value, 1e-300) / 2)))

    def passed(self, sampled_findings: int) -> bool:
        """Whether it passes in a run with this many sampled findings, which share the rate of false alarms."""
        if self.p_value is not None:
            return self.p_value >= FALSE_ALARM / max(1, sampled_findings)
        return self.error is not None and self.error <= self.tolerance

    def detects(self, sampled_findings: int) -> float | None:
        """Smallest relative error of the measured quantity that is caught with probability :data:`POWER`."""
        if self.resolution is None:
            return None
        limit = -ndtri(FALSE_ALARM / (2 * max(1, sampled_findings) * self.comparisons))
        return float((limit + ndtri(POWER)) * self.resolution)


def exact(
    what: str, predicted: Tensor | float, measured: Tensor | float, tolerance: float = EXACT, scale: float | None = None
) -> Finding:
    """Compare numbers that must agree to rounding; the error is relative to ``scale``, or to the largest prediction."""
    expected, found = (torch.as_tensor(value, dtype=torch.float64).flatten() for value in (predicted, measured))
    expected = expected.expand_as(found)
    gap = (found - expected).abs()
    worst = int(torch.where(gap.isnan(), math.inf, gap).argmax())
    error = float(gap[worst]) / max(float(expected.abs().max()) if scale is None else scale, 1e-300)
    error = math.inf if math.isnan(error) else error
    shown = worst if error > tolerance else int(expected.abs().argmax())
    return Finding(what, float(expected[shown]), float(found[shown]), 0, len(found), error, tolerance)


def vanishes(what: str, size: float) -> Finding:
    """A residual, already relative to what it is a residual of, that must be zero to rounding."""
    return Finding(what, 0.0, size, error=math.inf if math.isnan(size) else abs(size))


def never(what: str, violations: int, trials: int) -> Finding:
    """Something that must not happen in any of the trials."""
    return Finding(what, 0.0, float(violations), 0, trials, math.inf if violations else 0.0)


def variances(what: str, predicted: Tensor | float, mean_square: Tensor | float, degrees: int) -> Finding:
    """Mean squares of centred Gaussians over ``degrees`` independent terms: exact chi-square tails, both sides."""
    expected, found = _pair(predicted, mean_square)
    statistic = degrees * found / expected
    p = 2 * np.minimum(chdtr(degrees, statistic), chdtrc(degrees, statistic))
    return _sampled(what, expected, found, degrees, p, np.full_like(found, math.sqrt(2 / degrees)))


def frequencies(what: str, predicted: Tensor | float, counts: Tensor | float, trials: int) -> Finding:
    """Counts of events in independent trials: exact binomial tails, both sides."""
    expected, found = _pair(predicted, counts)
    p = 2 * np.minimum(bdtr(found, trials, expected), bdtrc(found - 1, trials, expected))
    error = np.sqrt(expected * (1 - expected) / trials) / expected
    return _sampled(what, expected, found / trials, trials, p, error)


def means(
    what: str,
    predicted: Tensor | float,
    mean: Tensor | float,
    deviation: Tensor | float,
    samples: int,
    skewness: Tensor | float = 0.0,
) -> Finding:
    r"""Means over independent samples of known standard deviation: normal tails, corrected for a known skewness.

    The correction is the first term of Cornish and Fisher, :math:`z - (z^2-1)\,s/6\sqrt N`.
    """
    expected, found = _pair(predicted, mean)
    spread, skew = (np.broadcast_to(_array(value), found.shape) for value in (deviation, skewness))
    standard_error = spread / math.sqrt(samples)
    still = standard_error == 0  # what does not vary, such as a pinned site, agrees to the last bit or not at all
    z = np.where(
        still, np.where(found == expected, 0.0, np.inf), (found - expected) / np.where(still, 1.0, standard_error)
    )
    z = z - (z**2 - 1) * skew / (6 * math.sqrt(samples))
    return _sampled(what, expected, found, samples, 2 * ndtr(-np.abs(z)), standard_error / np.abs(expected))


def _sampled(what: str, expected: Floats, found: Floats, samples: int, p: Floats, resolution: Floats) -> Finding:
    p = np.where(np.isnan(p), 0.0, p)  # a measurement that is not a number agrees with nothing
    worst = int(p.argmin())
    corrected = float(min(1.0, p[worst] * len(p)))
    return Finding(
        what,
        float(expected[worst]),
        float(found[worst]),
        samples,
        len(p),
        p_value=corrected,
        resolution=float(resolution.max()),
    )


def _pair(predicted: Tensor | float, measured: Tensor | float) -> tuple[Floats, Floats]:
    found = _array(measured)
    return np.broadcast_to(_array(predicted), found.shape), found


def _array(value: Tensor | float) -> Floats:
    return torch.as_tensor(value, dtype=torch.float64).flatten().numpy()
