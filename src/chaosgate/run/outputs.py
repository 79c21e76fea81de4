"""Outputs of a tested network for every image: small arrays that intervals and diagrams are made from."""

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from chaosgate.data.files.atomic import replace_file
from chaosgate.metrics.aggregate import Cell
from chaosgate.run.directory import RunDirectory

CLEAN_CELL: Cell = ("clean", 0)


@dataclass(frozen=True)
class Samples:
    """One value per cell and image, images in the same order in every cell and for every method.

    Args:
        cells: Corruption and severity of every row.
        confidence: Largest probability, (cells, images).
        correct: Whether the most probable class is the true one.
        nll: Negative log-likelihood.
        index: Number of every image in its data set, (images,): what networks are paired by.
        scaled: The same after temperature scaling, where a temperature was fitted.
    """

    cells: tuple[Cell, ...]
    confidence: NDArray[np.float32]
    correct: NDArray[np.bool_]
    nll: NDArray[np.float32]
    index: NDArray[np.int32]
    scaled: "ScaledSamples | None" = None

    def of(self, cells: Sequence[Cell]) -> "Samples":
        """The same for some of the cells, in the given order."""
        rows = [self.cells.index(cell) for cell in cells]
        scaled = None if self.scaled is None else self.scaled.of(rows)
        return Samples(tuple(cells), self.confidence[rows], self.correct[rows], self.nll[rows], self.index, scaled)


PER_IMAGE = ("confidence", "nll", "confidence_slope", "nll_slope")
"""What is kept of every image after temperature scaling; slopes are derivatives by the logarithm of T."""


@dataclass(frozen=True)
class ScaledSamples:
    """What one fitted temperature makes of a network, and how that would change with the images it is fitted on.

    Args:
        per_image: The values named by :data:`PER_IMAGE`, (4, cells, images).
        slope: Derivative of the NLL by the inverse temperature of every image it was fitted on, (images fitted on,).
        curvature: Its second derivative, times the inverse temperature.
        on_test: Whether these are the test images, in the same order.
    """

    per_image: NDArray[np.float32]
    slope: NDArray[np.float32]
    curvature: NDArray[np.float32]
    on_test: bool = False

    def of(self, rows: Sequence[int]) -> "ScaledSamples":
        """The same for some of the cells."""
        return replace(self, per_image=self.per_image[:, list(rows)])

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Largest probability, (cells, images)."""
        confidence: NDArray[np.float32] = self.per_image[PER_IMAGE.index("confidence")]
        return confidence


def join_samples(parts: Sequence[Samples | None]) -> Samples | None:
    """The cells of several tests of the same images; None if one is missing, or if the images differ."""
    whole = parts[0]
    for part in parts[1:]:
        if whole is None or part is None or not np.array_equal(whole.index, part.index):
            return None
        new = part.of([cell for cell in part.cells if cell not in whole.cells])
        joined = [np.concatenate((getattr(whole, key), getattr(new, key))) for key in ("confidence", "correct", "nll")]
        scaled = None
        if whole.scaled is not None and new.scaled is not None:
            both = np.concatenate((whole.scaled.per_image, new.scaled.per_image), axis=1)
            scaled = replace(whole.scaled, per_image=both)
        whole = Samples((*whole.cells, *new.cells), joined[0], joined[1], joined[2], whole.index, scaled)
    return whole


def samples_file(run: Path, test: str, rank: int = 0, world: int = 1) -> Path:
    """Where one process of a test leaves its share; one file if there is one process."""
    return RunDirectory(run).outputs / f"{test}-{rank}-of-{world}.npz"


def sample_files(run: Path, test: str) -> list[Path]:
    """What all processes of a test have left, of every time that it was done."""
    return sorted(RunDirectory(run).outputs.glob(f"{test}-*-of-*.npz"))


def load_samples(run: Path, test: str) -> Samples | None:
    """All images of a test, put together from the shares of its processes; None if a share is missing."""
    if (found := _shares(run, test)) is None:
        return None
    shares = [_with_implied(share) for share in found]
    if (placed := _placed(shares)) is None:
        return None
    cells, index, values = placed

    def single(key: str) -> NDArray[np.float32]:
        return values(key).astype(np.float32, copy=False)  # a kept study has half precision

    scaled = None
    if "slope" in shares[0]:
        per_image = np.stack([single(f"{key}_T") for key in PER_IMAGE])
        first = shares[0]  # the first process has the whole of what the temperature was fitted on
        slope, curvature = (first[key].astype(np.float32, copy=False) for key in ("slope", "curvature"))
        scaled = ScaledSamples(per_image, slope, curvature, bool(first["on_test"]))
    return Samples(cells, single("confidence"), values("correct"), single("nll"), index, scaled)


Placed = tuple[tuple[Cell, ...], NDArray[np.int32], Callable[[str], NDArray[Any]]]


def _shares(run: Path, test: str) -> list[dict[str, NDArray[Any]]] | None:
    """The files of all processes of a test; None if one is missing."""
    if not (found := sample_files(run, test)):
        return None
    newest = max(found, key=lambda path: path.stat().st_mtime)  # if the test was done several times
    world = int(newest.stem.rsplit("-", 1)[-1])
    paths = [samples_file(run, test, rank, world) for rank in range(world)]
    return [read_arrays(path) for path in paths] if all(path.is_file() for path in paths) else None


def _placed(shares: Sequence[dict[str, NDArray[Any]]]) -> Placed | None:
    """Cells, indices of the images, and how to put an array in their order, (cells, images, ...).

    None where the cells do not show the same images.
    """
    cells = tuple(zip(shares[0]["corruption"].tolist(), shares[0]["severity"].tolist(), strict=True))
    cell, index = (np.concatenate([share[key] for share in shares]) for key in ("cell", "index"))
    order = np.lexsort((index, cell))
    images, rest = divmod(len(order), len(cells))
    if rest or np.any(cell[order] != np.repeat(np.arange(len(cells)), images)):
        return None
    by_cell = index[order].reshape(len(cells), images)
    if np.any(by_cell != by_cell[0]):
        return None

    def values(key: str) -> NDArray[Any]:
        whole = np.concatenate([share[key] for share in shares])[order]
        return whole.reshape(len(cells), images, *whole.shape[1:])

    return cells, by_cell[0], values


OF_LOGITS = ("logits", "target", "validation_")
"""How the arrays begin that are there where logits are kept, and for them alone."""


@dataclass(frozen=True)
class Logits:
    """The kept logits of a tested network.

    Args:
        cells: Corruption and severity of every row.
        logits: In half precision, (cells, images, classes).
        target: True classes, (cells, images).
        index: Number of every image in its data set, (images,).
        validation: Logits, true classes and numbers of the validation images, where there were any.
    """

    cells: tuple[Cell, ...]
    logits: NDArray[np.float16]
    target: NDArray[np.int32]
    index: NDArray[np.int32]
    validation: tuple[NDArray[np.float16], NDArray[np.int32], NDArray[np.int32]] | None = None


def load_logits(run: Path, tests: Sequence[str]) -> Logits | None:
    """Logits of all cells of some tests of the same images; None where one has not kept them."""
    parts = [_load_logits(run, test) for test in tests]
    whole = parts[0] if parts else None
    for part in parts[1:]:
        if whole is None or part is None or not np.array_equal(whole.index, part.index):
            return None
        new = [row for row, cell in enumerate(part.cells) if cell not in whole.cells]
        cells = (*whole.cells, *(part.cells[row] for row in new))
        logits = np.concatenate((whole.logits, part.logits[new]))
        target = np.concatenate((whole.target, part.target[new]))
        whole = replace(whole, cells=cells, logits=logits, target=target)
    return whole


def _load_logits(run: Path, test: str) -> Logits | None:
    found = _shares(run, test)
    if found is None or any("logits" not in share for share in found):
        return None
    placed = _placed(found)
    if placed is None:
        return None
    cells, index, values = placed
    first = found[0]
    validation = None
    if "validation_logits" in first:
        validation = (first["validation_logits"], first["validation_target"], first["validation_index"])
    return Logits(cells, values("logits"), values("target"), index, validation)


# -- a correct prediction has confidence exp(-NLL): files to keep leave out what follows from its NLL ------------------


def without_implied(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Zeros, which compress to nothing, for the confidences of correct predictions and their slopes."""
    kept = dict(arrays)
    for group in _implied(arrays):
        follows = [np.isclose(arrays[key], values, rtol=0, atol=1e-4) for key, values in group.items()]
        left_out = np.logical_and.reduce([arrays["correct"], *follows])
        kept |= {key: np.where(left_out, np.zeros_like(arrays[key]), arrays[key]) for key in group}
    return kept


def _with_implied(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Put back what was left out; no network has a confidence of zero."""
    whole = dict(arrays)
    for group in _implied(arrays):
        left_out = arrays[next(iter(group))] == 0
        whole |= {key: np.where(left_out, values, arrays[key]) for key, values in group.items()}
    return whole


def _implied(arrays: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[np.float32]]]:
    """What NLLs say about correct predictions, as trained and after temperature scaling: confidences first."""
    found = [{"confidence": np.exp(-arrays["nll"].astype(np.float32))}]
    if "nll_T" in arrays:
        confidence = np.exp(-arrays["nll_T"].astype(np.float32))
        found.append({"confidence_T": confidence, "confidence_slope_T": -confidence * arrays["nll_slope_T"]})
    return found


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    replace_file(path, partial(np.savez_compressed, **arrays))


def write_small_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """The same, a tenth smaller and slower to write: for files to keep."""

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for key, values in arrays.items():
                np.save(content := io.BytesIO(), values, allow_pickle=False)
                undated = zipfile.ZipInfo(f"{key}.npy")  # the same arrays are the same bytes
                archive.writestr(undated, content.getvalue(), zipfile.ZIP_LZMA)

    replace_file(path, write)
