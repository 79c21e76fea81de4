"""Oxford-IIIT Pets in torchvision's layout: all names of the official lists, small pictures."""

import shutil

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import OxfordIIITPet

from chaosgate.data import OxfordPets

pytestmark = pytest.mark.filterwarnings("ignore:.*of the .* images")


def pets(root):
    module = OxfordPets(str(root), 16, num_workers=0)
    module.setup("fit")
    return module


def test_splits_and_labels_are_those_of_the_official_lists_and_of_torchvision(synthetic):
    root = synthetic / "pets"
    module, theirs = pets(root), OxfordIIITPet(str(root), "test")
    assert [name.title() for name in module.class_names] == theirs.classes
    train, val, test = (module.listings[split] for split in ("train", "val", "test"))
    assert np.bincount(val.targets).tolist() == [2] * 37  # a fifth of ten images
    assert len({*train.names, *val.names}) == 370
    lines = (root / "oxford-iiit-pet" / "annotations" / "test.txt").read_text().splitlines()
    official = [line.split()[0] for line in lines]
    for path, target in list(zip(test.paths, test.targets, strict=True))[::20]:
        image, label = theirs[official.index(path.stem)]
        assert target == label and np.array_equal(image, Image.open(path))


def test_a_partial_set_warns_and_is_recorded_and_other_lists_are_refused(synthetic, tmp_path):
    shutil.copytree(synthetic / "pets", tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("Synthetic_06_test*.jpg"):
        path.unlink()
    with pytest.warns(UserWarning, match="3525 of the 3669 test images are .*; 36 of 37 classes"):
        module = pets(tmp_path)
    found = module.describe()
    assert found["subset"] is True and found["missing"] == {"trainval": 3310, "test": 3525}
    assert 5 not in module.test_splits[0].targets and module.num_classes == 37  # labels stay
    path = tmp_path / "oxford-iiit-pet" / "annotations" / "test.txt"
    lines = path.read_text().splitlines()[:-1]
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="lists 3668 images.* has 3669"):
        pets(tmp_path)
