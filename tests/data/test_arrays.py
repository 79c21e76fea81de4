"""Sets in memory: Fashion-MNIST, CIFAR, their splits and corrupted copies."""

import numpy as np
import pytest
import torch

from chaosgate.corruptions import PAPER, corrupt
from chaosgate.data import CIFAR10, CIFAR100, CLEAN, Cell, FashionMNIST
from chaosgate.data.arrays import corrupted_copies
from chaosgate.data.fashion_mnist import read_idx
from chaosgate.data.module import plan_cells
from tests.data.small_sets import write_cifar, write_fashion


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    root = tmp_path_factory.mktemp("full")
    write_fashion(root / "FashionMNIST" / "raw")
    return root


def fashion(root=None, **settings):
    module = FashionMNIST(root and str(root), corruptions=None, **settings)
    module.setup("fit")
    return module


def positions(module, split):
    pixels = module.splits()[split].images[:, 0, 0, :4].contiguous()
    return pixels.view(torch.int32).flatten().tolist()


def test_the_full_set_is_split_evenly_spaced_within_each_class(full):
    module = fashion(full, val_fraction=0.1)
    assert module.sizes() == {"train": 54_000, "val": 6_000, "test": 10_000}
    train, val = positions(module, "train"), positions(module, "val")
    assert sorted(train + val) == list(range(60_000))
    assert val[:20] == [*range(90, 100), *range(190, 200)]  # every tenth of each class
    assert [place % 10 for place in train] == module.train_split.targets.tolist()


def test_a_split_seed_draws_other_validation_images_and_the_same_test_images(full):
    shares = {"train": 20, "test": [200, 1000]}
    three, run, seven = (
        fashion(full, split_seed=seed, seed=7, per_class=shares) for seed in (3, "run", 7)
    )
    train, val, test = (set(positions(three, split)) for split in ("train", "val", "test"))
    assert positions(run, "val") == positions(seven, "val") != positions(three, "val")
    assert np.bincount(three.val_split.targets).tolist() == [600] * 10
    assert len(train & set(positions(seven, "train"))) < 20 and not train & val
    rest = positions(fashion(full, per_class={"test": 200}), "test")
    assert test == set(positions(seven, "test")) and len(rest) == 2_000
    assert test | set(rest) == set(range(10_000))
    with pytest.raises(ValueError, match="validation images of fashion_mnist are fixed"):
        fashion(split_seed=1)
    with pytest.raises(ValueError, match="images 1000 to 1099 of each class; class 0 has 1000"):
        fashion(full, per_class={"test": [1000, 1100]})


def test_files_that_are_missing_damaged_or_of_another_set_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte .*data.download"):
        fashion(tmp_path / "nowhere")
    write_fashion(tmp_path, train=500, test=100)
    with pytest.raises(ValueError, match=r"images \(500, 28, 28\).*has 60000 images of 28x28"):
        fashion(tmp_path)
    for damage in (b"", b"\0\0\x0d\1", b"\0\0\x08\1\0\0\0\x09abc"):
        (tmp_path / "broken").write_bytes(damage)
        with pytest.raises(ValueError, match="broken.*download it again"):
            read_idx(tmp_path / "broken")


@pytest.mark.parametrize(("kind", "module"), [(10, CIFAR10), (100, CIFAR100)])
def test_cifar_batches_become_images_labels_and_names(tmp_path, kind, module):
    with pytest.raises(FileNotFoundError, match=r"no cifar-.*data.download"):
        module(str(tmp_path))
    train, test = write_cifar(tmp_path, kind, train=2 * kind, test=kind)
    data = module(str(tmp_path), val_fraction=0.5)
    data.setup("fit")
    assert data.class_names[kind - 1] == f"class {kind - 1}" and data.num_classes == kind
    assert data.sizes() == {"train": kind, "val": kind, "test": kind}
    assert np.array_equal(data.test_splits[0].images, test)
    assert data.test_splits[0].targets.tolist() == list(range(kind))
    both = torch.cat([data.train_split.images, data.val_split.images]).numpy()
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in train)
    path = max(data.folder.iterdir())  # test_batch or train
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="are missing or damaged"):
        module(str(tmp_path)).setup("fit")


def test_the_papers_cells_are_the_clean_set_and_seven_corruptions_at_five_severities():
    cells = plan_cells("paper", [1, 2, 3, 4, 5], "small")
    assert cells == [CLEAN, *(Cell(name, severity) for name in PAPER for severity in range(1, 6))]
    with pytest.raises(ValueError, match="no 'gausian_noise'"):
        plan_cells(["gausian_noise"], [1], "small")
    with pytest.raises(ValueError, match="twice"):
        plan_cells(["pixelate", "pixelate"], [1], "small")


def test_copies_are_the_corruption_of_each_image_and_a_cache_keeps_them(tmp_path):
    images = fashion().test_splits[0].images[:20, 0].numpy()
    cells = [CLEAN, Cell("gaussian_noise", 3), Cell("pixelate", 1)]

    def made():
        copies = corrupted_copies(images, cells, 5, "small", tmp_path)
        return copies, {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    copies, files = made()
    assert np.array_equal(copies[0], images) and len(files) == 2
    for copy, cell in zip(copies[1:], cells[1:], strict=True):
        expected = corrupt(images[19], *cell, seed=5, index=19, table="small")
        assert np.array_equal(copy[19], expected)
    assert made()[1] == files
    victim = next(tmp_path.glob("pixelate*"))
    for damage in (b"", victim.read_bytes()[:-1]):
        victim.write_bytes(damage)
        assert np.array_equal(made()[0][2], copies[2])
