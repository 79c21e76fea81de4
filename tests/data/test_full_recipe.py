"""The recipe for Swin-T: timm's tools, driven by explicit keys."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode

from chaosgate.data import ImageFolder
from chaosgate.data.augment import FullRecipe, erase
from chaosgate.data.samples import lent_streams, sample_generator
from tests.data.photos import write_photo
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for label, name in enumerate(("ant", "bee")):
        for number in range(24):
            write_photo(folder / name / f"{number}.jpg", 100 * label + number)
    return folder


def module(root: Path, **settings: object) -> ImageFolder:
    return ImageFolder(str(root), 32, batch_size=8, num_workers=0, recipe="full", **settings)  # type: ignore[arg-type]


def photo(seed: int = 0, size: int = 32) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (3, size, size), dtype=np.uint8)
    )


def states() -> tuple[bytes, bytes, str]:
    return (
        torch.get_rng_state().numpy().tobytes(),
        np.random.get_state()[1].tobytes(),
        str(random.getstate()),
    )


def test_lent_streams_are_a_function_of_the_key_and_are_put_back():
    def draws(key: int) -> tuple[float, float, float]:
        with lent_streams(key):
            return random.random(), float(np.random.rand()), float(torch.rand(()))

    before = states()
    assert draws(2**61 + 5) == draws(2**61 + 5) != draws(2**61 + 6)
    with pytest.raises(KeyError), lent_streams(1):
        raise KeyError
    assert states() == before


@pytest.mark.parametrize("decoder", ["fast", "pil"])
def test_an_augmented_image_is_a_function_of_its_generator_alone(root: Path, decoder: str):
    data = module(root, decoder=decoder)
    data.setup("fit")
    augment = data.augmentation()
    image = data.train_split.images[0]

    def once(epoch: int) -> torch.Tensor:
        return augment(image, sample_generator(0, epoch, 0))

    before = states()
    first = [once(epoch) for epoch in range(8)]
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    assert all(torch.equal(a, once(epoch)) for epoch, a in enumerate(first))
    assert len({image.numpy().tobytes() for image in first}) == 8
    assert first[0].shape == (3, 32, 32) and first[0].dtype == torch.uint8
    pickle.dumps(augment)  # spawned workers
    torch.set_rng_state(torch.from_numpy(np.frombuffer(before[0], dtype=np.uint8).copy()))


def test_erasing_changes_one_rectangle_and_nothing_else():
    image = photo(size=64)
    for key in range(20):
        with lent_streams(key):
            erased = erase(image, MEAN, STD)
        rows, columns = torch.nonzero((erased != image).any(0), as_tuple=True)
        top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        area = (bottom - top) * (right - left) / 64**2
        assert (
            0.01 < area < 0.36
        )  # timm's 2 % to 33 %, up to rounding and to noise that hits the old value
        inside = (erased != image)[:, top:bottom, left:right].float().mean()
        assert inside > 0.9


def test_no_strength_that_can_be_drawn_is_refused_by_pillow():
    recipe = FullRecipe(lambda picture, generator: picture, 8, InterpolationMode.BICUBIC, MEAN, STD)
    for index in range(1500):  # one in 350 images was posterised to 0 bits
        assert recipe(photo(size=8), sample_generator(0, 0, index)).shape == (3, 8, 8)
