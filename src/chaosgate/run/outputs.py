"""What a tested network said about every image: small arrays that intervals and diagrams are made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.run.directory import RunDirectory

Cell = tuple[str, int]


@dataclass(frozen=True)
class Samples:
    """One value per cell and image, images in the same order in every cell and for every method.

    Args:
        cells: Corruption and severity of every row.
        confidence: Largest probability, (cells, images).
        correct: Whether the most probable class is the true one.
        nll: Negative log-likelihood.
    """

    cells: tuple[Cell, ...]
    confidence: NDArray[np.float32]
    correct: NDArray[np.bool_]
    nll: NDArray[np.float32]

    def of(self, cells: Sequence[Cell]) -> "Samples":
        """The same for some of the cells, in the given order."""
        rows = [self.cells.index(cell) for cell in cells]
        return Samples(tuple(cells), self.confidence[rows], self.correct[rows], self.nll[rows])


def join_samples(parts: Sequence[Samples | None]) -> Samples | None:
    """The cells of several tests of the same images; None if one is missing, or if the images differ in number."""
    whole = parts[0]
    for part in parts[1:]:
        if whole is None or part is None or whole.correct.shape[1] != part.correct.shape[1]:
            return None
        new = part.of([cell for cell in part.cells if cell not in whole.cells])
        values = ((getattr(whole, key), getattr(new, key)) for key in ("confidence", "correct", "nll"))
        whole = Samples((*whole.cells, *new.cells), *(np.concatenate(pair) for pair in values))
    return whole


def samples_file(run: Path, test: str, rank: int = 0, world: int = 1) -> Path:
    """Where one process of a test leaves its share; one file if there is one process."""
    return RunDirectory(run).outputs / f"{test}-{rank}-of-{world}.npz"


def load_samples(run: Path, test: str) -> Samples | None:
    """All images of a test, put together from the shares of its processes; None if a share is missing."""
    found = sorted(RunDirectory(run).outputs.glob(f"{test}-*-of-*.npz"), key=lambda path: path.stat().st_mtime)
    if not found:
        return None
    world = int(found[-1].stem.rsplit("-", 1)[-1])  # the newest test, if there were several
    paths = [samples_file(run, test, rank, world) for rank in range(world)]
    if not all(path.is_file() for path in paths):
        return None
    shares = [_read(path) for path in paths]
    cells = tuple(zip(shares[0]["corruption"].tolist(), shares[0]["severity"].tolist(), strict=True))
    cell, index, *values = (
        np.concatenate([share[key] for share in shares]) for key in ("cell", "index", "confidence", "correct", "nll")
    )
    order = np.lexsort((index, cell))
    images, rest = divmod(len(order), len(cells))
    if rest or np.any(cell[order] != np.repeat(np.arange(len(cells)), images)):
        return None
    return Samples(cells, *(value[order].reshape(len(cells), images) for value in values))


def _read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}
