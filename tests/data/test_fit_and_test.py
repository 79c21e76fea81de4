"""Sets from file to result row through the commands, on small copies in the real format."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.data.photos import write_classes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TEMPLATE = Path(__file__).parents[2] / "template" / "my_project"
CLASSES = ("airplane", "automobile", "bird")
QUICK = (
    "--trainer.max_steps=1",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--model.backbone=resnet10_small",
    "--model.backbone_args={channels: [8, 8, 16, 16]}",
    "--model.num_classes=3",
    "--data.init_args.num_workers=0",
    "--data.init_args.batch_size=16",
    "--run_dir=run",
)


def first_row(command, *words):
    for name in ("fit", "test"):
        status, _, err = command(name, *words, *QUICK)
        assert status == 0, err
    return json.loads(Path("run/results.jsonl").read_text().splitlines()[0])


def test_class_folders_of_small_images_get_the_recipe_for_small_images(command, configs, tmp_path):
    for split, count in (("train", 20), ("test", 4)):
        write_classes(tmp_path / "cifar10" / split, count, CLASSES, size=(32, 32))
    words = [*configs("base", "data/image_folder"), "--data.init_args.image_size=32"]
    words.append(f"--data.init_args.root={tmp_path / 'cifar10'}")
    row = first_row(command, *words)
    assert row["n"] == 12 and row["data"]["images"] == {"train": 54, "val": 6, "test": 12}
    assert row["data"]["recipe"] == "small" and row["transform"]["eval_resize"] == 32
    assert {"mean", "std", "decoder", "interpolation"} < set(row["transform"])
    odd = tmp_path / "cifar10" / "test" / "airplane"
    os.rename(odd / "03.jpg", os.fsencode(odd) + b"/caf\xe9.jpg")  # is no UTF-8
    assert command("predict", *words, *QUICK)[0] == 0
    paths = [line.split(",")[1] for line in Path("run/predictions.csv").read_text().splitlines()]
    assert paths[1:4] == [f"test/airplane/0{number}.jpg" for number in range(3)]
    assert paths[4] == r"test/airplane/caf\xe9.jpg" and len(paths) == 13


def test_the_templates_set_in_memory_trains_and_tests(command, configs, tmp_path):
    shutil.copytree(TEMPLATE, tmp_path / "my_project")
    words = [*configs("base"), "--data=my_project.data.Shapes", "--model.in_chans=1"]
    row = first_row(command, *words)
    assert row["n"] == 300
