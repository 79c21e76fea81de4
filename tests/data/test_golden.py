"""Digests of what each set gives, from before the data package was rewritten: published runs must
stay repeatable.

The files hold BMP data whatever they are called, and PIL resizes, so that the digests do not depend
on the processor or on the version of libjpeg."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chaosgate.data import (
    CIFAR10,
    FashionMNIST,
    ImageData,
    ImageFolder,
    ImageNet,
    ImageNetC,
    OxfordPets,
)
from tests.data.photos import WNIDS, val_names
from tests.data.small_sets import write_cifar

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LOADING: Any = {"image_size": 32, "batch_size": 6, "num_workers": 0, "decoder": "pil"}


def write(path: Path, seed: int, size: tuple[int, int] = (40, 34)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BILINEAR).save(path, "BMP")


def fashion(root: Path) -> ImageData:
    return FashionMNIST(corruptions=["gaussian_noise", "pixelate"], severities=[1, 5], seed=3)


def fashion_part(root: Path) -> ImageData:
    plain: Any = {"corruptions": None, "crop_padding": 0, "horizontal_flip": False}
    return FashionMNIST(per_class={"train": 30, "test": 7}, **plain)


def cifar(root: Path) -> ImageData:
    write_cifar(root, 10)
    cells: Any = {"corruptions": ["gaussian_noise", "contrast"], "severities": [1, 4]}
    return CIFAR10(str(root), batch_size=16, **cells)


def folder(root: Path, **settings: Any) -> ImageData:
    for label, name in enumerate(("ant", "bee", "cat")):
        for number in range(20):
            size = (60 + 3 * number, 50 + 5 * label)
            write(root / name / f"{number:03d}.jpg", 100 * label + number, size)
    return ImageFolder(str(root), **LOADING, **settings)


def folder_standard(root: Path) -> ImageData:
    cells = {"corruptions": ["gaussian_noise"], "severities": [2, 5], "seed": 4}
    return folder(root, train_scale=(0.3, 0.9), **cells)


def folder_small(root: Path) -> ImageData:
    small = {"recipe": "small", "crop_padding": 5, "interpolation": "bicubic"}
    return folder(root, per_class={"train": 7}, **small)


def pets(root: Path) -> ImageData:
    base = root / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for part, count in (("trainval", 3680), ("test", 3669)):
        places = [(f"Breed_{place % 37}_{part}{place}", place % 37 + 1) for place in range(count)]
        for name, kind in places[:185]:
            write(base / "images" / f"{name}.jpg", kind)
        lines = "".join(f"{name} {kind} 1 1\n" for name, kind in places)
        (base / "annotations" / f"{part}.txt").write_text(lines)
    return OxfordPets(str(root), **LOADING)


def imagenet(root: Path) -> ImageData:
    for kind, wnid in enumerate(WNIDS):
        for number in range(12):
            write(root / "train" / wnid / f"{wnid}_{number}.JPEG", 100 * kind + number)
    for number, (name, wnid) in enumerate(val_names(9).items()):
        write(root / "val" / wnid / name, 1000 + number)
    return ImageNet(str(root), validation="held_out", val_fraction=0.25, **LOADING)


def imagenet_c(root: Path) -> ImageData:
    imagenet(root / "clean")
    for place, cell in enumerate(("blur/defocus_blur/2", "blur/defocus_blur/4")):
        for number, (name, wnid) in enumerate(val_names(9).items()):
            write(root / "c" / cell / wnid / name, 5000 + 100 * place + number, (32, 32))
    cells: Any = {"corruptions": ["defocus_blur"], "severities": [2, 4]}
    return ImageNetC(str(root / "c"), clean=str(root / "clean"), **cells, **LOADING)


def digest(data: ImageData, root: Path) -> str:
    """Of the first training batches in two epochs, of all validation and test images, and of the
    files' digests."""
    found, loaders = hashlib.sha256(), []
    if not isinstance(data, ImageNetC):
        data.setup("fit")
        loaders = [data.train_dataloader(), data.train_dataloader(), data.val_dataloader()]
        loaders[1].sampler.set_epoch(3)
    data.setup("test")
    for loader in [*loaders, data.test_dataloader()]:
        for step, batch in enumerate(loader):
            if step == 3 and loader in loaders[:2]:
                break
            for part in batch:
                found.update(part.contiguous().numpy().tobytes())
    told = data.describe()
    words = [told[key] for key in ("name", "images", "corruptions", "corruption_seed", "split")]
    if not isinstance(data, CIFAR10):  # pickles, which other versions of NumPy write otherwise
        words.append(sorted(told["files"].items()))
    found.update(repr(words).replace(str(root), "").encode())
    return found.hexdigest()[:16]


GOLDEN = {
    fashion: "29ea2a0ed6ec7209",
    fashion_part: "2aa203dee84fbf0c",
    cifar: "a89235d90c7ab63d",
    folder_standard: "a8b2b034ec159566",
    folder_small: "1b4b934630f6baf5",
    pets: "14a5d83ccee152ff",
    imagenet: "963741bbffbcc784",
    imagenet_c: "4608e1f008cdd96f",
}


@pytest.mark.parametrize("make", GOLDEN, ids=lambda make: make.__name__)
def test_images_labels_and_order_are_those_of_before(
    make: Callable[[Path], ImageData], tmp_path: Path
):
    assert digest(make(tmp_path), tmp_path) == GOLDEN[make]
