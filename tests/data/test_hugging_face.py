"""Sets of the package ``datasets``: local ones, as the hub would give them."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chaosgate.data import HuggingFace
from tests.data.photos import write_photo
from tests.data.recorder import LIGHTNING_WARNINGS

datasets = pytest.importorskip("datasets")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), *LIGHTNING_WARNINGS]
NAMES = ["ant", "bee", "cat"]


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)


def table(count: int, start: int = 0, **more: list[object]) -> object:
    def png(number: int) -> dict[str, object]:
        buffer = io.BytesIO()
        Image.fromarray(pixels(number)).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)}
    )
    rows = {"img": [png(start + i) for i in range(count)], "label": [i % 3 for i in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with train and test, made by ``save_to_disk``."""
    folder = tmp_path_factory.mktemp("hub") / "set"
    datasets.DatasetDict({"train": table(60), "test": table(12, 1000)}).save_to_disk(str(folder))
    return folder


def build(root: Path, **settings: object) -> HuggingFace:
    return HuggingFace(str(root), 32, num_workers=0, batch_size=6, **settings)  # type: ignore[arg-type]


def test_rows_become_images_labels_and_names(saved: Path):
    data = build(saved)
    data.setup("fit")
    data.setup("test")
    assert data.class_names == NAMES and data.num_classes == 3
    assert data.sizes() == {"train": 54, "val": 6, "test": 12} and data.recipe == "small"
    assert data.test_splits[0].targets.tolist() == [i % 3 for i in range(12)]
    for i in range(12):
        assert np.array_equal(
            data.test_splits[0].images[i].permute(1, 2, 0).numpy(), pixels(1000 + i)
        )
    rows = {
        split: {int(name.split("/")[1]) for name in data.listings[split].names}
        for split in ("train", "val")
    }
    assert rows["train"] | rows["val"] == set(range(60)) and not rows["train"] & rows["val"]
    told = data.describe()
    assert (
        told["source"] == str(saved) and "val 0.1" in told["split"] and told["corruptions"] is None
    )


def test_a_folder_of_images_is_a_set_too(tmp_path: Path):
    for split in ("train", "validation", "test"):
        for label, name in enumerate(("ant", "bee")):
            for number in range(3):
                write_photo(
                    tmp_path / "set" / split / name / f"{number}.jpg",
                    100 * label + number,
                    (40, 30),
                )
    data = HuggingFace(str(tmp_path / "set"), 24, num_workers=0, cache_dir=str(tmp_path / "cache"))
    data.setup("fit")
    assert data.sizes() == {"train": 6, "val": 6, "test": 6} and data.class_names == ["ant", "bee"]
    assert (
        data.split_rule() == "train: train, val: validation, test: test"
        and data.recipe == "standard"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"image_column": "imgs"},
            "data.image_column is 'imgs'; .* has 1 columns of type Image: img",
        ),
        ({"label_column": "img"}, "data.label_column is 'img'; .* ClassLabel: label"),
        ({"splits": {"train": "trian"}}, "name one of train, test for train"),
        ({"splits": {"val": "test"}}, "name one of train, test for train"),
        ({"splits": {"train": "train", "test": "train"}}, "each only once"),
    ],
)
def test_what_does_not_fit_is_named(saved: Path, settings: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        build(saved, **settings)
