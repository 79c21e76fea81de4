"""Test cells: which corruptions are tested, and their images in memory or made on the fly."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import PIL
import scipy
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from chaosgate.corruptions import COMMON, EXTRA, PAPER, Corrupt, corrupt_batch, parameters
from chaosgate.data.atomic import replace_file
from chaosgate.data.decoding import as_tensor
from chaosgate.data.samples import CLEAN, Cell, Images, Split

Corruptions = Literal["paper", "common", "all"] | list[str] | None
Severities = Sequence[Literal[1, 2, 3, 4, 5]]
Table = Literal["imagenet", "small"]
NAMED = {"paper": PAPER, "common": COMMON, "all": COMMON + EXTRA}
"""Named sets of corruptions: the seven of the paper, the fifteen of mCE, and all nineteen."""
SEVERITIES: Severities = (1, 2, 3, 4, 5)
LARGEST_SMALL = 64  # pixels; up to here images count as small: other corruptions, other recipe


def plan_cells(
    corruptions: Corruptions, severities: Sequence[int], table: str = "imagenet"
) -> list[Cell]:
    """The clean set, then every corruption at every severity."""
    names = NAMED[corruptions] if isinstance(corruptions, str) else (corruptions or [])
    cells = [Cell(name, severity) for name in names for severity in severities]
    if len(set(cells)) < len(cells) or (corruptions is not None and not cells):
        raise ValueError(
            f"data.corruptions is {corruptions} and data.severities {list(severities)}; name at "
            "least one of each (or corruptions null), and nothing twice."
        )
    try:
        for cell in cells:
            parameters(*cell, table)  # refuses an unknown name and suggests the nearest
    except ValueError as error:
        raise ValueError(f"data.corruptions, data.severities: {error}") from None
    return [CLEAN, *cells]


def table_for(image_size: int) -> Table:
    """The parameters of ImageNet-C, or those for small images up to 64 pixels."""
    return "small" if image_size <= LARGEST_SMALL else "imagenet"


def corrupted_copies(
    images: NDArray[np.uint8],
    cells: Sequence[Cell],
    seed: int,
    table: str,
    cache_dir: Path | None = None,
    quiet: bool = False,
) -> list[NDArray[np.uint8]]:
    """Images (N, H, W) or (N, H, W, C) of every cell.

    Image i is a function of (seed, corruption, severity, i). With ``cache_dir`` each cell is kept in
    a file whose name covers images, cell, seed, table, and the code and libraries that made it.
    """
    key = hashlib.sha256(repr((seed, table, images.shape)).encode() + images.tobytes())
    for library in (np, scipy, cv2, PIL):
        key.update(f"{library.__name__} {library.__version__}".encode())
    for source in sorted(files("chaosgate.corruptions").iterdir(), key=lambda entry: entry.name):
        if source.is_file():
            key.update(source.name.encode() + source.read_bytes())
    copies = []
    for cell in track(
        cells,
        f"corrupting {len(images)} test images",
        console=Console(stderr=True),
        transient=True,
        disable=quiet,
    ):
        name = f"{cell.corruption}-{cell.severity}-{key.hexdigest()[:32]}.npy"
        path = cache_dir and cache_dir / name
        made = images if cell == CLEAN else None
        if made is None and path:
            with suppress(OSError, ValueError, EOFError):  # not there, or damaged
                made = np.load(path, allow_pickle=False)
        if made is None:
            indices = range(len(images))
            made = corrupt_batch(images, *cell, seed=seed, indices=indices, table=table)
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                kept = made
                replace_file(path, lambda file, kept=kept: np.save(file, kept))  # type: ignore[misc]
        copies.append(made)
    return copies


class LastImage:
    """Images that remember the last one, so that the cells of an image decode it once."""

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

    def __init__(self, images: Images, corruption: Corrupt) -> None:
        self.images, self.corruption = images, corruption

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.corruption(as_tensor(self.images[index]), index)


def corruptions_of(
    cells: Sequence[Cell],
    image_size: int,
    seed: int,
    table: str,
    jpeg: bool,
    frost_textures: str | None,
) -> list[Corrupt | None]:
    """The corruption of every cell, None for the clean one.

    With ``jpeg`` the image is then saved as JPEG of quality 85, as in the released ImageNet-C. Each
    corruption is tried on a black image, so that missing files are noticed before the run.
    """
    made: list[Corrupt | None] = []
    for cell in cells:
        corruption = None
        if cell != CLEAN:
            quality = 85 if jpeg else None
            corruption = Corrupt(
                *cell, seed, table, jpeg_quality=quality, frost_textures=frost_textures
            )
            corruption(torch.zeros(3, image_size, image_size, dtype=torch.uint8))
        made.append(corruption)
    return made


def generated_splits(clean: Split, corruptions: Sequence[Corrupt | None]) -> list[Split]:
    """One split per corruption over shared clean images; read them image by image."""
    shared = LastImage(clean.images)
    return [
        Split(CorruptedImages(shared, corruption) if corruption else shared, clean.targets)
        for corruption in corruptions
    ]
