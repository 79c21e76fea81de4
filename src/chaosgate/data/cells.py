"""Corrupted copies of a test set: which cells were asked for, and their images for sets that fit into memory."""

import hashlib
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import PIL
import scipy
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from chaosgate.data.pipeline.sample import CLEAN, Cell

Corruptions = Literal["paper"] | list[str] | None
SEVERITIES = (1, 2, 3, 4, 5)


def plan_cells(corruptions: Corruptions, severities: Sequence[int], table: str = "imagenet") -> list[Cell]:
    """The clean set, then every corruption at every severity.

    ``"paper"`` names the seven corruptions of the paper; a list names one's own; none leaves the clean set alone.
    """
    outside = [severity for severity in severities if severity not in SEVERITIES]
    if outside or not severities:
        raise ValueError(f"data.severities is {list(severities)}; give some of 1, 2, 3, 4, 5.")
    if len(set(severities)) < len(severities):
        raise ValueError(f"data.severities {list(severities)} names something twice.")
    if corruptions is None:
        return [CLEAN]
    from chaosgate.corruptions import PAPER, parameters

    if not corruptions or (isinstance(corruptions, str) and corruptions != "paper"):
        raise ValueError(f"data.corruptions is {corruptions!r}; give 'paper', a list of names, or null.")
    names = list(PAPER) if corruptions == "paper" else list(corruptions)
    if len(set(names)) < len(names):
        raise ValueError(f"data.corruptions {names} names something twice.")
    cells = [Cell(name, severity) for name in names for severity in severities]
    for cell in cells:
        try:
            parameters(*cell, table)  # refuses an unknown name and proposes the nearest
        except ValueError as error:
            raise ValueError(f"data.corruptions: {error}") from None
    return [CLEAN, *cells]


def corrupted_copies(
    images: NDArray[np.uint8],
    cells: Sequence[Cell],
    seed: int,
    table: str,
    cache_dir: Path | None = None,
    quiet: bool = False,
) -> list[NDArray[np.uint8]]:
    """Images (N, H, W) or (N, H, W, C) of every cell; image i is a function of (seed, corruption, severity, i).

    With ``cache_dir`` each cell is kept in a file whose name covers images, cell, seed, table, and the code and
    libraries that made it; a damaged file is made again.
    """
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        bar = progress.add_task(f"corrupting {len(images)} test images", total=len(cells))
        copies = []
        for cell in cells:
            copies.append(images if cell == CLEAN else _copy(images, cell, seed, table, cache_dir))
            progress.advance(bar)
    return copies


def _copy(images: NDArray[np.uint8], cell: Cell, seed: int, table: str, cache_dir: Path | None) -> NDArray[np.uint8]:
    path = None if cache_dir is None else cache_dir / _cell_file(images, cell, seed, table)
    if path is not None and (cached := _read(path, images.shape)) is not None:
        return cached
    from chaosgate.corruptions import corrupt_batch

    made: NDArray[np.uint8] = corrupt_batch(
        images, cell.corruption, cell.severity, seed=seed, indices=range(len(images)), table=table
    )
    if path is not None:
        _write(path, made)
    return made


def _cell_file(images: NDArray[np.uint8], cell: Cell, seed: int, table: str) -> str:
    digest = hashlib.sha256(repr((cell.corruption, cell.severity, seed, table, images.shape)).encode())
    digest.update(images.tobytes())
    for library in (np, scipy, cv2, PIL):
        digest.update(f"{library.__name__} {library.__version__}".encode())
    for source in sorted(files("chaosgate.corruptions").iterdir(), key=lambda entry: entry.name):
        if source.is_file():
            digest.update(source.name.encode() + source.read_bytes())
    return f"{cell.corruption}-{cell.severity}-{digest.hexdigest()[:32]}.cell"


def _read(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """Pixels of a cached cell: its bytes behind their own SHA-256."""
    if not path.exists():
        return None
    data = path.read_bytes()
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        rank_zero_warn(f"{path} is damaged and is made again.")
        return None
    return np.frombuffer(data, dtype=np.uint8, offset=32).reshape(shape)


def _write(path: Path, images: NDArray[np.uint8]) -> None:
    body = images.tobytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            half = Path(folder) / path.name
            half.write_bytes(hashlib.sha256(body).digest() + body)
            half.replace(path)  # in one step: another process sees the whole file or none
    except OSError as error:
        raise OSError(f"cannot keep {path}: {error}. Set data.cache_dir to a folder with space, or to null.") from error
