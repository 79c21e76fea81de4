"""Real JPEG files: small smooth pictures in class folders, under official names for ImageNet."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n02123045", "n07753592")
LABELS = (0, 281, 954)


def write_photo(path: Path, seed: int, size: tuple[int, int] = (44, 36)) -> None:
    """A smooth random picture, sharp enough to see a crop."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, "JPEG", quality=90)


def write_classes(
    root: Path,
    count: int,
    names: Sequence[str] = ("ant", "bee"),
    size: tuple[int, int] = (44, 36),
) -> Path:
    """``root/<name>/00.jpg`` and so on; every picture is another one."""
    for label, name in enumerate(names):
        for number in range(count):
            write_photo(root / name / f"{number:02d}.jpg", 100 * label + number, size)
    return root


def val_names(count: int) -> dict[str, str]:
    """Names of the first validation images and their classes, in turn."""
    return {f"ILSVRC2012_val_{i:08d}.JPEG": WNIDS[i % 3] for i in range(1, count + 1)}


def write_train(folder: Path, per_class: int) -> None:
    for label, wnid in enumerate(WNIDS):
        for number in range(per_class):
            write_photo(folder / wnid / f"{wnid}_{number}.JPEG", 1000 * label + number)


def write_val(folder: Path, count: int, size: tuple[int, int] = (44, 36)) -> None:
    for number, (name, wnid) in enumerate(val_names(count).items()):
        write_photo(folder / wnid / name, 5000 + number, size)
