"""Real JPEG files for layouts of ImageNet: small smooth pictures under official names."""

from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n02123045", "n07753592")  # labels 0, 281, 954
LABELS = (0, 281, 954)


def write_photo(path: Path, seed: int, size: tuple[int, int] = (44, 36)) -> None:
    """A smooth random picture, sharp enough to see a crop."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, "JPEG", quality=90)


def val_names(count: int) -> dict[str, str]:
    """Names of the first validation images and their classes, in turn."""
    return {
        f"ILSVRC2012_val_{number:08d}.JPEG": WNIDS[number % 3] for number in range(1, count + 1)
    }


def write_train(folder: Path, per_class: int) -> None:
    for label, wnid in enumerate(WNIDS):
        for number in range(per_class):
            write_photo(folder / wnid / f"{wnid}_{number}.JPEG", 1000 * label + number)


def write_val(
    folder: Path, count: int, flat: bool = False, size: tuple[int, int] = (44, 36)
) -> None:
    for number, (name, wnid) in enumerate(val_names(count).items()):
        write_photo(folder / ("" if flat else wnid) / name, 5000 + number, size)
