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
        ends = (
            "{:.2f} to {:.2f}".format(*self.r_interval),
            "{:+.0%} to {:+.0%}".format(*self.interval),
        )
        return (
            f"Over-fitting r = {self.r:.2f} ({ends[0]}). Gaussian Chaos at log_std 1 is expected "
            f"to change the test NLL by {self.change:+.0%} ({ends[1]}). {_ANSWERS[self.use]}. This "
            f"rests on {self.basis}. The nearest setting is {self.nearest}: r differs by "
            f"{self.distance:.2f}, and the NLL changed by {self.measured:+.0%} there.{outside}"
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
    means, errors = [], []
    for given in (train_nll, val_nll):
        values = np.asarray(given, dtype=float).reshape(-1)
        means.append(float(values.mean()))
        errors.append(float(values.std(ddof=min(1, values.size - 1))) / math.sqrt(values.size))
    if not all(0 < mean < math.inf for mean in means):
        raise ValueError(f"NLLs are positive; their means are {means[0]} and {means[1]}.")
    ratio = means[0] / means[1]
    error = ratio * math.hypot(errors[0] / means[0], errors[1] / means[1])  # delta method
    r, change = 1 - ratio, table["intercept"] + table["slope"] * (1 - ratio)
    half = table["quantile"] * math.hypot(table["error"], table["slope"] * error)
    settings = table["settings"]
    away = {name: abs(float(np.mean(one["r"])) - r) for name, one in settings.items()}
    nearest = min(away, key=away.__getitem__)
    found = np.concatenate([one["r"] for one in settings.values()])
    return Advice(
        r=r,
        r_interval=(r - 1.96 * error, r + 1.96 * error),
        change=change,
        interval=(change - half, change + half),
        use=change + half < 0 or (None if change < 0 else False),
        nearest=nearest,
        distance=away[nearest],
        measured=float(np.mean(settings[nearest]["change"])),
        outside=not found.min() <= r <= found.max(),
        basis=f"{len(found)} pairs of runs in {len(settings)} settings ({table['about']})",
    )
