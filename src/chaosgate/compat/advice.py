r"""Predict from a network trained without noise whether noise would help.

.. math:: r = 1 - \frac{\text{training NLL}}{\text{validation NLL}}

is 0 without overfitting and near 1 where the training NLL is near zero. In the kept studies the
relative change of the test NLL by Gaussian Chaos at ``log_std`` 1 is close to linear in r.
``calibration.json`` (``scripts/calibrate_advice.py``) has r and the change of every pair of runs,
by setting. The interval of a prediction comes from leaving out one setting at a time.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import ArrayLike

TABLE = Path(__file__).with_name("calibration.json")
_ANSWERS = {
    True: "Use noise: start with log_std 1, and select among 0.5, 1, 2 and 3 on validation images.",
    None: "It is not clear that noise helps: compare 0.3, 1 and none on validation images.",
    False: "Train without noise.",
}


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` found; ``str`` is the answer as one paragraph.

    Attributes:
        r: Overfitting of the network without noise.
        r_interval: Its 95 % interval, if the NLL of every image was given.
        change: Expected relative change of the test NLL by Gaussian Chaos at ``log_std`` 1.
        interval: Its 95 % interval, for a single run.
        use: True where the whole interval is below zero, False where the expected change is not
            negative, None between.
        nearest: The setting of the fit with the nearest r.
        distance: Difference of r to it.
        outside: Whether r is outside of the range of the fit.
        basis: What the calibration rests on.
    """

    r: float
    r_interval: tuple[float, float]
    change: float
    interval: tuple[float, float]
    use: bool | None
    nearest: str
    distance: float
    outside: bool
    basis: str

    def __str__(self) -> str:
        (low, high), (least, most) = self.r_interval, self.interval
        outside = " r is outside of the range of the fit: do not rely on this." * self.outside
        return (
            f"Overfitting r = {self.r:.2f} ({low:.2f} to {high:.2f}). Gaussian Chaos at log_std 1 "
            f"is expected to change the test NLL by {self.change:+.0%} ({least:+.0%} to "
            f"{most:+.0%}). {_ANSWERS[self.use]} This rests on {self.basis}; the nearest "
            f"setting, {self.nearest}, has an r that differs by {self.distance:.2f}.{outside}"
        )


def advise(train_nll: ArrayLike, val_nll: ArrayLike) -> Advice:
    """Predict from a network trained without noise whether noise would help.

    Args:
        train_nll: NLL on training images in evaluation mode and without augmentation: of every
            image, or the mean.
        val_nll: The same on validation images.

    >>> advise(0.10, 0.42).use, advise(0.9, 1.0).use
    (True, False)
    """
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    given = [np.asarray(nll, dtype=float).reshape(-1) for nll in (train_nll, val_nll)]
    train, val = (nll.mean() for nll in given)
    if not (0 < train < math.inf and 0 < val < math.inf):
        raise ValueError(f"NLLs are positive; their means are {train} and {val}.")
    # delta method: relative errors of the means
    errors = [nll.std(ddof=nll.size > 1) / math.sqrt(nll.size) / nll.mean() for nll in given]
    r, error = float(1 - train / val), float(train / val * math.hypot(*errors))
    change = table["intercept"] + table["slope"] * r
    half = table["quantile"] * math.hypot(table["error"], table["slope"] * error)
    settings = {name: one["r"] for name, one in table["settings"].items()}
    distance, nearest = min((abs(fmean(one) - r), name) for name, one in settings.items())
    pairs = [one for rs in settings.values() for one in rs]
    return Advice(
        r=r,
        r_interval=(r - 1.96 * error, r + 1.96 * error),
        change=change,
        interval=(change - half, change + half),
        use=change + half < 0 or (None if change < 0 else False),
        nearest=nearest,
        distance=distance,
        outside=not min(pairs) <= r <= max(pairs),
        basis=f"{len(pairs)} pairs of runs in {len(settings)} settings ({table['about']})",
    )
