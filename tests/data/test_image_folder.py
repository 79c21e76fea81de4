"""Real folders of real image files, in every layout and with every fault."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder as TorchvisionImageFolder
from torchvision.transforms import v2

from chaosgate.corruptions import corrupt, jpeg_roundtrip
from chaosgate.data import CLEAN, Cell, ImageFolder
from tests.data.recorder import LIGHTNING_WARNINGS, trainer

pytestmark = LIGHTNING_WARNINGS
CLASSES = ("ant", "bee", "cat")


def write_class(folder: Path, count: int, seed: int) -> None:
    """Smooth random images of different sizes, as JPEG and PNG in turn."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
        image = coarse.resize((40 + number, 50), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:03d}.{'png' if number % 3 == 0 else 'jpg'}")


def write_split(folder: Path, count: int, seed: int = 0) -> None:
    for number, name in enumerate(CLASSES):
        write_class(folder / name, count, seed=100 * seed + number)


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("flat")
    write_split(root, 20)
    return root


@pytest.fixture
def copy(flat: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(flat, tmp_path / "copy"))


def folder(root: Path, **settings: object) -> ImageFolder:
    module = ImageFolder(
        str(root), **{"image_size": 32, "batch_size": 8, "num_workers": 0, **settings}
    )  # type: ignore[arg-type]
    module.setup("fit")
    return module


def names(module: ImageFolder, split: str) -> list[str]:
    return [path.relative_to(module.root).as_posix() for path in module.listings[split].paths]


def test_class_folders_alone_are_split_by_shares_of_each_class(flat: Path):
    module = folder(flat, val_fraction=0.1, test_fraction=0.2)
    assert module.sizes() == {"train": 42, "val": 6, "test": 12}
    assert module.class_names == list(CLASSES) and module.num_classes == 3 and module.in_chans == 3
    for split, count in (("train", 14), ("val", 2), ("test", 4)):
        assert np.bincount(module.listings[split].targets).tolist() == [count] * 3
    everything = sum((names(module, split) for split in ("train", "val", "test")), [])
    assert len(everything) == len(set(everything)) == 60


def test_the_split_is_a_matter_of_paths_not_of_seeds_places_or_contents(flat: Path, copy: Path):
    for path in copy.rglob("*.png"):
        Image.new("RGB", (33, 34)).save(path)
    first, second = folder(flat, seed=0), folder(copy, seed=9)
    assert all(names(first, split) == names(second, split) for split in ("train", "val", "test"))
    # a published split may not move
    frozen = [
        "ant/010.jpg",
        "ant/018.png",
        "bee/005.jpg",
        "bee/017.jpg",
        "cat/004.jpg",
        "cat/014.jpg",
    ]
    assert names(first, "val") == frozen


def test_images_and_classes_are_those_of_torchvisions_folder(flat: Path):
    module = folder(flat, decoder="pil", eval_resize=36)
    view = v2.Compose([v2.Resize(36, antialias=True), v2.CenterCrop(32), v2.PILToTensor()])
    theirs = TorchvisionImageFolder(str(flat), transform=view)
    expected = {
        Path(path).relative_to(flat).as_posix(): i for i, (path, _) in enumerate(theirs.samples)
    }
    (batch,) = list(
        folder(flat, decoder="pil", eval_resize=36, eval_batch_size=100).test_dataloader()
    )
    for name, image, target in zip(names(module, "test"), batch.image, batch.target, strict=True):
        image_expected, target_expected = theirs[expected[name]]
        assert torch.equal(image, image_expected) and target == target_expected


def test_what_goes_to_a_worker_is_small_and_does_not_hold_the_trainer(flat: Path, tmp_path: Path):
    # workers that are spawned rather than forked receive their data set by pickle
    module = folder(flat, corruptions=["pixelate"], severities=[1])
    module.trainer = trainer(tmp_path)
    for loader in (module.train_dataloader(), module.test_dataloader()):
        data = pickle.dumps(loader.dataset)
        assert len(data) < 10_000 and b"Trainer" not in data
        token = next(iter(loader.sampler))
        assert torch.equal(pickle.loads(data)[token].image, loader.dataset[token].image)


def test_test_images_are_corrupted_on_the_fly_image_by_image(flat: Path):
    settings = {
        "corruptions": ["gaussian_noise"],
        "severities": [2, 5],
        "corruption_jpeg": True,
        "seed": 4,
    }
    module = folder(flat, eval_batch_size=36, **settings)
    assert module.test_cells == [CLEAN, Cell("gaussian_noise", 2), Cell("gaussian_noise", 5)]
    (batch,) = list(module.test_dataloader())
    assert batch.index.tolist() == [index for index in range(12) for _ in range(3)]
    assert batch.cell.tolist() == [0, 1, 2] * 12
    clean = batch.image[batch.cell == 0]
    for cell, severity in ((1, 2), (2, 5)):
        for index, image in enumerate(batch.image[batch.cell == cell]):
            noisy = corrupt(
                clean[index].permute(1, 2, 0).numpy(), "gaussian_noise", severity, 4, index, "small"
            )
            assert np.array_equal(image.permute(1, 2, 0).numpy(), jpeg_roundtrip(noisy, quality=85))
    told = module.describe()
    assert (told["corruptions"], told["corruption_table"], told["corruption_jpeg"]) == (
        "generated",
        "small",
        True,
    )


def test_ranges_and_split_seeds_choose_other_images(flat: Path):
    first = folder(flat, per_class={"train": 5, "test": 2})
    rest = folder(flat, per_class={"train": [5, 9], "test": (2, 4)})
    for split, count in (("train", 9), ("test", 4)):
        both = {*names(first, split), *names(rest, split)}
        assert len(both) == 3 * count
        assert len(names(first, split)) + len(names(rest, split)) == 3 * count
    assert rest.describe()["subset"] == {"train": [5, 9], "test": (2, 4)}
    seeded = [folder(flat, split_seed=seed, seed=2) for seed in (None, 1, 2, "run")]
    for one in seeded:
        assert one.sizes() == {"train": 42, "val": 6, "test": 12}
        assert names(one, "test") == names(seeded[0], "test")
        assert len({*names(one, "train"), *names(one, "val"), *names(one, "test")}) == 60
    val = [names(one, "val") for one in seeded]
    assert val[2] == val[3] and val[0] != val[1] != val[2]
    assert "seed 1" in seeded[1].describe()["split"]


def test_one_line_says_how_many_files_are_not_read_and_why(copy: Path, monkeypatch):
    printed: list[str] = []
    monkeypatch.setattr("chaosgate.data.photos.rank_zero_info", printed.append)
    folder(copy)
    assert not printed
    for name in ("ant/a.heic", "ant/b.HEIC", "bee/c.txt", "readme", "bee/.hidden"):
        (copy / name).write_text("no image")
    (copy / "bee" / "gone.jpg").symlink_to("nowhere")
    (copy / "bee" / "loop.jpg").symlink_to("loop.jpg")
    folder(copy)
    (line,) = printed
    assert "6 files are not read: 2 .heic, 1 .txt, 2 link to nothing, 1 outside class" in line


def test_an_empty_or_damaged_file_is_named(copy: Path):
    bad = copy / "ant" / "001.jpg"
    bad.write_bytes(bad.read_bytes()[:200])
    module = folder(copy, num_workers=2, batch_size=1)
    with pytest.raises(ValueError, match="cannot decode .*001.jpg.*data check"):
        for loader in (
            module.train_dataloader(),
            module.val_dataloader(),
            module.test_dataloader(),
        ):
            list(loader)
    bad.write_bytes(b"")
    with pytest.raises(ValueError, match="ant/001.jpg is empty"):
        folder(copy)


def empty_class(root: Path) -> None:
    (root / "dog").mkdir()


def other_classes(root: Path) -> None:
    shutil.move(root / "cat", root / "train" / "dog")
    write_split(root / "test", 2)
    for name in ("ant", "bee"):
        shutil.move(root / name, root / "train" / name)


def no_train(root: Path) -> None:
    (root / "test").mkdir()


def small_class(root: Path) -> None:
    for path in sorted((root / "bee").iterdir())[2:]:
        path.unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "no folder .*copy. Set data.root"),
        (empty_class, "no images in 1 class folder.*dog"),
        (other_classes, r"different classes: .*\['cat'\].*\['dog'\]"),
        (no_train, "has test but no train"),
        (small_class, "class 'bee' has 2 image.*none is left for train"),
    ],
)
def test_folders_that_are_not_a_set_are_named(copy: Path, change, message: str):
    if change is other_classes:
        (copy / "train").mkdir()
    change(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        folder(copy)
