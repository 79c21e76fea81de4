import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from chaosgate.data import FashionMNIST
from chaosgate.data.fashion_mnist import read_idx
from chaosgate.data.listing import spaced_holdout

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_fashion_mnist_subset.py"
SUBSET = Path(__file__).parents[2] / "src" / "chaosgate" / "data" / "fashion_mnist_subset.npz"


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    data = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, compresslevel=1) if path.suffix == ".gz" else data)


def write_set(folder: Path, train: int = 60_000, test: int = 10_000, suffix: str = "") -> None:
    """Idx files of the right sizes; the first pixels of an image tell its position, labels go round."""
    for prefix, count in (("train", train), ("t10k", test)):
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        images[:, 0, 0], images[:, 0, 1], images[:, 0, 2] = (
            np.arange(count) // 256**k % 256 for k in range(3)
        )
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", np.arange(count) % 10)


def positions(images: torch.Tensor) -> torch.Tensor:
    first = images[:, 0, 0, :3].long()
    return first[:, 0] + 256 * first[:, 1] + 65536 * first[:, 2]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("full")
    write_set(root / "FashionMNIST" / "raw")
    return root


@pytest.fixture(scope="module")
def subset() -> FashionMNIST:
    module = FashionMNIST(corruptions=None)
    module.setup("fit")
    return module


def test_the_subset_is_described_with_its_hash_and_its_source(subset: FashionMNIST):
    told = subset.describe()
    assert (
        told["subset"] is True and told["corruptions"] is None and told["name"] == "fashion_mnist"
    )
    assert told["files"] == {SUBSET.name: hashlib.sha256(SUBSET.read_bytes()).hexdigest()}
    # the checksum that torchvision and Debian agree on for the labels of the official test part
    assert told["source"]["sha256 of the source files"]["t10k-labels-idx1-ubyte.gz"].startswith(
        "8d3605d196f4be44"
    )
    assert len(subset.class_names) == subset.num_classes == 10 and subset.in_chans == 1


def test_the_full_set_is_split_evenly_spaced_within_each_class(full: Path):
    module = FashionMNIST(str(full), corruptions=None, val_fraction=0.1)
    module.setup("fit")
    assert module.sizes() == {"train": 54_000, "val": 6_000, "test": 10_000}
    assert np.bincount(module.val_split.targets).tolist() == [600] * 10
    train, val = positions(module.train_split.images), positions(module.val_split.images)
    assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(60_000))
    assert val[:20].tolist() == list(range(90, 100)) + list(
        range(190, 200)
    )  # every tenth image of each class
    assert (train % 10 == torch.from_numpy(module.train_split.targets)).all()
    told = module.describe()
    assert told["subset"] is False and set(told["files"]) == {
        path.name for path in full.glob("*/raw/*")
    }


def test_a_set_of_another_size_is_refused(tmp_path: Path):
    write_set(tmp_path, train=500, test=100)
    with pytest.raises(
        ValueError, match=r"images \(500, 28, 28\).*has 60000 images of 28x28.*data.download"
    ):
        FashionMNIST(str(tmp_path), corruptions=None).setup("fit")


def test_a_missing_root_is_named_before_anything_runs(tmp_path: Path):
    with pytest.raises(
        FileNotFoundError, match=r"no train-images-idx3-ubyte .*nowhere.*data.download to true"
    ):
        FashionMNIST(str(tmp_path / "nowhere"), corruptions=None)


@pytest.mark.parametrize(
    "damage", [b"", b"\x00\x00\x0d\x01", b"\x00\x00\x08\x01\x00\x00\x00\x09abc"]
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, damage: bytes):
    (tmp_path / "broken").write_bytes(damage)
    with pytest.raises(ValueError, match="broken.*fetch it again"):
        read_idx(tmp_path / "broken")


def test_the_holdout_has_the_stated_share_of_every_class():
    assert (
        spaced_holdout(np.zeros(100, dtype=int), 0.29).sum() == 29
    )  # although 100 * 0.29 < 29 in floating point
    targets = np.repeat(np.arange(4), [10, 33, 1, 7])
    for fraction in (0.1, 0.3, 0.5):
        held = spaced_holdout(targets, fraction)
        assert np.bincount(targets[held], minlength=4).tolist() == [
            int(n * fraction + 1e-9) for n in (10, 33, 1, 7)
        ]


def test_training_images_are_augmented_as_configured(subset: FashionMNIST):
    image = subset.train_split.images[0]
    plain = FashionMNIST(corruptions=None, crop_padding=0, horizontal_flip=False)
    plain.setup("fit")
    batch = next(iter(plain.train_dataloader()))
    assert torch.equal(batch.image, subset.train_split.images[batch.index])
    flipped = FashionMNIST(corruptions=None, crop_padding=0)
    augment = flipped.augmentation()
    seen = {
        augment(image, torch.Generator().manual_seed(seed)).numpy().tobytes() for seed in range(20)
    }
    assert seen == {image.numpy().tobytes(), image.flip(-1).numpy().tobytes()}
