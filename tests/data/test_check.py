"""``chaosgate data check`` with a real file of every kind."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chaosgate.cli.commands import main
from chaosgate.data import ImageFolder
from chaosgate.data.synthetic import write_synthetic
from tests.data.cifar import write_cifar
from tests.data.photos import write_photo, write_train, write_val

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of twelve JPEG files; nothing is wrong."""
    for label, name in enumerate(("ant", "bee")):
        for number in range(12):
            write_photo(tmp_path / "photos" / name / f"{number:02d}.jpg", 100 * label + number)
    return tmp_path / "photos"


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]):
    def run(root: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main(["data", "check", str(root), *options])
        out, err = capsys.readouterr()
        return status, out + err

    return run


def heic(root: Path) -> None:
    (root / "ant" / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50))


def avif(root: Path) -> None:
    Image.open(root / "ant" / "00.jpg").save(root / "ant" / "a.avif")


def jfif(root: Path) -> None:
    (root / "ant" / "00.jpg").rename(root / "ant" / "a.JFIF")


def deep_png(root: Path) -> None:
    grey = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(grey).save(root / "ant" / "deep.png")


def float_tiff(root: Path) -> None:
    values = np.random.default_rng(0).random((20, 30), dtype=np.float32)
    Image.fromarray(values).save(root / "ant" / "float.tif")


def dangling(root: Path) -> None:
    (root / "ant" / "gone.jpg").symlink_to("nowhere.jpg")


def own_loop(root: Path) -> None:
    (root / "ant" / "self.jpg").symlink_to("self.jpg")


def empty_class(root: Path) -> None:
    (root / "cat").mkdir()


def twins(root: Path) -> None:
    for number in range(12):
        write_photo(root / "Ant" / f"{number}.jpg", 500 + number)


def splits(root: Path) -> dict[str, list[Path]]:
    data = ImageFolder(str(root))
    return {split: listing.paths for split, listing in data.list_images("fit").items()}


def copied(root: Path) -> None:
    files = splits(root)
    files["test"][0].write_bytes(files["train"][0].read_bytes())


def hard_link(root: Path) -> None:
    files = splits(root)
    files["test"][0].unlink()
    os.link(files["train"][0], files["test"][0])


def two_labels(root: Path) -> None:
    files = splits(root)["train"]
    files[-1].write_bytes(files[0].read_bytes())


def damaged(root: Path) -> None:
    for number, size in ((1, 0), (2, 100)):
        path = root / "ant" / f"0{number}.jpg"
        path.write_bytes(path.read_bytes()[:size])


KINDS = {
    heic: (1, "1 images are not read"),
    avif: (1, "a.avif"),
    jfif: (1, "a.JFIF"),
    deep_png: (1, "1 images saturate (values above 255 become 255)"),
    float_tiff: (1, "1 images become black"),
    dangling: (1, "1 links point to nothing"),
    own_loop: (1, "1 links point to nothing"),
    empty_class: (1, "no images in 1 class folder(s)"),
    twins: (1, "1 folder names differ only in case"),
    copied: (1, "1 pairs of copies are in two splits"),
    hard_link: (1, "1 pairs of copies are in two splits"),
    two_labels: (1, "1 pairs of copies have two labels"),
    damaged: (1, "2 of 24 images"),
}


@pytest.mark.parametrize("spoil", KINDS, ids=lambda spoil: spoil.__name__)
def test_what_affects_training_is_named_and_the_status_is_1(spoil, photos: Path, check):
    status, printed = check(photos)
    assert status == 0 and "image_folder: 18 train, 2 val, 4 test images of 2 classes" in printed
    spoil(photos)
    status, printed = check(photos)
    expected, text = KINDS[spoil]
    assert status == expected and text in printed, printed


def test_what_does_not_affect_training_is_counted_and_the_status_is_0(photos: Path, check):
    (photos / "ant" / "notes.txt").write_text("notes")
    (photos / "ant" / ".DS_Store").write_text("hidden")
    (photos / "ant" / "loop").symlink_to("../ant", target_is_directory=True)
    (photos / "ant" / "again.jpg").write_bytes((photos / "ant" / "11.jpg").read_bytes())
    os.rename(photos / "bee" / "03.jpg", os.fsencode(photos / "bee") + b"/caf\xe9.jpg")
    Image.new("CMYK", (9, 9)).save(photos / "bee" / "cmyk.jpg")
    status, printed = check(photos)
    assert "1 links lead back to a folder above" in printed and "1 .txt" in printed, printed
    assert "hidden" not in printed
    assert status == int("two splits" in printed)  # the copy may be in the other split by its hash


def test_a_name_that_is_not_utf8_is_printed(photos: Path, check):
    (photos / "ant" / "01.jpg").write_bytes(b"no image")
    os.rename(photos / "ant" / "01.jpg", os.fsencode(photos / "ant") + b"/caf\xe9.jpg")
    status, printed = check(photos)
    assert status == 1 and r"caf\udce9.jpg" in printed


def test_a_check_of_nothing_is_an_error(tmp_path: Path, check):
    assert check(tmp_path / "nowhere")[0] == 1
    status, printed = check(tmp_path)
    assert status == 1 and "no image files and no known data set" in printed


def fashion_mnist(root: Path) -> None:
    """The four idx files, as long as the real ones; every image is another one."""
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        pixels = np.zeros((count, 784), np.uint8)
        pixels[:, :4] = np.arange(count, dtype=">u4").view(np.uint8).reshape(-1, 4)
        pixels[:, 4] = count == 10_000
        images = struct.pack(">iiii", 0x803, count, 28, 28) + pixels.tobytes()
        labels = struct.pack(">ii", 0x801, count) + bytes(i % 10 for i in range(count))
        for name, data in (("images-idx3", images), ("labels-idx1", labels)):
            (root / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data, 1))


def imagenet(root: Path) -> None:
    write_train(root / "train", 3)
    write_val(root / "val", 6)


def synthetic(name: str):
    def write(root: Path) -> None:
        write_synthetic(root.parent / "synthetic")
        root.rmdir()
        (root.parent / "synthetic" / name).rename(root)

    return write


SETS = {
    "fashion_mnist": (fashion_mnist, "54000 train, 6000 val, 10000 test images of 10 classes"),
    "cifar10": (lambda root: write_cifar(root, 10), "180 train, 20 val, 100 test images"),
    "cifar100": (lambda root: write_cifar(root, 100, 1000), "900 train, 100 val, 100 test"),
    "oxford_pets": (synthetic("pets"), "296 train, 74 val, 148 test images of 37 classes"),
    "imagenet": (imagenet, "9 train, 6 test images of 1000 classes"),
    "imagenet_c": (synthetic("imagenet_c"), "96 test images of 1000 classes"),
}


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_recognised_and_read(name: str, tmp_path: Path, check):
    write, counts = SETS[name]
    (tmp_path / "set").mkdir()
    write(tmp_path / "set")
    status, printed = check(tmp_path / "set")
    assert status == 0 and f"{name}: {counts}" in printed and "0 of " in printed, printed
