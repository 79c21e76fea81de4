"""Folders of image files in every layout and with every fault, and the recipe that they get."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import ImageFolder as TorchvisionImageFolder
from torchvision.transforms import v2

from chaosgate.corruptions import corrupt, jpeg_roundtrip
from chaosgate.data import CLEAN, Cell, ImageFolder
from chaosgate.data.decoding import decode
from tests.data.photos import write_classes, write_photo
from tests.data.recorder import trainer

SPLITS = ("train", "val", "test")


def folder(root, **settings):
    settings = {"image_size": 32, "batch_size": 8, "num_workers": 0, **settings}
    module = ImageFolder(str(root), **settings)
    module.setup("fit")
    return module


def names(module, *splits):
    return [name for split in splits for name in module.listings[split].names]


def test_class_folders_are_split_by_shares_of_each_class_and_by_paths_alone(flat, copy):
    for number, path in enumerate(copy.rglob("*.jpg")):
        write_photo(path, number, (33, 34))
    first, second = (folder(root, seed=seed) for root, seed in ((flat, 0), (copy, 9)))
    assert first.class_names == ["ant", "bee", "cat"] and first.num_classes == 3
    for split, count in zip(SPLITS, (14, 2, 4), strict=True):
        assert names(first, split) == names(second, split)
        assert np.bincount(first.listings[split].targets).tolist() == [count] * 3
    assert len(set(names(first, *SPLITS))) == 60


def test_ranges_and_split_seeds_choose_other_images(flat):
    parts = [folder(flat, per_class={"train": share}) for share in (5, [5, 9])]
    both = [name for part in parts for name in names(part, "train")]
    assert len(both) == len(set(both)) == 27
    whole, seeded = folder(flat), folder(flat, split_seed=1)
    assert names(seeded, "test") == names(whole, "test")
    assert names(seeded, "val") != names(whole, "val") and len(set(names(seeded, *SPLITS))) == 60
    assert "seed 1" in seeded.describe()["split"]


def test_images_and_classes_are_those_of_torchvisions_folder(flat):
    module = folder(flat, decoder="pil", eval_resize=36, eval_batch_size=100)
    view = v2.Compose([v2.Resize(36, antialias=True), v2.CenterCrop(32), v2.PILToTensor()])
    theirs = TorchvisionImageFolder(str(flat), transform=view)
    places = [path for path, _ in theirs.samples]
    (batch,) = module.test_dataloader()
    for path, image, target in zip(module.listings["test"].paths, *batch[:2], strict=True):
        expected = theirs[places.index(str(path))]
        assert torch.equal(image, expected[0]) and target == expected[1]


def test_what_goes_to_a_worker_is_small_and_does_not_hold_the_trainer(flat, tmp_path):
    # workers that are spawned rather than forked receive their data set by pickle
    module = folder(flat, corruptions=["pixelate"], severities=[1])
    module.trainer = trainer(tmp_path)
    for loader in (module.train_dataloader(), module.test_dataloader()):
        data = pickle.dumps(loader.dataset)
        assert len(data) < 10_000 and b"Trainer" not in data


def test_test_images_are_corrupted_on_the_fly_image_by_image(flat):
    cells = {"corruptions": ["gaussian_noise"], "severities": [2, 5], "corruption_jpeg": True}
    module = folder(flat, seed=4, eval_batch_size=36, **cells)
    assert module.test_cells == [CLEAN, Cell("gaussian_noise", 2), Cell("gaussian_noise", 5)]
    (batch,) = module.test_dataloader()
    assert batch.index.tolist() == [index for index in range(12) for _ in range(3)]
    assert batch.cell.tolist() == [0, 1, 2] * 12
    for index, (clean, *noisy) in enumerate(batch.image.unflatten(0, (12, 3))):
        for image, cell in zip(noisy, module.test_cells[1:], strict=True):
            expected = jpeg_roundtrip(corrupt(clean, *cell, 4, index, "small"), quality=85)
            assert torch.equal(image, expected)
    assert module.describe()["corruptions"] == "generated"


def test_one_line_says_how_many_files_are_not_read_and_why(copy, monkeypatch):
    printed = []
    monkeypatch.setattr("chaosgate.data.photos.rank_zero_info", printed.append)
    folder(copy)
    assert not printed
    for name in ("ant/a.heic", "ant/b.HEIC", "bee/c.txt", "readme", "bee/.hidden"):
        (copy / name).write_text("no image")
    (copy / "bee" / "gone.jpg").symlink_to("nowhere")
    (copy / "bee" / "loop.jpg").symlink_to("loop.jpg")
    folder(copy)
    (line,) = printed
    assert "6 files are not read: 2 .heic, 1 .txt, 2 broken link, 1 outside class" in line


def thin_out(copy):
    for path in sorted((copy / "bee").iterdir())[2:]:
        path.unlink()


FAULTS = [
    (lambda copy: (copy / "ant/01.jpg").write_bytes(b""), "ant/01.jpg is empty"),
    (lambda copy: (copy / "dog").mkdir(), "no images in 1 class folder.*dog"),
    (thin_out, "class 'bee' has 2 image.*none is left for train"),
    (lambda copy: write_classes(copy / "test", 2), "has test but no train"),
    (
        lambda copy: (
            write_classes(copy / "test", 2),
            write_classes(copy / "train", 2, ["ant", "cat"]),
        ),
        r"different classes: .*\['bee'\].*\['cat'\]",
    ),
    (shutil.rmtree, "no folder .*copy. Set data.root"),
]


@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_files_and_folders_that_cannot_be_read_are_named(copy, spoil, message):
    spoil(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        folder(copy)


def test_a_damaged_image_is_named_by_the_worker_that_reads_it(copy):
    bad = copy / "ant" / "01.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    module = folder(copy, num_workers=2)
    with pytest.raises(ValueError, match="cannot decode .*01.jpg.*data check"):
        list(module.train_dataloader()) + list(module.val_dataloader())


@pytest.fixture
def official(tmp_path):
    """A folder for every split, three images in each class."""
    for split in SPLITS:
        write_classes(tmp_path / split, 3)
    return tmp_path


def test_loops_end_and_linked_files_and_folders_are_read_like_others(official):
    (official / "train" / "ant" / "self").symlink_to("../ant")
    for name in ("train/bee", "test/bee/00.jpg"):
        kept = (official / name).rename(official / f"kept-{Path(name).name}")
        (official / name).symlink_to(kept)
    assert folder(official).sizes() == {"train": 6, "val": 6, "test": 6}


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("train/ant/more", "test/ant"),
        ("train/ant/more.jpg", "test/ant/02.jpg"),
        ("train/bee/x.jpg", "train/ant/01.jpg"),
    ],
)
def test_a_file_in_two_splits_or_classes_is_refused(official, link, target):
    (official / link).symlink_to(official / target)
    with pytest.raises(ValueError, match="are the same file. Remove one"):
        folder(official)


@pytest.mark.parametrize(
    ("size", "image_size", "settings", "recipe", "resize"),
    [
        ((28, 28), 32, {}, "small", 32),
        ((80, 60), 64, {}, "standard", 73),  # photographs that are shrunk
        ((96, 96), 96, {"recipe": "small"}, "small", 96),
        ((32, 32), 32, {"recipe": "standard"}, "standard", 37),
    ],
)
def test_the_recipe_follows_the_size_of_the_images_unless_it_is_named(
    tmp_path, size, image_size, settings, recipe, resize
):
    data = folder(write_classes(tmp_path, 10, size=size), image_size=image_size, **settings)
    assert (data.recipe, data.eval_resize) == (recipe, resize)
    val = next(iter(data.val_dataloader())).image
    assert val.shape[1:] == (3, image_size, image_size)
    if size == (resize, resize):  # small images are tested as they are
        assert torch.equal(val, torch.stack(list(map(decode, data.listings["val"].paths))))


def test_predict_names_files_whose_names_are_not_utf8(command, configs, tmp_path):
    ant = write_classes(tmp_path / "photos", 12) / "ant"
    for number, path in enumerate(ant.glob("*")):
        os.rename(path, os.fsencode(ant) + b"/caf\xe9%d.jpg" % number)
    words = "--data=chaosgate.ImageFolder --data.root=photos --data.image_size=32 --run_dir=run"
    words += " --data.num_workers=0 --data.batch_size=8 --trainer.max_epochs=1"
    small = "--model.backbone_args={channels: [8, 8, 8, 8]}"
    for action in ("fit", "predict"):
        status, _, err = command(action, *configs("base"), *words.split(), small)
        assert status == 0, err
    assert Path("run/predictions.csv").read_text().count("ant/caf\\xe9") == 2
