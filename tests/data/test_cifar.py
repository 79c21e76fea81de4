"""CIFAR-10 and CIFAR-100, from small files in the released format."""

from pathlib import Path

import pytest
import torch

from chaosgate.data import CIFAR10, CIFAR100
from tests.data.cifar import NAMES, write_cifar

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


def test_what_is_missing_or_damaged_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no cifar-10-batches-py .*data.download"):
        CIFAR10(str(tmp_path))
    write_cifar(tmp_path, 10)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"cifar-10-batches-py .*damaged.*data.download"):
        CIFAR10(str(tmp_path)).setup("fit")
