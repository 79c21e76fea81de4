"""Sets in memory: Fashion-MNIST, CIFAR, their splits and corrupted copies."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from chaosgate.corruptions import PAPER, corrupt
from chaosgate.data import CIFAR10, CIFAR100, CLEAN, Cell, FashionMNIST
from chaosgate.data.arrays import corrupted_copies
from chaosgate.data.fashion_mnist import read_idx
from chaosgate.data.listing import spaced_holdout
from chaosgate.data.module import plan_cells
from tests.data.cifar import NAMES, write_cifar

SUBSET = Path(__file__).parents[2] / "src" / "chaosgate" / "data" / "fashion_mnist_subset.npz"
CELLS = [CLEAN, Cell("gaussian_noise", 3), Cell("pixelate", 1)]


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    data = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, compresslevel=1) if path.suffix == ".gz" else data)


def write_set(folder: Path, train: int = 60_000, test: int = 10_000) -> None:
    """Idx files; the first pixels of an image are its position, and so is its label modulo ten."""
    for prefix, count in (("train", train), ("t10k", test)):
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        for k in range(3):
            images[:, 0, k] = np.arange(count) // 256**k % 256
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", np.arange(count) % 10)


def positions(images: torch.Tensor) -> torch.Tensor:
    first = images[:, 0, 0, :3].long()
    return first[:, 0] + 256 * first[:, 1] + 65536 * first[:, 2]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("full")
    write_set(root / "FashionMNIST" / "raw")
    return root


def fashion(root: Path | None = None, **settings: object) -> FashionMNIST:
    module = FashionMNIST(root and str(root), corruptions=None, **settings)  # type: ignore[arg-type]
    module.setup("fit")
    return module


def test_the_subset_is_described_with_its_hash_and_its_source():
    subset = fashion()
    told = subset.describe()
    assert told["subset"] is True and told["corruptions"] is None
    assert told["files"] == {SUBSET.name: hashlib.sha256(SUBSET.read_bytes()).hexdigest()}
    # the checksum that torchvision and Debian agree on for the labels of the official test part
    source = told["source"]["sha256 of the source files"]
    assert source["t10k-labels-idx1-ubyte.gz"].startswith("8d3605d196f4be44")


def test_the_full_set_is_split_evenly_spaced_within_each_class(full: Path):
    module = fashion(full, val_fraction=0.1)
    assert module.sizes() == {"train": 54_000, "val": 6_000, "test": 10_000}
    train, val = positions(module.train_split.images), positions(module.val_split.images)
    assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(60_000))
    assert val[:20].tolist() == [*range(90, 100), *range(190, 200)]  # every tenth of each class
    assert (train % 10 == torch.from_numpy(module.train_split.targets)).all()


def test_a_split_seed_draws_other_validation_images_and_the_same_test_images(full: Path):
    choice = {"per_class": {"train": 20, "test": 30}}
    found = {
        seed: fashion(full, split_seed=seed, seed=7, **choice) for seed in (None, 3, 4, "run", 7)
    }
    val = {seed: set(positions(one.val_split.images).tolist()) for seed, one in found.items()}
    train = {seed: set(positions(one.train_split.images).tolist()) for seed, one in found.items()}
    assert all(len(one) == 6_000 for one in val.values()) and val["run"] == val[7]
    assert len({frozenset(one) for one in val.values()}) == 4
    assert len(train[3] & train[4]) < 20 and not any(train[seed] & val[seed] for seed in found)
    test = {tuple(positions(one.test_splits[0].images).tolist()) for one in found.values()}
    assert len(test) == 1 and np.bincount(found[3].val_split.targets).tolist() == [600] * 10
    assert "seed 3" in found[3].describe()["split"] and "seed" not in found[None].origin["split"]
    with pytest.raises(ValueError, match="validation images of fashion_mnist are fixed"):
        fashion(split_seed=1)


def test_a_range_of_each_class_is_what_a_smaller_number_leaves_out(full: Path):
    def test_images(share: object) -> set[int]:
        module = fashion(full, per_class={"test": share})
        assert np.bincount(module.test_splits[0].targets).tolist() == [len(used(module)) / 10] * 10
        return used(module)

    def used(module: FashionMNIST) -> set[int]:
        return set(positions(module.test_splits[0].images).tolist())

    first, rest = test_images(200), test_images([200, 1000])
    assert not first & rest and first | rest == set(range(10_000))
    with pytest.raises(ValueError, match="images 1000 to 1099 of each class; class 0 has 1000"):
        test_images([1000, 1100])


def test_the_holdout_has_the_stated_share_of_every_class():
    assert spaced_holdout(np.zeros(100, dtype=int), 0.29).sum() == 29  # 100 * 0.29 < 29 in floats
    targets = np.repeat(np.arange(4), [10, 33, 1, 7])
    for seed in (None, 5):
        held = spaced_holdout(targets, 0.3, seed)
        assert np.bincount(targets[held], minlength=4).tolist() == [3, 9, 0, 2]


def test_files_that_are_missing_damaged_or_of_another_set_are_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte .*data.download"):
        fashion(tmp_path / "nowhere")
    write_set(tmp_path, train=500, test=100)
    with pytest.raises(ValueError, match=r"images \(500, 28, 28\).*has 60000 images of 28x28"):
        fashion(tmp_path)
    for damage in (b"", b"\x00\x00\x0d\x01", b"\x00\x00\x08\x01\x00\x00\x00\x09abc"):
        (tmp_path / "broken").write_bytes(damage)
        with pytest.raises(ValueError, match="broken.*fetch it again"):
            read_idx(tmp_path / "broken")


def test_training_images_are_augmented_as_configured():
    plain = fashion(crop_padding=0, horizontal_flip=False)
    batch = next(iter(plain.train_dataloader()))
    assert torch.equal(batch.image, plain.train_split.images[batch.index])
    image, augment = plain.train_split.images[0], fashion(crop_padding=0).augmentation()
    seen = {augment(image, torch.Generator().manual_seed(s)).numpy().tobytes() for s in range(20)}
    assert seen == {image.numpy().tobytes(), image.flip(-1).numpy().tobytes()}


@pytest.mark.parametrize(("kind", "module"), [(10, CIFAR10), (100, CIFAR100)])
def test_cifar_batches_become_images_labels_and_names(tmp_path: Path, kind: int, module):
    train, test = write_cifar(tmp_path, kind, train=2 * kind, test=kind)
    data = module(str(tmp_path), val_fraction=0.5)
    data.setup("fit")
    assert data.class_names == NAMES[kind] and data.num_classes == kind and data.in_chans == 3
    assert data.sizes() == {"train": kind, "val": kind, "test": kind}
    assert torch.equal(data.test_splits[0].images, torch.from_numpy(test).permute(0, 3, 1, 2))
    assert data.test_splits[0].targets.tolist() == list(range(kind))
    both = torch.cat([data.train_split.images, data.val_split.images]).permute(0, 2, 3, 1).numpy()
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in train)


def test_missing_and_damaged_cifar_files_are_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no cifar-10-batches-py .*data.download"):
        CIFAR10(str(tmp_path))
    write_cifar(tmp_path, 10)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"cifar-10-batches-py are missing or damaged"):
        CIFAR10(str(tmp_path)).setup("fit")


def test_the_papers_cells_are_the_clean_set_and_seven_corruptions_at_five_severities():
    cells = plan_cells("paper", [1, 2, 3, 4, 5], "small")
    assert cells[0] == CLEAN and len(cells) == len(set(cells)) == 36
    assert {cell.corruption for cell in cells[1:]} == set(PAPER)
    assert plan_cells(None, [1]) == [CLEAN]


@pytest.mark.parametrize(
    ("corruptions", "severities", "message"),
    [
        (["gausian_noise"], [1], "no corruption 'gausian_noise'.*Did you mean 'gaussian_noise'"),
        (["pixelate", "pixelate"], [1], "twice"),
        (["pixelate"], [], "at least one of each"),
    ],
)
def test_cells_that_cannot_be_planned_are_refused(corruptions, severities, message: str):
    with pytest.raises(ValueError, match=message):
        plan_cells(corruptions, severities, "small")


def test_copies_are_the_corruption_of_each_image_and_a_cache_keeps_them(tmp_path: Path):
    images = fashion().test_splits[0].images[:20, 0].numpy()
    made = corrupted_copies(images, CELLS, 5, "small", tmp_path)
    assert np.array_equal(made[0], images)
    for copy, (name, severity) in zip(made[1:], CELLS[1:], strict=True):
        for index in (0, 19):
            expected = corrupt(images[index], name, severity, seed=5, index=index, table="small")
            assert np.array_equal(copy[index], expected)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(files) == 2  # nothing temporary is left
    corrupted_copies(images, CELLS, 5, "small", tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
    victim = next(tmp_path.glob("pixelate*"))
    for damage in (b"", victim.read_bytes()[:-1]):
        victim.write_bytes(damage)
        again = corrupted_copies(images, CELLS, 5, "small", tmp_path)
        assert np.array_equal(again[2], made[2])
