"""A gate: one class with one method."""

from torch import Tensor

import chaosgate as cg


class Blink(cg.Gate):
    """Drops the whole map of an image with probability ``p`` and rescales the others (mean one)."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = p

    def perturb(self, h: Tensor, noise: cg.field.white.Noise) -> Tensor:
        p = self.p if self.factor is None else self.p * self.factor  # set by a schedule
        keep = noise.uniform((len(h), 1, 1, 1)) >= p
        return h * keep.to(h.dtype) / (1 - p)
