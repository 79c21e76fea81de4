"""Outputs of a tested network for every image: small arrays for intervals and diagrams."""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.metrics.aggregate import Cell
from chaosgate.run.directory import RunDirectory, replace_file

Arrays = dict[str, NDArray[Any]]
PER_IMAGE = ("confidence", "nll", "confidence_slope", "nll_slope")
"""What is kept of every image after temperature scaling; slopes are derivatives by log T."""
OF_LOGITS = ("logits", "target", "validation_")
"""Prefixes of the arrays that exist only if logits are kept."""
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
    cells, index, values, firsts = found

    def single(array: NDArray[Any]) -> NDArray[np.float32]:
        return array.astype(np.float32, copy=False)  # packed studies have halves

    scaled = None
    if all("slope" in first for first in firsts):
        per_image = np.stack([single(values[f"{key}_T"]) for key in PER_IMAGE])
        slope, curvature = (single(firsts[0][key]) for key in ("slope", "curvature"))
        scaled = ScaledSamples(per_image, slope, curvature, bool(firsts[0]["on_test"]))
    scores = (single(values["confidence"]), values["correct"], single(values["nll"]))
    return Samples(cells, *scores, index, scaled)


def load_logits(run: Path, tests: Sequence[str]) -> Logits | None:
    """Logits of all cells of some tests of the same images; None if one has not kept them."""
    found = _load(run, tests)
    if found is None or "logits" not in found[2]:
        return None
    cells, index, values, firsts = found
    keys = ("validation_logits", "validation_target", "validation_index")
    held: Any = tuple(firsts[0][key] for key in keys if key in firsts[0]) or None
    return Logits(cells, values["logits"], values["target"], index, held)


def _load(
    run: Path, tests: Sequence[str]
) -> tuple[tuple[Cell, ...], Any, Arrays, list[Arrays]] | None:
    """Cells, positions of the images, arrays (cells, images, ...), and each test's first share."""
    cells: list[Cell] = []
    index: Any = None
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
        shares = [_with_implied(read_arrays(path)) for path in paths]
        first = shares[0]
        names, severities = first["corruption"].tolist(), first["severity"].tolist()
        own = [Cell(*cell) for cell in zip(names, severities, strict=True)]
        keys = [key for key in first if key not in _SHARED and not key.startswith("validation_")]
        whole = {key: np.concatenate([share[key] for share in shares]) for key in keys}
        order = np.lexsort((whole["index"], whole["cell"]))
        if len(order) % len(own):
            return None
        by_cell = {k: v[order].reshape(len(own), -1, *v.shape[1:]) for k, v in whole.items()}
        index = by_cell["index"][0] if index is None else index
        same_cells = by_cell["cell"] == np.arange(len(own))[:, None]
        if not np.all(same_cells) or not all(
            np.array_equal(row, index) for row in by_cell["index"]
        ):
            return None
        new = [row for row, cell in enumerate(own) if cell not in cells]
        cells += [own[row] for row in new]
        parts.append({key: values[new] for key, values in by_cell.items()})
        firsts.append(first)
    common = [key for key in parts[0] if all(key in part for part in parts)] if parts else []
    values = {key: np.concatenate([part[key] for part in parts]) for key in common}
    return (tuple(cells), index, values, firsts) if parts else None


# -- a correct prediction has confidence exp(-NLL): packed studies leave it out -------------------


def without_implied(arrays: Arrays) -> Arrays:
    """Zeros, which compress well, for the confidences of correct predictions and their slopes."""
    kept = dict(arrays)
    for group in _implied(arrays):
        follows = [np.isclose(arrays[k], values, rtol=0, atol=1e-4) for k, values in group.items()]
        left_out = np.logical_and.reduce([arrays["correct"], *follows])
        kept |= {k: np.where(left_out, np.zeros_like(arrays[k]), arrays[k]) for k in group}
    return kept


def _with_implied(arrays: Arrays) -> Arrays:
    """Put back what was left out; no network has a confidence of zero."""
    whole = dict(arrays)
    for group in _implied(arrays):
        left_out = arrays[next(iter(group))] == 0
        whole |= {k: np.where(left_out, values, arrays[k]) for k, values in group.items()}
    return whole


def _implied(arrays: Arrays) -> list[Arrays]:
    """What the NLL of a correct prediction implies, unscaled and scaled; confidences first."""
    found: list[Arrays] = [{"confidence": np.exp(-arrays["nll"].astype(np.float32))}]
    if "nll_T" in arrays:
        confidence = np.exp(-arrays["nll_T"].astype(np.float32))
        slope = -confidence * arrays["nll_slope_T"]
        found.append({"confidence_T": confidence, "confidence_slope_T": slope})
    return found


def read_arrays(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    replace_file(path, partial(np.savez_compressed, **arrays))


def write_small_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """A tenth smaller, slower to write, and the same bytes for the same arrays."""

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for key, values in arrays.items():
                np.save(content := io.BytesIO(), values, allow_pickle=False)
                undated = zipfile.ZipInfo(f"{key}.npy")
                archive.writestr(undated, content.getvalue(), zipfile.ZIP_LZMA)

    replace_file(path, write)
