"""CIFAR-10/100 and their corrupted copies, from small files in the released formats."""

import hashlib
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from chaosgate.data import CIFAR10, CIFAR100, CLEAN, ArrayData, Cell
from chaosgate.data import download as archives
from chaosgate.data.download import Archive
from chaosgate.data.cifar import read_batch
from tests.data.cifar import NAMES, write_cifar, write_corrupted, write_pickle

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
    told = data.describe()
    assert told["subset"] is True and told["missing"] == {"train": 50_000 - 2 * kind, "test": 10_000 - kind}
    folder_itself = module(str(next(tmp_path.iterdir())))
    folder_itself.setup("test")
    assert folder_itself.test_size == kind


def test_our_reading_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torchvision.datasets import CIFAR10 as Torchvision

    write_cifar(tmp_path, 10)
    monkeypatch.setattr(Torchvision, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5: True)
    theirs = Torchvision(str(tmp_path), train=False)
    data = CIFAR10(str(tmp_path))
    data.setup("test")
    assert np.array_equal(data.test_splits[0].images.permute(0, 2, 3, 1).numpy(), theirs.data)
    assert data.test_splits[0].targets.tolist() == theirs.targets and data.class_names == theirs.classes


def test_training_images_are_padded_and_cut_and_test_images_are_as_they_are(tmp_path: Path):
    _, test = write_cifar(tmp_path, 10)
    data = CIFAR10(str(tmp_path), batch_size=10, eval_batch_size=100)
    data.setup("fit")
    data.setup("test")
    batch = next(iter(data.test_dataloader()))
    assert np.array_equal(batch.image.permute(0, 2, 3, 1).numpy(), test)
    first = next(iter(data.train_dataloader()))
    assert first.image.shape == (10, 3, 32, 32) and first.image.dtype == torch.uint8
    padded = torch.nn.functional.pad(data.train_split.images[int(first.index[0])], [4] * 4)
    windows = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    assert any(torch.equal(first.image[0], cut) or torch.equal(first.image[0], cut.flip(-1)) for cut in windows)


@pytest.mark.parametrize(("kind", "module"), [(10, CIFAR10), (100, CIFAR100)])
@pytest.mark.parametrize("above", [True, False])
def test_released_cells_are_the_stored_images_of_their_severity(
    tmp_path: Path, kind: int, module: type[CIFAR10], above: bool
):
    _, test = write_cifar(tmp_path, kind)
    released = tmp_path / f"CIFAR-{kind}-C"
    write_corrupted(released, test, kind)
    where = str(tmp_path if above else released)
    data = module(str(tmp_path), released=where, corruptions=["fog", "snow"], severities=[2, 5], eval_batch_size=100)
    assert data.test_cells == [CLEAN, Cell("fog", 2), Cell("fog", 5), Cell("snow", 2), Cell("snow", 5)]
    data.setup("test")
    batches = list(data.test_dataloader())
    for batch, shift in zip(batches, (0, 2, 5, 12, 15), strict=True):
        assert np.array_equal(batch.image.permute(0, 2, 3, 1).numpy(), test + np.uint8(shift))
        assert batch.target.tolist() == [number % kind for number in range(100)]
    assert [int(batch.cell[0]) for batch in batches] == [0, 1, 2, 3, 4]
    assert data.describe()["corruptions"] == "released"
    copy = pickle.loads(pickle.dumps(data.test_splits[1].images))  # as spawned workers get it: without the pixels
    assert len(pickle.dumps(copy)) < 1000 and torch.equal(copy[3], data.test_splits[1].images[3])


def test_generated_cells_need_no_release(tmp_path: Path):
    write_cifar(tmp_path, 10, test=20)
    data = CIFAR10(str(tmp_path), corruptions="paper", severities=[1], cache_dir=str(tmp_path / "cache"))
    data.setup("test")
    assert len(data.test_splits) == 8 and data.describe()["corruptions"] == "generated"
    again = CIFAR10(str(tmp_path), corruptions="paper", severities=[1], cache_dir=str(tmp_path / "cache"))
    again.setup("test")  # from the cache
    assert all(torch.equal(a.images, b.images) for a, b in zip(data.test_splits, again.test_splits, strict=True))


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
        (damage_labels, r"labels.npy has 500 labels that are not five times"),
        (damage_stack, r"fog.npy holds uint8 \(7, 32, 32, 3\)"),
        (damage_bytes, "fog.npy cannot be read"),
        (damage_objects, "fog.npy cannot be read"),
    ],
)
def test_a_damaged_release_is_named(tmp_path: Path, damage, message: str):
    _, test = write_cifar(tmp_path, 10)
    write_corrupted(tmp_path / "CIFAR-10-C", test, 10)
    damage(tmp_path / "CIFAR-10-C")
    data = CIFAR10(str(tmp_path), released=str(tmp_path), corruptions=["fog"])
    with pytest.raises(ValueError, match=message):
        data.setup("test")


def test_what_is_missing_is_said_before_anything_runs(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no cifar-10-batches-py \(test_batch.*data.download"):
        CIFAR10(str(tmp_path))
    _, test = write_cifar(tmp_path, 10)
    with pytest.raises(FileNotFoundError, match=r"no labels.npy in .*chaosgate data download cifar-10-c"):
        CIFAR10(str(tmp_path), released=str(tmp_path), corruptions="paper")
    write_corrupted(tmp_path / "CIFAR-10-C", test, 10)
    with pytest.raises(FileNotFoundError, match=r"lacks .*glass_blur.npy"):
        CIFAR10(str(tmp_path), released=str(tmp_path), corruptions="paper")
    with pytest.raises(ValueError, match="data.released is given and data.corruptions is null"):
        CIFAR10(str(tmp_path), released=str(tmp_path))


class Attack:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.place}",)


def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path):
    hit = tmp_path / "hit"
    for number, content in enumerate(({"data": Attack(hit)}, {"data": np.array([Attack(hit)], dtype=object)})):
        path = tmp_path / f"batch{number}"
        path.write_bytes(pickle.dumps(content, protocol=4))
        with pytest.raises(ValueError, match=r"batch. is refused or damaged: it asks for .*system"):
            read_batch(path)
    for attack in (b"cbuiltins\neval\n(S'1+1'\ntR.", b"cnumpy\nload\n(S'x'\ntR.", b"c_codecs\nencode\n(S'x'\ntR."):
        path.write_bytes(attack)
        with pytest.raises(ValueError, match="it asks for"):
            read_batch(path)
    assert not hit.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]}, "does not hold images of 3072 bytes"),
        ({"data": np.zeros((2, 100), np.uint8), "labels": [0, 1]}, "does not hold images of 3072 bytes"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "not have as many labels as images"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, "labels outside 0 to 9"),
    ],
)
def test_a_batch_of_something_else_is_named(tmp_path: Path, content: dict[str, object], message: str):
    write_cifar(tmp_path, 10)
    write_pickle(tmp_path / "cifar-10-batches-py" / "data_batch_3", content)
    with pytest.raises(ValueError, match=f"data_batch_3 .*{message}"):
        CIFAR10(str(tmp_path)).setup("fit")


def test_a_truncated_batch_is_named(tmp_path: Path):
    write_cifar(tmp_path, 10)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"test_batch is refused or damaged.*fetch the set again"):
        CIFAR10(str(tmp_path)).setup("test")


def test_download_fetches_checks_and_unpacks_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, test = write_cifar(tmp_path / "made", 10)
    write_corrupted(tmp_path / "made" / "CIFAR-10-C", test, 10)
    sources = {}
    for name, folder in (("cifar-10", "cifar-10-batches-py"), ("cifar-10-c", "CIFAR-10-C")):
        path = tmp_path / f"{name}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tmp_path / "made" / folder, folder)
        sources[name] = [Archive(path.as_uri(), f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}")]
    monkeypatch.setattr(archives, "ARCHIVES", sources)
    data = CIFAR10(
        str(tmp_path / "new"), download=True, released=str(tmp_path / "new"), corruptions=["fog"], severities=[1]
    )
    data.prepare_data()
    data.setup("test")
    assert data.test_size == 100 and sorted(os.listdir(tmp_path / "new")) == ["CIFAR-10-C", "cifar-10-batches-py"]
    for path in sources.values():
        Path(path[0].url.removeprefix("file://")).unlink()
    data.prepare_data()  # all there: nothing is fetched


def test_bad_settings_name_their_key(tmp_path: Path):
    write_cifar(tmp_path, 10)
    for settings, message in (
        ({"mean": [0.5], "std": [0.5]}, "data.mean has 1 values; the images of cifar10 have 3"),
        ({"crop_padding": 32}, "data.crop_padding is 32"),
        ({"val_fraction": 0.0}, "data.val_fraction is 0.0"),
        ({"corruptions": ["snow"]}, "data.corruptions: no 'small' table for snow"),
    ):
        with pytest.raises(ValueError, match=message):
            CIFAR10(str(tmp_path), **settings)
    assert issubclass(CIFAR10, ArrayData)
