"""Strength over training time."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Ramp:
    """Raise the strength from ``start`` to one over the first steps or epochs, then hold it.

    Args:
        steps: Length in optimiser steps. Exactly one of ``steps`` and ``epochs``.
        epochs: Length in epochs; may be a fraction.
        start: Factor on the nominal strength at the beginning, in [0, 1].
        shape: ``"linear"`` or ``"cosine"`` (slow at both ends).

    >>> Ramp(steps=100)(step=25, epoch=0.0)
    0.25
    """

    steps: int | None = None
    epochs: float | None = None
    start: float = 0.0
    shape: Literal["linear", "cosine"] = "linear"

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"Ramp takes exactly one of steps and epochs; got {self.steps!r} and {self.epochs!r}.")
        name, length = ("steps", self.steps) if self.steps is not None else ("epochs", self.epochs)
        if length is None or not math.isfinite(length) or length <= 0:
            raise ValueError(f"Ramp: {name} is the length of the ramp, a positive number; got {length!r}.")
        if not 0 <= self.start <= 1:
            raise ValueError(f"Ramp: start is a factor in [0, 1]; got {self.start!r}.")
        if self.shape not in ("linear", "cosine"):
            raise ValueError(f"Ramp: shape is 'linear' or 'cosine'; got {self.shape!r}.")

    def __call__(self, step: int, epoch: float) -> float:
        """The factor at an optimiser step and a (fractional) epoch."""
        done = step / self.steps if self.steps is not None else epoch / self.epochs if self.epochs is not None else 1.0
        done = min(max(done, 0.0), 1.0)
        if self.shape == "cosine":
            done = 0.5 - 0.5 * math.cos(math.pi * done)
        return self.start + (1 - self.start) * done
