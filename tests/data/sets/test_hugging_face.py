"""Sets of the package ``datasets``: local ones, as the hub would give them."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

from chaosgate.data import HuggingFace
from tests.data.photos import write_photo
from tests.data.recorder import LIGHTNING_WARNINGS, Recorder, trainer

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

    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
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
        assert np.array_equal(data.test_splits[0].images[i].permute(1, 2, 0).numpy(), pixels(1000 + i))
    rows = {split: {int(name.split("/")[1]) for name in data.listings[split].names} for split in ("train", "val")}
    assert rows["train"] | rows["val"] == set(range(60)) and not rows["train"] & rows["val"]
    told = data.describe()
    assert told["source"] == str(saved) and "val 0.1" in told["split"] and told["corruptions"] is None


def test_a_folder_of_images_is_a_set_too(tmp_path: Path):
    for split in ("train", "validation", "test"):
        for label, name in enumerate(("ant", "bee")):
            for number in range(3):
                write_photo(tmp_path / "set" / split / name / f"{number}.jpg", 100 * label + number, (40, 30))
    data = HuggingFace(str(tmp_path / "set"), 24, num_workers=0, cache_dir=str(tmp_path / "cache"))
    data.setup("fit")
    assert data.sizes() == {"train": 6, "val": 6, "test": 6} and data.class_names == ["ant", "bee"]
    assert data.split_rule() == "train: train, val: validation, test: test" and data.recipe == "standard"


def test_a_run_can_be_left_and_resumed_exactly(saved: Path, tmp_path: Path):
    whole, rest = Recorder(features=3072, classes=3), Recorder(features=3072, classes=3)
    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1)
    trainer(tmp_path, max_epochs=2, callbacks=[keep]).fit(whole, build(saved))
    trainer(tmp_path, max_epochs=2, callbacks=[ModelCheckpoint(tmp_path / "other")]).fit(
        rest, build(saved), ckpt_path=tmp_path / "step=5.ckpt", weights_only=True
    )
    assert len(whole.trained) == 18 and rest.trained == whole.trained[5:]


def test_generated_corruptions_work_as_everywhere(saved: Path):
    data = build(saved, corruptions=["pixelate"], severities=[3])
    data.setup("test")
    clean, worse = (split.images[0] for split in data.test_splits)
    assert not torch.equal(clean, worse) and data.describe()["corruptions"] == "generated"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_column": "imgs"}, "data.image_column is 'imgs'; .* has 1 columns of type Image: img"),
        ({"label_column": "img"}, "data.label_column is 'img'; .* ClassLabel: label"),
        ({"splits": {"train": "trian"}}, r"has the splits train, test. Did you mean 'train'\?"),
        ({"splits": {"val": "test"}}, "and no train"),
        ({"val_fraction": 0.0}, "data.val_fraction is 0.0"),
        ({"revision": "main"}, "data.revision is 'main', and data.root .* is a folder"),
        ({"config": "plain"}, "data.config is 'plain', and data.root .* is a folder"),
    ],
)
def test_what_does_not_fit_is_named(saved: Path, settings: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        build(saved, **settings)


def test_one_split_of_the_set_cannot_be_two_of_ours(saved: Path):
    data = build(saved, splits={"train": "train", "test": "train"})
    with pytest.raises(ValueError, match=r"train/0 \(test, class 'ant'\) and .*train/0 \(train, .* are the same file"):
        data.setup("fit")


def test_a_set_that_cannot_be_opened_is_named(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"datasets cannot open data.root .*empty.*Give a name on the hub or a folder"):
        build(tmp_path / "empty")


def test_a_bad_row_is_named_or_left_out(tmp_path: Path):
    good = table(9).cast_column("img", datasets.Image(decode=False))["img"]
    rows = {"img": [{"bytes": b"broken", "path": None}, *good]}
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    whole = datasets.Dataset.from_dict({**rows, "label": [i % 3 for i in range(10)]}, features=features)
    datasets.DatasetDict({"train": table(30), "test": whole}).save_to_disk(str(tmp_path / "set"))
    data = build(tmp_path / "set")
    data.setup("test")
    with pytest.raises(ValueError, match=r"cannot decode .*set test, row 0 \(6 bytes\)"):
        next(iter(data.test_dataloader()))
    data = build(tmp_path / "set", on_error="skip")
    with pytest.warns(UserWarning, match=r"left out 1 of 40 images: .*set test, row 0"):
        data.setup("test")
    assert data.test_size == 9 and data.describe()["left_out"] == ["test/0"]
