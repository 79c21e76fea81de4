r"""Will noise help? What a network trained without noise tells about it.

.. math:: r = 1 - \frac{\text{training NLL}}{\text{validation NLL}}

is 0 without over-fitting and near 1 where the training NLL is near zero. In the kept studies the
relative change of the test NLL by Gaussian Chaos at ``log_std`` 1 is close to linear in r.
``calibration.json`` (``scripts/calibrate_advice.py``) has r and the change of every pair of runs,
by setting. The interval of a prediction comes from leaving out one setting at a time.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

TABLE = Path(__file__).with_name("calibration.json")
_ANSWERS = {
    True: "Use noise: start with log_std 1, and select among 0.5, 1, 2 and 3 on validation images",
    None: "It is not clear that noise helps: compare 0.3, 1 and none on validation images",
    False: "Train without noise",
}


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` found; ``str`` is the answer as one paragraph.

    Attributes:
        r: Over-fitting of the network without noise.
        r_interval: Its 95 % interval, if the NLL of every image was given.
        change: Expected relative change of the test NLL by Gaussian Chaos at ``log_std`` 1.
        interval: Its 95 % interval, for a single run.
        use: True where the whole interval is below zero, False where the expected change is not
            negative, None between.
        nearest: The calibrated setting with the nearest r.
        distance: Difference of r to it.
        measured: The change that was measured there.
        outside: Whether r is outside of the calibrated range.
        basis: What the calibration rests on.
    """

    r: float
    r_interval: tuple[float, float]
    change: float
    interval: tuple[float, float]
    use: bool | None
    nearest: str
    distance: float
    measured: float
    outside: bool
    basis: str

    def __str__(self) -> str:
        outside = " r is outside of the calibrated range: do not rely on this." * self.outside
        return (
            f"Over-fitting r = {self.r:.2f} ({_ends(self.r_interval, '.2f')}). Gaussian Chaos at "
            f"log_std 1 is expected to change the test NLL by {self.change:+.0%} "
            f"({_ends(self.interval, '+.0%')}). {_ANSWERS[self.use]}. This rests on {self.basis}. "
            f"The nearest setting is {self.nearest}: r differs by {self.distance:.2f}, and the NLL "
            f"changed by {self.measured:+.0%} there.{outside}"
        )


def advise(train_nll: ArrayLike, val_nll: ArrayLike) -> Advice:
    """Whether noise will help, from a network that was trained without.

    Args:
        train_nll: NLL on training images in evaluation mode and without augmentation: of every
            image, or the mean.
        val_nll: The same on validation images.

    >>> advise(0.10, 0.42).use, advise(0.9, 1.0).use
    (True, False)
    """
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    (training, error), (validation, other) = _mean(train_nll), _mean(val_nll)
    if not (0 < training < math.inf and 0 < validation < math.inf):
        raise ValueError(f"NLLs are positive; their means are {training} and {validation}.")
    ratio = training / validation
    r, error = 1 - ratio, ratio * math.hypot(error / training, other / validation)  # delta method
    change = table["intercept"] + table["slope"] * r
    half = table["quantile"] * math.hypot(table["error"], table["slope"] * error)
    settings = table["settings"]
    nearest = min(settings, key=lambda name: abs(float(np.mean(settings[name]["r"])) - r))
    found = np.concatenate([one["r"] for one in settings.values()])
    return Advice(
        r=r,
        r_interval=(r - 1.96 * error, r + 1.96 * error),
        change=change,
        interval=(change - half, change + half),
        use=change + half < 0 or (None if change < 0 else False),
        nearest=nearest,
        distance=abs(float(np.mean(settings[nearest]["r"])) - r),
        measured=float(np.mean(settings[nearest]["change"])),
        outside=not found.min() <= r <= found.max(),
        basis=f"{len(found)} pairs of runs in {len(settings)} settings ({table['about']})",
    )


def _mean(given: ArrayLike) -> tuple[float, float]:
    """The mean, and its standard error."""
    values = np.asarray(given, dtype=float).reshape(-1)
    spread = values.std(ddof=1) if values.size > 1 else 0.0
    return float(values.sum() / values.size), float(spread / math.sqrt(values.size))


def _ends(interval: tuple[float, float], form: str) -> str:
    return " to ".join(format(end, form) for end in interval)
