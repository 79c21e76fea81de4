"""Oxford-IIIT Pets in torchvision's layout: all names of the official lists, small pictures."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import OxfordIIITPet

from chaosgate.data import OxfordPets

pytestmark = pytest.mark.filterwarnings("ignore:.*trainval images")


def pets(root):
    module = OxfordPets(str(root), 16, num_workers=0)
    module.setup("fit")
    return module


def test_splits_and_images_are_those_of_the_official_lists_and_of_torchvision(tmp_path):
    images, lists = (tmp_path / "oxford-iiit-pet" / name for name in ("images", "annotations"))
    images.mkdir(parents=True)
    lists.mkdir()
    for breed in range(37):  # the color of a picture tells its class
        Image.new("RGB", (26, 20), (6 * breed, 0, 200)).save(images / f"{breed}.jpg")
    for part, count in (("trainval", 3680), ("test", 3669)):
        lines = []
        for number in range(count):
            breed = number * 37 // count
            name = f"{'dog' if breed % 3 else 'Cat'}_breed_{breed}_{part}{number}"
            (images / f"{name}.jpg").hardlink_to(images / f"{breed}.jpg")
            lines.append(f"{name} {breed + 1} {2 if breed % 3 else 1} 1")
        (lists / f"{part}.txt").write_text("\n".join(lines))
    module = pets(tmp_path)
    assert sum(module.sizes().values()) == 3680 + 3669 and module.test_size == 3669
    official = np.bincount([number * 37 // 3680 for number in range(3680)])
    train, val = module.listings["train"], module.listings["val"]
    assert np.bincount(val.targets).tolist() == [int(count * 0.2) for count in official]
    assert not set(train.names) & set(val.names)
    assert module.describe()["subset"] is False
    theirs = OxfordIIITPet(str(tmp_path), "test")
    assert [name.title() for name in module.class_names] == theirs.classes
    found, targets = module.test_splits[0]
    for index in (0, 99, 100, 3668):
        image, target = theirs[index]
        color = torch.tensor(image.getpixel((13, 10)), dtype=torch.uint8)
        assert target == targets[index] and torch.equal(found[index][:, 8, 8], color)


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
    for more, message in (([], "lists 3668 images.* has 3669"), (["Cat_1 38 1 1"], "classes 1 to")):
        path.write_text("\n".join([*lines, *more]))
        with pytest.raises(ValueError, match=message):
            pets(tmp_path)
