"""``chaosgate data check`` with a real file of every kind."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chaosgate.__main__ import main
from chaosgate.data import ImageFolder
from tests.data.photos import write_classes, write_imagenet
from tests.data.small_sets import write_cifar, write_fashion

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def photos(tmp_path):
    """Two classes of twelve JPEG files; nothing is wrong."""
    return write_classes(tmp_path / "photos", 12)


@pytest.fixture
def check(capsys):
    def run(root):
        status = main(["data", "check", str(root)])
        return status, "".join(capsys.readouterr())

    return run


def twins(ant):
    write_classes(ant.parent, 12, ["more"])
    (ant.parent / "more").rename(ant.parent / "Ant")


def copied(ant, split, write=lambda source, target: target.write_bytes(source.read_bytes())):
    splits = ImageFolder(str(ant.parent)).list_images("fit")
    source, target = splits["train"].paths[0], splits[split].paths[-1]
    target.unlink()
    write(source, target)


def damaged(ant):
    for name, size in (("01.jpg", 0), ("02.jpg", 100)):
        (ant / name).write_bytes((ant / name).read_bytes()[:size])


def not_utf8(ant):
    Path(os.fsdecode(os.fsencode(ant) + b"/caf\xe9.jpg")).write_bytes(b"no image")


def saved(pixels, name):
    return lambda ant: Image.fromarray(pixels).save(ant / name)


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50)
DEEP = np.arange(65536, dtype=np.uint16).reshape(256, 256)
FLOATS = np.random.default_rng(0).random((20, 30), dtype=np.float32)
KINDS = {
    "heic": (lambda ant: (ant / "a.heic").write_bytes(HEIC), "1 images have an unsupported format"),
    "avif": (lambda ant: Image.open(ant / "00.jpg").save(ant / "a.avif"), "a.avif"),
    "jfif": (lambda ant: (ant / "00.jpg").rename(ant / "a.JFIF"), "a.JFIF"),
    "deep png": (saved(DEEP, "deep.png"), "1 images saturate"),
    "float tiff": (saved(FLOATS, "a.tif"), "1 images become black"),
    "dangling": (lambda ant: (ant / "a.jpg").symlink_to("no.jpg"), "1 links point to nothing"),
    "empty class": (lambda ant: (ant.parent / "cat").mkdir(), "no images in 1 class folder(s)"),
    "twins": (twins, "1 folder names differ only in case"),
    "copied": (lambda ant: copied(ant, "test"), "1 pairs of copies are in two splits"),
    "hard link": (lambda ant: copied(ant, "test", os.link), "1 pairs of copies are in two splits"),
    "two labels": (lambda ant: copied(ant, "train"), "1 pairs of copies have two labels"),
    "damaged": (damaged, "2 of 24 images"),
    "not utf8": (not_utf8, r"caf\udce9.jpg"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_affects_training_is_named_and_the_status_is_1(kind, photos, check):
    spoil, text = KINDS[kind]
    spoil(photos / "ant")
    status, printed = check(photos)
    assert status == 1 and text in printed, printed


def test_what_does_not_affect_training_is_counted_and_the_status_is_0(photos, check):
    (photos / "ant" / "notes.txt").write_text("notes")
    (photos / "ant" / ".DS_Store").write_text("hidden")
    (photos / "ant" / "loop").symlink_to("../ant", target_is_directory=True)
    os.rename(photos / "bee" / "03.jpg", os.fsencode(photos / "bee") + b"/caf\xe9.jpg")
    Image.new("CMYK", (9, 9)).save(photos / "bee" / "cmyk.jpg")
    status, printed = check(photos)
    assert status == 0, printed
    assert "1 links lead to a parent folder" in printed and "1 .txt" in printed, printed
    assert "hidden" not in printed


def test_a_check_of_nothing_is_an_error(tmp_path, check):
    assert check(tmp_path / "nowhere")[0] == 1
    status, printed = check(tmp_path)
    assert status == 1 and "no image files and no known data set" in printed


SETS = {
    "fashion_mnist": (write_fashion, "54000 train, 6000 val, 10000 test images of 10 classes"),
    "cifar10": (lambda root: write_cifar(root, 10), "180 train, 20 val, 100 test images"),
    "cifar100": (lambda root: write_cifar(root, 100, 1000), "900 train, 100 val, 100 test"),
    "imagenet": (lambda root: write_imagenet(root, 3, 6), "9 train, 6 test images of 1000 classes"),
    "image_folder": (lambda root: write_classes(root, 12), "18 train, 2 val, 4 test images of 2"),
    "oxford_pets": ("pets", "296 train, 74 val, 148 test images of 37 classes"),
    "imagenet_c": ("imagenet_c", "96 test images of 1000 classes"),
}


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_recognized_and_read(name, tmp_path, synthetic, check):
    source, counts = SETS[name]
    root = synthetic / source if isinstance(source, str) else tmp_path
    if callable(source):
        source(root)
    status, printed = check(root)
    assert status == 0 and f"{name}: {counts}" in printed and "0 of " in printed, printed
