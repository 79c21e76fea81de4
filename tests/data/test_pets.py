"""Oxford-IIIT Pets in torchvision's layout: all names of the official lists, small pictures."""

import os
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import OxfordIIITPet

from chaosgate.data import OxfordPets
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS


@cache
def jpeg(colour: tuple[int, int, int]) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (26, 20), colour).save(buffer, "JPEG")
    return buffer.getvalue()


def write_pets(root: Path) -> None:
    """Lists of the official lengths with the official form; the colour of a picture tells its
    class."""
    images, annotations = (
        root / "oxford-iiit-pet" / "images",
        root / "oxford-iiit-pet" / "annotations",
    )
    images.mkdir(parents=True)
    annotations.mkdir()
    breeds = [f"{'Cat' if breed % 3 == 0 else 'dog'}_breed_{breed}" for breed in range(37)]
    for part, count in (("trainval", 3680), ("test", 3669)):
        lines = []
        for number in range(count):
            breed = number * 37 // count
            name = f"{breeds[breed]}_{part}{number}"
            (images / f"{name}.jpg").write_bytes(jpeg((6 * breed, 0, 200)))
            lines.append(f"{name} {breed + 1} {1 if breed % 3 == 0 else 2} 1\n")
        (annotations / f"{part}.txt").write_text("".join(lines))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pets")
    write_pets(folder)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    base = tmp_path / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    (base / "images").mkdir()
    for path in (root / "oxford-iiit-pet").rglob("*.*"):
        os.link(path, base / path.relative_to(root / "oxford-iiit-pet"))
    return tmp_path


def pets(root: Path, **settings: object) -> OxfordPets:
    module = OxfordPets(str(root), **{"image_size": 16, "num_workers": 0, **settings})  # type: ignore[arg-type]
    module.setup("fit")
    return module


def test_the_official_lists_are_the_splits_and_trainval_gives_a_fifth_of_each_class(root: Path):
    module = pets(root)
    assert (
        sum(module.sizes()[split] for split in ("train", "val")) == 3680
        and module.test_size == 3669
    )
    official = np.bincount([number * 37 // 3680 for number in range(3680)])
    assert np.bincount(module.listings["val"].targets).tolist() == [
        int(count * 0.2) for count in official
    ]
    assert not set(module.listings["train"].names) & set(module.listings["val"].names)
    assert module.describe()["subset"] is False and "missing" not in module.describe()
    # a published split may not move
    first = [Path(name).stem for name in module.listings["val"].names[:3]]
    assert first == ["Cat_breed_0_trainval4", "Cat_breed_0_trainval9", "Cat_breed_0_trainval14"]


def test_images_and_classes_are_those_of_torchvision(root: Path):
    module = pets(root)
    theirs = OxfordIIITPet(str(root), "test")
    assert len(theirs) == module.test_size
    assert [name.title() for name in module.class_names] == theirs.classes
    split = module.test_splits[0]
    for index in (0, 99, 100, 3668):
        image, target = theirs[index]
        assert target == split.targets[index]
        assert torch.equal(
            split.images[index][:, 8, 8], torch.tensor(image.getpixel((13, 10)), dtype=torch.uint8)
        )


def test_a_partial_set_warns_and_is_recorded(copy: Path):
    images = copy / "oxford-iiit-pet" / "images"
    gone = sorted(images.glob("*breed_5_test*"))
    for path in gone:
        path.unlink()
    with pytest.warns(
        UserWarning, match=rf"{len(gone)} of the 3669 test images are not in .*; 36 of 37 classes"
    ):
        module = pets(copy)
    assert module.test_size == 3669 - len(gone)
    told = module.describe()
    assert told["subset"] is True and told["missing"] == {"trainval": 0, "test": len(gone)}
    assert (
        module.num_classes == 37 and 5 not in module.test_splits[0].targets
    )  # labels do not move up


def test_a_list_of_another_length_or_form_is_refused(copy: Path):
    path = copy / "oxford-iiit-pet" / "annotations" / "test.txt"
    lines = path.read_text().splitlines()
    path.unlink()
    for text, message in (
        (lines[:-1], "lists 3668 images; the official list has 3669"),
        ([*lines[:-1], "Cat_1 38 1 1"], "of classes 1 to 37"),
    ):
        path.write_text("\n".join(text))
        with pytest.raises(ValueError, match=message):
            pets(copy)


def test_a_missing_set_says_where_it_was_looked_for_and_is_fetched_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(FileNotFoundError, match=r"no oxford-iiit-pet/images .*data.download"):
        OxfordPets(str(tmp_path))
    fetched = []
    monkeypatch.setattr(
        "chaosgate.data.pets.OxfordIIITPet", lambda *words, **named: fetched.append((words, named))
    )
    OxfordPets(str(tmp_path), download=True).prepare_data()
    assert fetched == [((str(tmp_path),), {"download": True})]
