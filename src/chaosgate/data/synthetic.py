"""Made-up image folders in the layouts of ImageNet, ImageNet-C and Oxford Pets, to try whole studies without the sets.

Real JPEG files under official names, small and few. A class is a colour and the direction of a grating, which a small
network learns in seconds; phase, contrast and noise vary from image to image. Every file is a function of its class and
number. Nothing that is measured on them says anything about a method: they show that the path works.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from chaosgate.corruptions import Corrupt
from chaosgate.data.copies import MANIFEST as COPIES_MANIFEST
from chaosgate.data.imagenet_c import group_of
from chaosgate.data.imagenet_layout import wnids

MANIFEST = "made_up.json"
_VERSION = 2  # of the pictures; another one rewrites them
_SIDE = 72  # pixels of an image; the smoke studies see 64
_CELL_SIDE = 64
CORRUPTIONS, SEVERITY = ("gaussian_noise", "pixelate"), 3


def picture(kind: int, number: int, side: int = _SIDE) -> NDArray[np.uint8]:
    """Image ``number`` of class ``kind``, (side, side, 3)."""
    random = np.random.default_rng([kind, number])
    angle, turns = kind * 2.399963, 3 + kind % 4  # the golden angle keeps neighbouring classes apart
    y, x = np.mgrid[0:side, 0:side] / side
    wave = np.sin(2 * np.pi * (turns * (x * np.cos(angle) + y * np.sin(angle)) + random.random()))
    colour = 0.5 + 0.35 * np.cos(angle + 2 * np.pi * np.arange(3) / 3)
    contrast = random.uniform(0.15, 0.35)
    values = colour + contrast * wave[..., None] + random.normal(0, 0.12, (side, side, 3))
    image: NDArray[np.uint8] = (255 * values.clip(0, 1)).astype(np.uint8)
    return image


def write_made_up(folder: str | Path) -> None:
    """Write ``imagenet``, ``imagenet_c`` and ``pets`` below ``folder``, unless they are there; whole, or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # several runners may want them at once
        for name, write in _WRITERS.items():
            _write_once(folder / name, write)


def _write_once(target: Path, write: Callable[[Path], None]) -> None:
    manifest = target / MANIFEST
    if manifest.is_file() and json.loads(manifest.read_text()).get("version") == _VERSION:
        return
    if target.exists() and not manifest.is_file():
        raise FileExistsError(
            f"{target} exists and was not written by this command. Remove it, or give another --root."
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        half = Path(place) / target.name
        write(half)
        (half / MANIFEST).write_text(json.dumps({"version": _VERSION, "note": "made-up images, no data set"}))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(half, target)


def _save(path: Path, image: NDArray[np.uint8], quality: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, "JPEG", quality=quality)


def _classes() -> list[str]:
    """Eight of the thousand classes, far from each other."""
    return list(wnids())[::125]


def _write_imagenet(root: Path) -> None:
    """``train/<wnid>`` with 32 images a class and ``val/<wnid>`` with 12."""
    for kind, wnid in enumerate(_classes()):
        for number in range(32):
            _save(root / "train" / wnid / f"{wnid}_{number}.JPEG", picture(kind, number))
    for name, kind, image in _validation():
        _save(root / "val" / _classes()[kind] / name, image)


def _validation() -> list[tuple[str, int, NDArray[np.uint8]]]:
    places = [(number, kind) for number in range(12) for kind in range(8)]
    return [
        (f"ILSVRC2012_val_{place + 1:08d}.JPEG", kind, picture(kind, 1000 + number))
        for place, (number, kind) in enumerate(places)
    ]


def _write_imagenet_c(root: Path) -> None:
    """``<group>/<corruption>/<severity>/<wnid>``: the validation images cut to 64 pixels, corrupted, JPEG 85."""
    border = (_SIDE - _CELL_SIDE) // 2
    for corruption in CORRUPTIONS:
        corrupt = Corrupt(corruption, SEVERITY, 0, "small")
        for index, (name, kind, image) in enumerate(_validation()):
            cut = np.ascontiguousarray(image[border:-border, border:-border])
            folder = root / group_of(corruption) / corruption / str(SEVERITY) / _classes()[kind]
            _save(folder / name, corrupt(cut, index), quality=85)
    settings = {"corruptions": "generated", "seed": 0, "table": "small", "quality": 85}
    (root / COPIES_MANIFEST).write_text(json.dumps(settings))


def _write_pets(root: Path) -> None:
    """``oxford-iiit-pet``: lists as long as the official ones, and the first images of every one of 37 breeds."""
    images, annotations = root / "oxford-iiit-pet" / "images", root / "oxford-iiit-pet" / "annotations"
    annotations.mkdir(parents=True)
    for part, (count, written) in {"trainval": (3_680, 10), "test": (3_669, 4)}.items():
        lines = []
        for place in range(count):
            number, breed = divmod(place, 37)
            name = f"Made_Up_{breed + 1:02d}_{part}{number}"
            lines.append(f"{name} {breed + 1} {1 + breed % 2} {1 + breed // 2}")
            if number < written:
                _save(images / f"{name}.jpg", picture(breed, number + (1000 if part == "test" else 0)))
        (annotations / f"{part}.txt").write_text("\n".join(lines) + "\n")


_WRITERS: dict[str, Callable[[Path], None]] = {
    "imagenet": _write_imagenet,
    "imagenet_c": _write_imagenet_c,
    "pets": _write_pets,
}
