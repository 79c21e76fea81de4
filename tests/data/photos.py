"""Real image files: small smooth pictures in class folders, under official names for ImageNet."""

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n02123045", "n07753592")
LABELS = (0, 281, 954)


def write_photo(path, seed, size=(44, 36), kind="JPEG"):
    """A smooth random picture, sharp enough to see a crop."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    options = {"quality": 90} if kind == "JPEG" else {}
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, kind, **options)


def write_classes(root, count, names=("ant", "bee"), size=(44, 36), kind="JPEG"):
    """``root/<name>/00.jpg`` and so on; every picture is another one."""
    for label, name in enumerate(names):
        for number in range(count):
            write_photo(root / name / f"{number:02d}.jpg", 100 * label + number, size, kind)
    return root


def val_names(count):
    """Names of the first validation images and their classes, in turn."""
    return {f"ILSVRC2012_val_{i:08d}.JPEG": WNIDS[i % 3] for i in range(1, count + 1)}


def write_val(folder, count, size=(44, 36), kind="JPEG", seed=5000):
    for number, (name, wnid) in enumerate(val_names(count).items()):
        write_photo(folder / wnid / name, seed + number, size, kind)


def write_imagenet(root, per_class, val, kind="JPEG"):
    write_classes(root / "train", per_class, WNIDS, kind=kind)
    write_val(root / "val", val, kind=kind)
    return root
