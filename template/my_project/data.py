"""A data set in memory: gray images of squares, discs and crosses."""

from typing import Any

import numpy as np

from chaosgate.data.arrays import ArrayData, Part

SIDE = 28


class Shapes(ArrayData):
    """Three classes of noisy shapes. Replace :meth:`read` to use your own images."""

    num_classes = 3
    class_names = ["square", "disc", "cross"]

    def __init__(self, **settings: Any) -> None:
        super().__init__(mean=(0.27,), std=(0.18,), **settings)

    def read(self) -> dict[str, Part]:
        return {"train": _part(900, seed=0), "test": _part(300, seed=1)}


def _part(count: int, seed: int) -> Part:
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    images, targets = [], np.arange(count) % 3
    for target in targets:
        row, column, radius = (int(random.integers(*ends)) for ends in ((9, 19), (9, 19), (4, 8)))
        down, right = abs(y - row), abs(x - column)
        shape = (
            np.maximum(down, right) <= radius,
            down**2 + right**2 <= radius**2,
            (np.minimum(down, right) <= 1) & (np.maximum(down, right) <= radius),
        )[target]
        images.append(np.where(shape, 150, 60) + random.normal(0, 40, shape.shape))
    return Part(np.stack(images).clip(0, 255).astype(np.uint8), targets)
