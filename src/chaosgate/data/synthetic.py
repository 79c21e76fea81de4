"""Synthetic image folders in the layouts of ImageNet, ImageNet-C and Oxford Pets.

They replace the data sets in smoke tests of studies: a few small JPEG files with official names. A
class is a color and the direction of a grating, which a small network learns in seconds; phase,
contrast and noise vary. Every file is a function of its class and number. Results on these images
say nothing about a method.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from chaosgate.corruptions import Corrupt
from chaosgate.data.imagenet import wnids
from chaosgate.data.imagenet_c import MANIFEST as COPIES_MANIFEST
from chaosgate.data.imagenet_c import group_of
from chaosgate.data.pets import CLASSES, COUNTS

MANIFEST = "synthetic.json"
CORRUPTIONS, SEVERITY = ("gaussian_noise", "pixelate"), 3
_SIDE, _BORDER = 72, 4  # pixels; cells of ImageNet-C lose the border


def picture(kind: int, number: int, side: int = _SIDE) -> NDArray[np.uint8]:
    """Image ``number`` of class ``kind``, (side, side, 3)."""
    random = np.random.default_rng([kind, number])
    angle, turns = kind * 2.399963, 3 + kind % 4  # the golden angle separates neighboring classes
    y, x = np.mgrid[0:side, 0:side] / side
    wave = np.sin(2 * np.pi * (turns * (x * np.cos(angle) + y * np.sin(angle)) + random.random()))
    color = 0.5 + 0.35 * np.cos(angle + 2 * np.pi * np.arange(3) / 3)
    contrast = random.uniform(0.15, 0.35)
    values = color + contrast * wave[..., None] + random.normal(0, 0.12, (side, side, 3))
    image: NDArray[np.uint8] = (255 * values.clip(0, 1)).astype(np.uint8)
    return image


def write_synthetic(folder: str | Path) -> None:
    """Write ``imagenet``, ``imagenet_c`` and ``pets`` below ``folder``, unless they exist."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writers = {"imagenet": _write_imagenet, "imagenet_c": _write_imagenet_c, "pets": _write_pets}
    with FileLock(folder / ".lock"):  # several runs may want them at once
        for name, write in writers.items():
            target = folder / name
            if (target / MANIFEST).is_file():
                continue
            if target.exists():
                raise FileExistsError(f"{target} exists and was not written by this command.")
            with tempfile.TemporaryDirectory(dir=folder) as aside:  # a set is whole or not there
                half = Path(aside) / name
                write(half)
                (half / MANIFEST).write_text('{"note": "synthetic images, not a data set"}')
                half.replace(target)


def _save(path: Path, image: NDArray[np.uint8], quality: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, "JPEG", quality=quality)


_KINDS = 8


def _wnid(kind: int) -> str:
    return wnids()[125 * kind]


def _validation() -> list[tuple[str, int, NDArray[np.uint8]]]:
    """File name, class and image: twelve of each class."""
    places = [(number, kind) for number in range(12) for kind in range(_KINDS)]
    return [
        (f"ILSVRC2012_val_{place:08d}.JPEG", kind, picture(kind, 1000 + number))
        for place, (number, kind) in enumerate(places, 1)
    ]


def _write_imagenet(root: Path) -> None:
    """``train/<wnid>`` with 32 images a class and ``val/<wnid>`` with 12."""
    for kind in range(_KINDS):
        for number in range(32):
            name = f"{_wnid(kind)}_{number}.JPEG"
            _save(root / "train" / _wnid(kind) / name, picture(kind, number))
    for name, kind, image in _validation():
        _save(root / "val" / _wnid(kind) / name, image)


def _write_imagenet_c(root: Path) -> None:
    """``<group>/<corruption>/<severity>/<wnid>``: validation images cropped, corrupted, JPEG 85."""
    inner = slice(_BORDER, _SIDE - _BORDER)
    for corruption in CORRUPTIONS:
        corrupt = Corrupt(corruption, SEVERITY, 0, "small")
        folder = root / group_of(corruption) / corruption / str(SEVERITY)
        for index, (name, kind, image) in enumerate(_validation()):
            cut = np.ascontiguousarray(image[inner, inner])
            _save(folder / _wnid(kind) / name, corrupt(cut, index), quality=85)
    settings = {"corruptions": "generated", "seed": 0, "table": "small", "quality": 85}
    (root / COPIES_MANIFEST).write_text(json.dumps(settings))


def _write_pets(root: Path) -> None:
    """Lists as long as the official ones, and the first images of every breed."""
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for part, written, first in (("trainval", 10, 0), ("test", 4, 1000)):
        lines = []
        for place in range(COUNTS[part]):
            number, breed = divmod(place, CLASSES)
            name = f"Synthetic_{breed + 1:02d}_{part}{number}"
            lines.append(f"{name} {breed + 1} {1 + breed % 2} {1 + breed // 2}")
            if number < written:
                _save(folder / "images" / f"{name}.jpg", picture(breed, number + first))
        (folder / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")
