"""Outputs of a tested network for every image: small arrays for intervals and diagrams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import Cell
from chaosgate.run.directory import RunDirectory, replace_file

Arrays = dict[str, NDArray[Any]]
PER_IMAGE = ("confidence", "nll", "confidence_slope", "nll_slope")
"""What is kept of every image after temperature scaling; slopes are derivatives by log T."""
_SHARED = ("corruption", "severity", "slope", "curvature", "on_test")  # not per test image


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
        rows = [self.cells.index(cell) for cell in cells]
        scaled = None if self.scaled is None else self.scaled.of(rows)
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

    def of(self, rows: Sequence[int]) -> "ScaledSamples":
        """Some of the cells."""
        return replace(self, per_image=self.per_image[:, list(rows)])

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Largest probability, (cells, images)."""
        confidence: NDArray[np.float32] = self.per_image[0]
        return confidence


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


def samples_file(run: Path, test: str, rank: int = 0, world: int = 1) -> Path:
    """Where one process of a test writes its share."""
    return RunDirectory(run).outputs / f"{test}-{rank}-of-{world}.npz"


def sample_files(run: Path, test: str) -> list[Path]:
    """The files of all processes of a test, of every time it was done."""
    return sorted(RunDirectory(run).outputs.glob(f"{test}-*-of-*.npz"))


def load_samples(run: Path, *tests: str) -> Samples | None:
    """All images of some tests of the same images; None if a file is missing or images differ."""
    if (found := _load(run, tests)) is None:
        return None
    cells, values, firsts = found
    scaled = None
    if all("slope" in first for first in firsts):  # packed studies have halves
        per_image = np.stack([values[f"{key}_T"].astype(np.float32) for key in PER_IMAGE])
        slope, curvature = (firsts[0][key].astype(np.float32) for key in ("slope", "curvature"))
        scaled = ScaledSamples(per_image, slope, curvature, bool(firsts[0]["on_test"]))
    confidence, nll = (values[key].astype(np.float32) for key in ("confidence", "nll"))
    scores = (confidence, values["correct"], nll)
    return Samples(cells, *scores, values["index"][0], scaled)


def load_logits(run: Path, tests: Sequence[str]) -> Logits | None:
    """Logits of all cells of some tests of the same images; None if one has not kept them."""
    found = _load(run, tests)
    if found is None or "logits" not in found[1]:
        return None
    cells, values, (first, *_) = found
    keys = ("validation_logits", "validation_target", "validation_index")
    held: Any = tuple(first[key] for key in keys if key in first) or None
    return Logits(cells, values["logits"], values["target"], values["index"][0], held)


def _load(run: Path, tests: Sequence[str]) -> tuple[tuple[Cell, ...], Arrays, list[Arrays]] | None:
    """Cells of all tests, arrays (cells, images, ...), and the first share of each test."""
    cells: list[Cell] = []
    parts: list[Arrays] = []
    firsts: list[Arrays] = []
    for test in tests:
        if not (files := sample_files(run, test)):
            return None
        newest = max(files, key=lambda path: path.stat().st_mtime)  # if it was done several times
        world = int(newest.stem.rsplit("-", 1)[-1])
        paths = [samples_file(run, test, rank, world) for rank in range(world)]
        if not all(path.is_file() for path in paths):
            return None
        shares = [dict(np.load(path, allow_pickle=False)) for path in paths]
        first = shares[0]
        own: Any = [*zip(first["corruption"].tolist(), first["severity"].tolist(), strict=True)]
        keys = [key for key in first if key not in _SHARED and not key.startswith("validation_")]
        whole = {key: np.concatenate([share[key] for share in shares]) for key in keys}
        order = np.lexsort((whole["index"], whole["cell"]))
        if len(order) % len(own):
            return None
        table = {k: v[order].reshape(len(own), -1, *v.shape[1:]) for k, v in whole.items()}
        images = (parts or [table])[0]["index"][0]
        expected = np.broadcast_to(images, (len(own), len(images)))
        if not np.array_equal(table["index"], expected) or np.any(
            table["cell"].T != np.arange(len(own))
        ):
            return None
        new = [row for row, cell in enumerate(own) if cell not in cells]
        cells += [own[row] for row in new]
        parts.append({key: values[new] for key, values in table.items()})
        firsts.append(first)
    if not parts:
        return None
    common = [key for key in parts[0] if all(key in part for part in parts)]
    values = {key: np.concatenate([part[key] for part in parts]) for key in common}
    return tuple(cells), values, firsts


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    replace_file(path, partial(np.savez_compressed, **arrays))
