"""Corrupted copies of a test set: which cells were asked for; their images in memory, or made on the fly."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal, Protocol

import cv2
import numpy as np
import PIL
import scipy
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from chaosgate.corruptions import COMMON, EXTRA, PAPER, Corrupt, corrupt_batch, parameters
from chaosgate.data.atomic import replace_file
from chaosgate.data.decoding import as_tensor
from chaosgate.data.samples import CLEAN, Cell, Images, Split

Corruptions = Literal["paper", "common", "all"] | list[str] | None
NAMED = {"paper": PAPER, "common": COMMON, "all": COMMON + EXTRA}
"""Sets of corruptions that have a name: the seven of the paper, the fifteen of mCE, and all nineteen."""
SEVERITIES = (1, 2, 3, 4, 5)
Table = Literal["imagenet", "small"]
LARGEST_SMALL = 64  # pixels; up to here images are small ones, with parameters and recipes of their own


def plan_cells(corruptions: Corruptions, severities: Sequence[int], table: str = "imagenet") -> list[Cell]:
    """The clean set, then every corruption at every severity.

    ``"paper"`` names the seven corruptions of the paper, ``"common"`` and ``"all"`` the fifteen and the nineteen of the
    benchmark; a list names one's own; none leaves the clean set alone.
    """
    outside = [severity for severity in severities if severity not in SEVERITIES]
    if outside or not severities:
        raise ValueError(f"data.severities is {list(severities)}; give some of 1, 2, 3, 4, 5.")
    if len(set(severities)) < len(severities):
        raise ValueError(f"data.severities {list(severities)} names a value twice.")
    if corruptions is None:
        return [CLEAN]
    if not corruptions or (isinstance(corruptions, str) and corruptions not in NAMED):
        raise ValueError(f"data.corruptions is {corruptions!r}; give paper, common, all, a list of names, or null.")
    names = list(NAMED[corruptions] if isinstance(corruptions, str) else corruptions)
    if len(set(names)) < len(names):
        raise ValueError(f"data.corruptions {names} names a value twice.")
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
    data = np.fromfile(path, dtype=np.uint8)
    if hashlib.sha256(data[32:].data).digest() != data[:32].tobytes():
        rank_zero_warn(f"{path} is damaged and is generated again.")
        return None
    return data[32:].reshape(shape)


def _write(path: Path, images: NDArray[np.uint8]) -> None:
    body = images.tobytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, hashlib.sha256(body).digest() + body)
    except OSError as error:
        raise OSError(f"cannot keep {path}: {error}. Set data.cache_dir to a folder with space, or to null.") from error


def table_for(image_size: int) -> Table:
    """Parameters that suit an image size: those of ImageNet-C, or up to 64 pixels those for small images."""
    return "small" if image_size <= LARGEST_SMALL else "imagenet"


class Corruption(Protocol):
    """The corruption of the image at a position."""

    def __call__(self, image: Tensor, index: int = 0) -> Tensor: ...


class LastImage:
    """Images that remember the one asked for last: the cells of an image follow each other and share its decoding."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self._last: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        if self._last is None or self._last[0] != index:
            self._last = index, as_tensor(self.images[index])
        return self._last[1]


class CorruptedImages:
    """Images under one corruption."""

    def __init__(self, images: Images, corruption: Corruption) -> None:
        self.images = images
        self.corruption = corruption

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.corruption(as_tensor(self.images[index]), index)


def corruptions_of(
    cells: Sequence[Cell], image_size: int, seed: int, table: Table, jpeg: bool, frost_textures: str | None
) -> list[Corruption | None]:
    """The corruption of every cell, none for the clean one.

    Image i becomes a function of (seed, corruption, severity, i) and of the clean image. With ``jpeg`` it then goes
    through the JPEG save (quality 85) that is part of the released ImageNet-C. Each is tried on a black image, so
    that whatever it lacks is known before the run.
    """
    quality = 85 if jpeg else None
    made: list[Corruption | None] = []
    for cell in cells:
        if cell == CLEAN:
            made.append(None)
            continue
        corruption = Corrupt(*cell, seed, table, jpeg_quality=quality, frost_textures=frost_textures)
        corruption(torch.zeros(3, image_size, image_size, dtype=torch.uint8), index=0)
        made.append(corruption)
    return made


def generated_splits(clean: Split, corruptions: Sequence[Corruption | None]) -> list[Split]:
    """One split per corruption over shared clean images; go through them image by image."""
    shared = LastImage(clean.images)
    return [
        Split(shared if corruption is None else CorruptedImages(shared, corruption), clean.targets)
        for corruption in corruptions
    ]
