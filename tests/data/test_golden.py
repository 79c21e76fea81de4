"""Digests of what each set gives: published runs must stay repeatable.

The files hold BMP data whatever they are called, and PIL resizes, so that the digests do not depend
on the processor or on the version of libjpeg."""

import hashlib

import pytest

from chaosgate.data import FashionMNIST, ImageFolder, ImageNet, ImageNetC
from tests.data.photos import write_classes, write_imagenet, write_val

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LOADING = {"image_size": 32, "batch_size": 6, "num_workers": 0, "decoder": "pil"}


def fashion(root):
    return FashionMNIST(corruptions=["gaussian_noise", "pixelate"], severities=[1, 5], seed=3)


def folder(root, **settings):
    write_classes(root, 20, ("ant", "bee", "cat"), (77, 52), "BMP")
    return ImageFolder(str(root), **LOADING, **settings)


def folder_standard(root):
    cells = {"corruptions": ["gaussian_noise"], "severities": [2, 5], "seed": 4}
    return folder(root, train_scale=(0.3, 0.9), **cells)


def folder_small(root):
    small = {"recipe": "small", "crop_padding": 5, "interpolation": "bicubic"}
    return folder(root, per_class={"train": 7}, **small)


def imagenet(root):
    write_imagenet(root, 12, 9, "BMP")
    return ImageNet(str(root), validation="held_out", val_fraction=0.25, **LOADING)


def imagenet_c(root):
    imagenet(root / "clean")
    for severity in (2, 4):
        write_val(root / "c/blur/defocus_blur" / str(severity), 9, (32, 32), "BMP", severity)
    cells = {"corruptions": ["defocus_blur"], "severities": [2, 4]}
    return ImageNetC(str(root / "c"), clean=str(root / "clean"), **cells, **LOADING)


def digest(data, root):
    """Of the first training batches in two epochs, of all validation and test images, and of the
    files' digests."""
    found, loaders = hashlib.sha256(), []
    if not isinstance(data, ImageNetC):
        data.setup("fit")
        loaders = [data.train_dataloader(), data.train_dataloader(), data.val_dataloader()]
        loaders[1].sampler.set_epoch(3)
    data.setup("test")
    for loader in [*loaders, data.test_dataloader()]:
        for step, batch in enumerate(loader):
            if step == 3 and loader in loaders[:2]:
                break
            for part in batch:
                found.update(part.contiguous().numpy().tobytes())
    told = data.describe()
    words = [told[key] for key in ("name", "images", "corruptions", "corruption_seed", "split")]
    words.append(sorted(told["files"].items()))
    found.update(repr(words).replace(str(root), "").encode())
    return found.hexdigest()[:16]


GOLDEN = {
    fashion: "29ea2a0ed6ec7209",
    folder_standard: "6747ccfd5161c3f2",
    folder_small: "a88a9e7f931a0b7a",
    imagenet: "825218f652d23212",
    imagenet_c: "f14d101cca40cccd",
}


@pytest.mark.parametrize("make", GOLDEN, ids=lambda make: make.__name__)
def test_images_labels_and_order_are_those_of_before(make, tmp_path):
    assert digest(make(tmp_path), tmp_path) == GOLDEN[make]
