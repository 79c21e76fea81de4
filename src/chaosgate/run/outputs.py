"""Outputs of a tested network for every image: small arrays for intervals and diagrams."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import Cell
from chaosgate.run.files import RunDirectory, replace_file

Arrays = dict[str, NDArray[Any]]
PER_IMAGE = ("confidence", "nll", "confidence_slope", "nll_slope")
"""Values of every image after temperature scaling; slopes are derivatives by log T."""
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
        logits: In half precision, (cells, images, classes), if they were kept.
        target: True classes, (cells, images), with the logits.
        validation: Logits, true classes and positions of the validation images, with the logits.
    """

    cells: tuple[Cell, ...]
    confidence: NDArray[np.float32]
    correct: NDArray[np.bool_]
    nll: NDArray[np.float32]
    index: NDArray[np.int32]
    scaled: "ScaledSamples | None" = None
    logits: Any = None
    target: Any = None
    validation: Any = None


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


def samples_file(run: Path, test: str) -> Path:
    """Where a test keeps its outputs."""
    return RunDirectory(run).outputs / f"{test}.npz"


def sample_files(run: Path, test: str) -> list[Path]:
    """The file, if the test has kept outputs."""
    return [path for path in [samples_file(run, test)] if path.exists()]


def load_samples(run: Path, *tests: str) -> Samples | None:
    """All images of some tests of the same images; None if a file is missing or images differ."""
    if (found := _load(run, tests)) is None:
        return None
    cells, values, first = found
    scores, scaled = (values["confidence"], values["correct"], values["nll"]), None
    if "slope" in first:
        per_image = np.stack([values[f"{key}_T"] for key in PER_IMAGE])
        fit = (first["slope"], first["curvature"], bool(first["on_test"]))
        scaled = ScaledSamples(per_image, *fit)
    held = tuple(first[key] for key in _VALIDATION if key in first) or None
    kept = (values.get("logits"), values.get("target"), held)
    return Samples(cells, *scores, values["index"][0], scaled, *kept)


def _load(run: Path, tests: Sequence[str]) -> tuple[tuple[Cell, ...], Arrays, Arrays] | None:
    """Cells of all tests, arrays (cells, images, ...), and the shared arrays of the first test."""
    cells: list[Cell] = []
    tables: list[Arrays] = []
    shared: list[Arrays] = []
    for path in (samples_file(run, test) for test in tests):
        if not path.exists():
            return None
        file = dict(np.load(path))
        shared.append({key: file.pop(key) for key in _SHARED if key in file})
        own: Any = [*zip(*(shared[-1][key].tolist() for key in _SHARED[:2]), strict=True)]
        new = [place for place, cell in enumerate(own) if cell not in cells]
        order = np.lexsort((file["index"], file.pop("cell")))
        table = {k: v[order].reshape(len(own), -1, *v.shape[1:])[new] for k, v in file.items()}
        tables.append(table)
        cells += [own[place] for place in new]
    images = tables[0]["index"][0]
    if any(not np.array_equal(row, images) for table in tables for row in table["index"]):
        return None
    keys, both = set(tables[0]).intersection(*tables), set(shared[0]).intersection(*shared)
    joined = {key: np.concatenate([table[key] for table in tables]) for key in keys}
    return tuple(cells), joined, {key: shared[0][key] for key in both}


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    replace_file(path, partial(np.savez_compressed, **arrays))
