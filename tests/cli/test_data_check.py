"""``chaosgate data check`` reads every set that has a data module, on small copies in the real format."""

import atexit
import gzip
import hashlib
import shutil
import struct
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from chaosgate.cli.commands import main
from chaosgate.cli.data import find_sets
from chaosgate.data.download import ARCHIVES
from chaosgate.data.synthetic import write_synthetic
from tests.data.cifar import write_cifar, write_corrupted
from tests.data.photos import WNIDS, write_photo, write_train, write_val

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def fashion_mnist(root: Path) -> None:
    """The four idx files, as long as the real ones: empty images, classes in turn."""
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = struct.pack(">iiii", 0x803, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">ii", 0x801, count) + bytes(i % 10 for i in range(count))
        for name, data in (("images-idx3", images), ("labels-idx1", labels)):
            (root / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data, 1))


def cifar(root: Path, kind: int) -> None:
    _, test = write_cifar(root, kind, train=1000 if kind == 100 else 200)
    write_corrupted(root / f"CIFAR-{kind}-C", test, kind)


def imagenet(root: Path) -> None:
    write_train(root / "train", 3)
    write_val(root / "val", 6)


def variant(folder: str, names: tuple[str, ...]) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        for place, name in enumerate(names):
            write_photo(root / folder / name / f"{place}.jpeg", place)

    return write


@cache
def all_synthetic() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_synthetic(folder)
    return folder


def synthetic(name: str) -> Callable[[Path], None]:
    return lambda root: shutil.copytree(all_synthetic() / name, root, dirs_exist_ok=True)


def hugging_face(root: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for label, name in enumerate(("ant", "bee")):
        for number in range(10):
            write_photo(
                root.parent / "images" / "train" / name / f"{number}.jpg", 100 * label + number
            )
    paths = sorted((root.parent / "images").rglob("*.jpg"))
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])}
    )
    rows = {
        "image": [{"bytes": path.read_bytes(), "path": None} for path in paths],
        "label": [0] * 10 + [1] * 10,
    }
    datasets.DatasetDict(
        {"train": datasets.Dataset.from_dict(rows, features=features)}
    ).save_to_disk(str(root))


SETS: dict[str, tuple[Callable[[Path], None], str]] = {
    "fashion_mnist": (fashion_mnist, "54000 train, 10000 test, 6000 val images of 10 classes"),
    "cifar10": (lambda root: cifar(root, 10), "180 train, 100 test, 20 val images of 10 classes"),
    "cifar100": (
        lambda root: cifar(root, 100),
        "900 train, 100 test, 100 val images of 100 classes",
    ),
    "oxford_pets": (synthetic("pets"), "296 train, 74 val, 148 test images of 37 classes"),
    "imagenet": (imagenet, "9 train, 6 test images of 1000 classes"),
    "imagenet_c": (synthetic("imagenet_c"), "96 test images of 1000 classes"),
    "imagenet_a": (
        variant("imagenet-a", ("n01498041", "n01531178")),
        "2 test images of 200 classes",
    ),
    "imagenet_r": (
        variant("imagenet-r", ("n01443537", "n01484850")),
        "2 test images of 200 classes",
    ),
    "imagenet_sketch": (variant("sketch", WNIDS), "3 test images of 1000 classes"),
    "imagenet_v2": (
        variant("imagenetv2-matched-frequency-format-val", ("0", "999")),
        "2 test images of 1000 classes",
    ),
    "hugging_face": (hugging_face, "14 train, 2 val, 4 test images of 2 classes"),
}


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_recognised_and_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write, counts = SETS[name]
    (tmp_path / "set").mkdir()
    write(tmp_path / "set")
    assert main(["data", "check", str(tmp_path / "set")]) == 0
    printed = capsys.readouterr().out
    assert f"{name}: {counts}" in printed and "0 of " in printed
    assert [data.name for data in find_sets(tmp_path / "set")] == [name]


RELEASED = {
    "cifar-10": ("cifar10", "cifar-10-batches-py", "tar.gz"),
    "cifar-10-c": ("cifar10", "CIFAR-10-C", "tar"),
    "imagenet-sketch": ("imagenet_sketch", "sketch", "zip"),
    "imagenet-v2": ("imagenet_v2", "imagenetv2-matched-frequency-format-val", "tar.gz"),
    "imagenet-c-noise": ("imagenet_c", "noise/gaussian_noise", "tar"),
    "oxford-pets": ("oxford_pets", "oxford-iiit-pet", "tar.gz"),
}


@pytest.mark.parametrize("name", RELEASED)
def test_every_archive_is_fetched_checked_by_its_digest_and_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    kind, folder, ending = RELEASED[name]
    (tmp_path / "set").mkdir()
    SETS[kind][0](tmp_path / "set")
    copies = []
    for archive in ARCHIVES[
        name
    ]:  # packed as the release is: under the same file name, with the same kind of digest
        assert archive.url.endswith(f".{ending}")
        source, path = tmp_path / "set" / folder, tmp_path / "www" / archive.url.rsplit("/", 1)[-1]
        inside = Path(archive.url).name.split(".")[0] if archive.folder else source.name
        pack(path, source / inside if archive.folder else source, inside)
        digest = archive.digest.partition(":")[0]
        copies.append(
            archive._replace(url=path.as_uri(), digest=f"{digest}:{digest_of(path, digest)}")
        )
    monkeypatch.setitem(ARCHIVES, name, copies)
    assert main(["data", "download", name, "--to", str(tmp_path / "new")]) == 0
    assert main(["data", "check", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert (
        f"{kind}: "
        if not name.startswith("cifar-1") or "-c" not in name[7:]
        else "corrupted copies: "
    ) in printed
    Path(copies[0].url.removeprefix("file://")).write_bytes(b"another archive")
    assert main(["data", "download", name, "--to", str(tmp_path / "other")]) == 1
    assert "it is damaged or not that archive" in capsys.readouterr().err and not list(
        tmp_path.glob("other/*/")
    )


def pack(path: Path, source: Path, name: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(source.rglob("*.*")):
                archive.write(file, f"{name}/{file.relative_to(source).as_posix()}")
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            archive.add(source, name)


def digest_of(path: Path, kind: str) -> str:
    return hashlib.new(kind, path.read_bytes()).hexdigest()


def test_arrays_with_one_image_in_two_splits_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    fashion_mnist(tmp_path)  # all images are alike
    assert main(["data", "check", str(tmp_path), "--deep"]) == 1
    assert (
        "fashion_mnist train 0 and fashion_mnist test 0 are the same image"
        in capsys.readouterr().out
    )


def test_a_folder_that_is_no_set_is_only_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_photo(tmp_path / "sketch" / "a.jpg", 1)
    np.save(tmp_path / "other.npy", np.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["data", "check", str(tmp_path)]) == 0
    assert find_sets(tmp_path) == [] and "0 of 1 images" in capsys.readouterr().out
