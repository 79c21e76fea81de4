"""Sets from file to result row through ``chaosgate fit`` and ``chaosgate test``, on small copies in
the real format."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chaosgate.data.synthetic import picture

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CIFAR = ("airplane", "automobile", "bird")
QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--model.backbone=resnet10_small",
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
    "--noise.stages=[L3]",
    "--data.init_args.num_workers=0",
    "--data.init_args.batch_size=16",
    "--run_dir=run",
)


def fit_and_test(command, files, *options):
    """The row of the clean test set."""
    status, _, err = command("fit", *files, *QUICK, *options)
    assert status == 0, err
    status, _, err = command("test", *files, *QUICK, *options)
    assert status == 0, err
    row = json.loads(Path("run/results.jsonl").read_text().splitlines()[0])
    assert 0 <= row["top1"] <= 1 and row["nll"] > 0
    return row


def write_class_folders(root: Path) -> None:
    """JPEG files of 32 x 32 pixels, ``train/<class>/0000.jpg`` and ``test/<class>/0000.jpg``."""
    for split, count in (("train", 20), ("test", 4)):
        for kind, name in enumerate(CIFAR):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                image = picture(kind, number + (1000 if split == "test" else 0), side=32)
                Image.fromarray(image).save(root / split / name / f"{number:04d}.jpg", quality=75)


def test_class_folders_of_small_images_get_the_recipe_for_small_images(command, configs, tmp_path):
    write_class_folders(tmp_path / "cifar10")
    options = (
        f"--data.init_args.root={tmp_path / 'cifar10'}",
        "--data.init_args.image_size=32",
        "--model.num_classes=3",
    )
    files = configs("base", "data/image_folder", "noise/gch")
    row = fit_and_test(command, files, *options)
    assert row["n"] == 12 and row["data"]["images"] == {"train": 54, "val": 6, "test": 12}
    assert (
        row["data"]["recipe"] == "small"
        and row["transform"]["eval_resize"] == row["transform"]["image_size"] == 32
    )
    assert {"mean", "std", "decoder"} < set(row["transform"]) and row["transform"][
        "interpolation"
    ] == "bilinear"
    odd = tmp_path / "cifar10" / "test" / CIFAR[0]
    os.rename(odd / "0003.jpg", os.fsencode(odd) + b"/caf\xe9.jpg")  # is no UTF-8
    assert command("predict", *files, *QUICK, *options)[0] == 0
    paths = [line.split(",")[1] for line in Path("run/predictions.csv").read_text().splitlines()]
    assert paths[:5] == ["path", *(f"test/{CIFAR[0]}/000{n}.jpg" for n in range(3)), paths[4]]
    assert paths[4] == rf"test/{CIFAR[0]}/caf\xe9.jpg" and len(paths) == 13


OWN_SETS = """
from pathlib import Path

import numpy as np

from chaosgate.data.arrays import ArrayData, Part
from chaosgate.data.listing import list_split
from chaosgate.data.photos import PhotoData


class Shapes(ArrayData):
    name, num_classes, image_size, in_chans = "shapes", 2, 16, 1

    def __init__(self, root: str, **arrays):
        super().__init__(mean=[0.5], std=[0.25], **arrays)
        self.root, self.class_names = Path(root), ["disc", "square"]

    def read(self):
        with np.load(self.root / "shapes.npz", allow_pickle=False) as file:
            return {part: Part(file[f"{part}_images"], file[f"{part}_targets"]) for part in ("train", "test")}


class Flowers(PhotoData):
    name, num_classes = "flowers", 2

    def __init__(self, root: str, image_size: int = 224, **photo):
        super().__init__(root, image_size, **photo)
        self.class_names = ["rose", "tulip"]

    def list_images(self, stage):
        splits = ("train", "val", "test")
        return {split: list_split(self.root, self.root / split, self.class_names) for split in splits}

    def split_rule(self):
        return "official folders"
"""


@pytest.mark.parametrize("name", ["Shapes", "Flowers"])
def test_a_custom_set_trains_and_tests(name, command, configs, tmp_path):
    module = f"my_{name.lower()}"  # imported once in a process, so each has its own
    (tmp_path / f"{module}.py").write_text(OWN_SETS)
    for split, count in (("train", 20), ("val", 3), ("test", 5)):
        for kind, flower in enumerate(("rose", "tulip")):
            (tmp_path / "flowers" / split / flower).mkdir(parents=True)
            for number in range(count):
                image = picture(kind, number + 100 * count, side=40)
                Image.fromarray(image).save(tmp_path / "flowers" / split / flower / f"{number}.jpg")
    parts = {"train": 40, "test": 10}
    images = {
        f"{part}_images": np.zeros((count, 16, 16), np.uint8) for part, count in parts.items()
    }
    targets = {f"{part}_targets": np.arange(count) % 2 for part, count in parts.items()}
    np.savez(tmp_path / "shapes.npz", **images, **targets)
    root = tmp_path if name == "Shapes" else tmp_path / "flowers"
    own = tmp_path / "own.yaml"
    own.write_text(
        f"data: {{class_path: {module}.{name}, init_args: {{root: {root}"
        + ("}}" if name == "Shapes" else ", image_size: 32}}")
        + f"\nmodel: {{num_classes: 2, in_chans: {1 if name == 'Shapes' else 3}}}\n"
    )
    row = fit_and_test(command, [*configs("base"), "-c", own, *configs("noise/none")])
    assert row["n"] == 10 and row["data"]["name"] == name.lower()
