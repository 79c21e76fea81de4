"""synthetic image folders: real files in the real layouts, the same every time."""

import json
from pathlib import Path

import numpy as np
import pytest

from chaosgate.data import ImageNet, ImageNetC, OxfordPets
from chaosgate.data.synthetic import CORRUPTIONS, MANIFEST, SEVERITY, write_synthetic

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*of the .* images"
)  # they are few, and the data modules say so


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic(folder)
    return folder


def test_imagenet_reads_its_classes_under_their_official_labels(folder: Path) -> None:
    data = ImageNet(str(folder / "imagenet"), 64, num_workers=0)
    data.setup("fit")
    data.setup("test")
    assert data.sizes() == {"train": 256, "val": 96, "test": 96}
    assert data.describe()["subset"] is True
    assert data.train_split is not None and sorted(set(data.train_split.targets.tolist())) == list(
        range(0, 1000, 125)
    )


def test_imagenet_c_reads_its_cells_beside_the_clean_images(folder: Path) -> None:
    root, clean = str(folder / "imagenet_c"), str(folder / "imagenet")
    data = ImageNetC(
        root, 64, clean=clean, corruptions=list(CORRUPTIONS), severities=[SEVERITY], num_workers=0
    )
    data.setup("test")
    assert [tuple(cell) for cell in data.test_cells] == [
        ("clean", 0),
        ("gaussian_noise", 3),
        ("pixelate", 3),
    ]
    assert data.test_size == 96 and data.describe()["corruptions"] == "generated"
    clean_image, noisy, coarse = (
        np.asarray(split.images[0]).astype(float) for split in data.test_splits
    )
    assert np.abs(noisy - coarse).mean() > 1 and clean_image.shape == noisy.shape


def test_pets_have_every_breed_in_every_split(folder: Path) -> None:
    data = OxfordPets(str(folder / "pets"), 64, num_workers=0)
    data.setup("fit")
    data.setup("test")
    assert data.sizes() == {"train": 37 * 8, "val": 37 * 2, "test": 37 * 4}
    assert data.class_names[0] == "Synthetic 01"


def test_they_are_written_once(folder: Path) -> None:
    before = (folder / "pets" / MANIFEST).stat().st_mtime_ns
    write_synthetic(folder)
    assert (folder / "pets" / MANIFEST).stat().st_mtime_ns == before
    assert "not a data set" in json.loads((folder / "pets" / MANIFEST).read_text())["note"]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="was not written by this command"):
        write_synthetic(tmp_path)
    assert (tmp_path / "imagenet" / "mine.txt").read_text() == "mine"
