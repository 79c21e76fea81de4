"""CIFAR-10/100 and their corrupted copies, from small files in the released formats."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from chaosgate.data import CIFAR10, CIFAR100, CLEAN, Cell
from tests.data.cifar import NAMES, write_cifar, write_corrupted

pytestmark = pytest.mark.filterwarnings("ignore:.* lacks images of cifar")


@pytest.mark.parametrize(("kind", "module"), [(10, CIFAR10), (100, CIFAR100)])
def test_batches_become_images_labels_and_names(tmp_path: Path, kind: int, module: type[CIFAR10]):
    train, test = write_cifar(tmp_path, kind, train=2 * kind, test=kind)
    data = module(str(tmp_path), val_fraction=0.5)
    data.setup("fit")
    data.setup("test")
    assert data.class_names == NAMES[kind] and data.num_classes == kind and data.in_chans == 3
    assert data.sizes() == {"train": kind, "val": kind, "test": kind}
    assert torch.equal(data.test_splits[0].images, torch.from_numpy(test).permute(0, 3, 1, 2))
    assert data.test_splits[0].targets.tolist() == list(range(kind))
    both = torch.cat([data.train_split.images, data.val_split.images]).permute(0, 2, 3, 1).numpy()
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in train)
    folder_itself = module(str(next(tmp_path.iterdir())))
    folder_itself.setup("test")
    assert folder_itself.test_size == kind


@pytest.mark.parametrize(("kind", "module"), [(10, CIFAR10), (100, CIFAR100)])
@pytest.mark.parametrize("above", [True, False])
def test_released_cells_are_the_stored_images_of_their_severity(
    tmp_path: Path, kind: int, module: type[CIFAR10], above: bool
):
    _, test = write_cifar(tmp_path, kind)
    released = tmp_path / f"CIFAR-{kind}-C"
    write_corrupted(released, test, kind)
    where = str(tmp_path if above else released)
    data = module(
        str(tmp_path),
        released=where,
        corruptions=["fog", "snow"],
        severities=[2, 5],
        eval_batch_size=100,
    )
    assert data.test_cells == [
        CLEAN,
        Cell("fog", 2),
        Cell("fog", 5),
        Cell("snow", 2),
        Cell("snow", 5),
    ]
    data.setup("test")
    batches = list(data.test_dataloader())
    for batch, shift in zip(batches, (0, 2, 5, 12, 15), strict=True):
        assert np.array_equal(batch.image.permute(0, 2, 3, 1).numpy(), test + np.uint8(shift))
        assert batch.target.tolist() == [number % kind for number in range(100)]
    assert [int(batch.cell[0]) for batch in batches] == [0, 1, 2, 3, 4]
    assert data.describe()["corruptions"] == "released"
    copy = pickle.loads(
        pickle.dumps(data.test_splits[1].images)
    )  # as spawned workers get it: without the pixels
    assert len(pickle.dumps(copy)) < 1000 and torch.equal(copy[3], data.test_splits[1].images[3])


def damage_labels(folder: Path) -> None:
    np.save(folder / "labels.npy", np.zeros(500, dtype=np.int64))


def damage_stack(folder: Path) -> None:
    np.save(folder / "fog.npy", np.zeros((7, 32, 32, 3), dtype=np.uint8))


def damage_bytes(folder: Path) -> None:
    (folder / "fog.npy").write_bytes(b"not an array")


def damage_objects(folder: Path) -> None:
    np.save(folder / "fog.npy", np.array([{"a": 1}], dtype=object))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_labels, r"labels in .*labels.npy are not those of the test images"),
        (damage_stack, r"fog.npy is not uint8 .*holds uint8 \(7, 32, 32, 3\)"),
        (damage_bytes, "fog.npy is not uint8"),
        (damage_objects, "fog.npy is not uint8"),
    ],
)
def test_a_damaged_release_is_named(tmp_path: Path, damage, message: str):
    _, test = write_cifar(tmp_path, 10)
    write_corrupted(tmp_path / "CIFAR-10-C", test, 10)
    damage(tmp_path / "CIFAR-10-C")
    data = CIFAR10(str(tmp_path), released=str(tmp_path), corruptions=["fog"])
    with pytest.raises(ValueError, match=message):
        data.setup("test")


def test_what_is_missing_or_damaged_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no cifar-10-batches-py .*data.download"):
        CIFAR10(str(tmp_path))
    _, test = write_cifar(tmp_path, 10)
    with pytest.raises(
        FileNotFoundError, match=r"no labels.npy, .*chaosgate data download cifar-10-c"
    ):
        CIFAR10(str(tmp_path), released=str(tmp_path), corruptions="paper")
    write_corrupted(tmp_path / "CIFAR-10-C", test, 10)
    with pytest.raises(FileNotFoundError, match=r"no .*glass_blur.npy"):
        CIFAR10(str(tmp_path), released=str(tmp_path), corruptions="paper")
    with pytest.raises(ValueError, match="data.released is given and data.corruptions is null"):
        CIFAR10(str(tmp_path), released=str(tmp_path))
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"data_batch_3 in .*damaged.*data.download"):
        CIFAR10(str(tmp_path)).setup("fit")
