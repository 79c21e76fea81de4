"""Outputs of a tested network for every image: small arrays for intervals and diagrams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import Cell
from chaosgate.run.files import RunDirectory, replace_file

Arrays = dict[str, NDArray[Any]]
PER_IMAGE = ("confidence", "nll", "confidence_slope", "nll_slope")
"""What is kept of every image after temperature scaling; slopes are derivatives by log T."""
_VALIDATION = ("validation_logits", "validation_target", "validation_index")
_SHARED = ("corruption", "severity", "slope", "curvature", "on_test", *_VALIDATION)
"""Arrays that do not have an entry for each test image of each cell."""


@dataclass(frozen=True)
class Samples:
    """One value per cell and image, images in the same order in every cell.

    Args:
        cells: Corruption and severity of every row.
        confidence: Largest probability, (cells, images).
        correct: Whether the most probable class is the true one, (cells, images).
        nll: Negative log-likelihood, (cells, images).
        index: Position of every image in its data set, (images,); networks are paired by it.
        scaled: Values after temperature scaling, if a temperature was fitted.
    """

    cells: tuple[Cell, ...]
    confidence: NDArray[np.float32]
    correct: NDArray[np.bool_]
    nll: NDArray[np.float32]
    index: NDArray[np.int32]
    scaled: "ScaledSamples | None" = None

    def of(self, cells: Sequence[Cell]) -> "Samples":
        """Some of the cells, in the given order."""
        rows, scaled = [self.cells.index(cell) for cell in cells], self.scaled
        if scaled is not None:
            scaled = replace(scaled, per_image=scaled.per_image[:, rows])
        parts = (self.confidence[rows], self.correct[rows], self.nll[rows])
        return Samples(tuple(cells), *parts, self.index, scaled)


@dataclass(frozen=True)
class ScaledSamples:
    """Values after temperature scaling, and how they change with the images it is fitted on.

    Args:
        per_image: The values named by :data:`PER_IMAGE`, (4, cells, images).
        slope: Derivative of the NLL by the inverse temperature, of every image it was fitted on.
        curvature: Second derivative of the NLL, times the inverse temperature.
        on_test: Whether these are the test images, in the same order.
    """

    per_image: NDArray[np.float32]
    slope: NDArray[np.float32]
    curvature: NDArray[np.float32]
    on_test: bool = False

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Largest probability, (cells, images)."""
        return self.per_image[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Logits:
    """The kept logits of a tested network.

    Args:
        cells: Corruption and severity of every row.
        logits: In half precision, (cells, images, classes).
        target: True classes, (cells, images).
        index: Position of every image in its data set, (images,).
        validation: Logits, true classes and positions of the validation images, if there are any.
    """

    cells: tuple[Cell, ...]
    logits: NDArray[np.float16]
    target: NDArray[np.int32]
    index: NDArray[np.int32]
    validation: tuple[NDArray[np.float16], NDArray[np.int32], NDArray[np.int32]] | None = None


def samples_file(run: Path, test: str) -> Path:
    """Where a test keeps its outputs."""
    return RunDirectory(run).outputs / f"{test}.npz"


def sample_files(run: Path, test: str) -> list[Path]:
    """The same, if it has kept some."""
    return [path for path in [samples_file(run, test)] if path.exists()]


def load_samples(run: Path, *tests: str) -> Samples | None:
    """All images of some tests of the same images; None if a file is missing or images differ."""
    if (found := _load(run, tests)) is None:
        return None
    cells, values, first = found
    scaled = None
    if "slope" in first:
        per_image = np.stack([values[f"{key}_T"] for key in PER_IMAGE])
        scaled = ScaledSamples(
            per_image, first["slope"], first["curvature"], bool(first["on_test"])
        )
    scores = (values["confidence"], values["correct"], values["nll"])
    return Samples(cells, *scores, values["index"][0], scaled)


def load_logits(run: Path, tests: Sequence[str]) -> Logits | None:
    """Logits of all cells of some tests of the same images; None if one has not kept them."""
    found = _load(run, tests)
    if found is None or "logits" not in found[1]:
        return None
    cells, values, first = found
    held: Any = tuple(first[key] for key in _VALIDATION if key in first) or None
    return Logits(cells, values["logits"], values["target"], values["index"][0], held)


def _load(run: Path, tests: Sequence[str]) -> tuple[tuple[Cell, ...], Arrays, Arrays] | None:
    """Cells of all tests, arrays (cells, images, ...), and the arrays that all tests share."""
    files = [dict(np.load(path)) for test in tests for path in sample_files(run, test)]
    if not files or len(files) < len(tests):
        return None
    cells: list[Cell] = []
    for file in files:
        own: Any = [*zip(file["corruption"].tolist(), file["severity"].tolist(), strict=True)]
        new = np.array([cell not in cells for cell in own])
        number = np.where(new, len(cells) + new.cumsum() - 1, -1)
        file["cell"] = number[file["cell"]]  # in the order of all tests
        cells += [cell for cell in own if cell not in cells]
    keys = set(files[0]).intersection(*files)
    columns = {k: np.concatenate([file[k] for file in files]) for k in keys - {*_SHARED}}
    order = np.lexsort((columns["index"], columns["cell"]))
    order = order[columns["cell"][order] >= 0]
    images, rest = divmod(len(order), len(cells))
    if rest:
        return None
    table = {k: v[order].reshape(len(cells), images, *v.shape[1:]) for k, v in columns.items()}
    same_images = (table["index"] == table["index"][0]).all()
    if not same_images or (table["cell"].T != np.arange(len(cells))).any():
        return None
    return tuple(cells), table, {k: files[0][k] for k in keys & {*_SHARED}}


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    replace_file(path, partial(np.savez_compressed, **arrays))
