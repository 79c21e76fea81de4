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
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_TABLE = Path(__file__).with_name("calibration.json")


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` found; ``str`` is the answer as one paragraph.

    Attributes:
        r: Over-fitting of the network without noise, and its 95 % interval if the NLL of every
            image was given.
        change: Expected relative change of the test NLL by Gaussian Chaos at ``log_std`` 1, and the
            95 % interval for a single run.
        nearest: The calibrated setting with the nearest r, and the change measured there.
        distance: Difference of r to it.
        outside: Whether r is outside of the calibrated range.
        use: True where the whole interval is below zero, False where the expected change is not
            negative, None between.
    """

    r: float
    r_interval: tuple[float, float]
    change: float
    interval: tuple[float, float]
    nearest: tuple[str, float]
    distance: float
    outside: bool
    use: bool | None

    def __str__(self) -> str:
        table = _table()
        low, high = (f"{100 * end:+.0f}" for end in self.interval)
        many = sum(len(one["r"]) for one in table["settings"].values())
        answer = {
            True: "Use noise: start with log_std 1 and select among 0.5, 1, 2 and 3",
            None: "It is not clear that noise helps: try 0.3 and 1, and compare with none",
            False: "Train without noise; if in doubt, try 0.3",
        }[self.use]
        ends = f" ({self.r_interval[0]:.2f} to {self.r_interval[1]:.2f})"
        outside = " This is outside of the calibrated range: do not rely on it." * self.outside
        return (
            f"Over-fitting r = {self.r:.2f}{ends * (self.r_interval[0] < self.r)}. "
            f"Gaussian Chaos at log_std 1 is expected to change the "
            f"test NLL by {100 * self.change:+.0f} % ({low} to {high}). {answer}, on validation "
            f"images. This rests on {many} pairs of runs in {len(table['settings'])} settings "
            f"({table['about']}); the nearest is {self.nearest[0]} at a distance of "
            f"{self.distance:.2f} in r, where the change was {100 * self.nearest[1]:+.0f} %."
            f"{outside}"
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
    means, errors = [], []
    for name, given in (("train_nll", train_nll), ("val_nll", val_nll)):
        values = np.asarray(given, dtype=float).reshape(-1)
        if not (values.size and np.isfinite(values).all() and values.mean() > 0):
            raise ValueError(f"{name} must be finite, with a positive mean; got {given!r}.")
        means.append(float(values.mean()))
        spread = float(values.std(ddof=1)) if values.size > 1 else 0.0
        errors.append(spread / math.sqrt(values.size) / means[-1])
    ratio, table = means[0] / means[1], _table()
    r, error = 1 - ratio, ratio * math.hypot(*errors)  # the delta method
    change = table["intercept"] + table["slope"] * r
    half = table["quantile"] * math.hypot(table["error"], table["slope"] * error)
    settings = {name: np.mean([s["r"], s["change"]], 1) for name, s in table["settings"].items()}
    nearest = min(settings, key=lambda name: float(abs(settings[name][0] - r)))
    found = [value for one in table["settings"].values() for value in one["r"]]
    return Advice(
        r=r,
        r_interval=(r - 1.96 * error, r + 1.96 * error),
        change=change,
        interval=(change - half, change + half),
        nearest=(nearest, float(settings[nearest][1])),
        distance=float(abs(settings[nearest][0] - r)),
        outside=not min(found) <= r <= max(found),
        use=change + half < 0 or (None if change < 0 else False),
    )


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table
