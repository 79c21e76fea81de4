"""The recipe for Swin-T: timm's tools, driven by explicit keys."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from torchvision.transforms import InterpolationMode

from chaosgate.data import ImageFolder, Sample
from chaosgate.data.augment import CUTMIX, MIXUP, FullRecipe, erase, mix
from chaosgate.data.streams import lent_streams, sample_generator
from tests.data.photos import write_photo
from tests.data.recorder import LIGHTNING_WARNINGS, Recorder, trainer

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
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, size, size), dtype=np.uint8))


def states() -> tuple[bytes, bytes, str]:
    return torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes(), str(random.getstate())


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
        assert 0.01 < area < 0.36  # timm's 2 % to 33 %, up to rounding and to noise that hits the old value
        inside = (erased != image)[:, top:bottom, left:right].float().mean()
        assert inside > 0.9


@pytest.mark.statistical
def test_the_noise_of_an_erased_rectangle_is_standard_normal_after_normalisation():
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    values = []
    for key in range(40):
        with lent_streams(key):
            erased = erase(image, (0.5,) * 3, (0.1,) * 3)  # a deviation at which the grey levels do not end
        inside = erased[:, (erased > 0).all(0)].double()
        values.append(((inside / 255 - 0.5) / 0.1).flatten())
    noise = torch.cat(values)
    # 5 standard errors of mean and variance
    assert abs(noise.mean()) < 5 / len(noise) ** 0.5
    assert abs(noise.var() - 1) < 5 * (2 / len(noise)) ** 0.5


def batch(size: int = 8, classes: int = 5) -> Sample:
    images = torch.stack([photo(seed) for seed in range(size)]).float()
    return Sample(images, torch.arange(size) % classes, torch.arange(size), torch.zeros(size, dtype=torch.long))


def test_mixed_images_carry_mixed_targets():
    kinds = set()
    for key in range(12):
        whole = batch()
        mixed = mix(whole._replace(image=whole.image.clone()), 5, key)
        assert mixed.target.shape == (8, 5)
        torch.testing.assert_close(mixed.target.sum(1), torch.ones(8))
        share = mixed.target[0, 0]  # image 0 is of class 0, its partner, image 7, of class 2
        torch.testing.assert_close(mixed.target[0, 2], 1 - share)
        own, partners = mixed.image == whole.image, mixed.image == whole.image.flip(0)
        if (own | partners).all():  # cutmix: the share is that of the pixels
            kinds.add("cutmix")
            torch.testing.assert_close(own.all(1).float().mean((1, 2))[0], share, atol=1e-6, rtol=0)
        else:
            kinds.add("mixup")
            expected = share * whole.image + (1 - share) * whole.image.flip(0)
            torch.testing.assert_close(mixed.image, expected)
    assert kinds == {"mixup", "cutmix"} and (MIXUP, CUTMIX) == (0.8, 1.0)


def test_mixing_is_a_function_of_its_key():
    before = states()
    one, two, other = (mix(batch(), 5, key) for key in (3, 3, 4))
    assert torch.equal(one.image, two.image) and torch.equal(one.target, two.target)
    assert not torch.equal(one.image, other.image)
    assert states() == before


def test_smoothing_mixed_targets_in_the_loss_is_mixing_smoothed_ones():
    mixed = mix(batch(), 5, 1)
    logits = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    smoothed = 0.9 * mixed.target + 0.1 / 5
    torch.testing.assert_close(
        cross_entropy(logits, mixed.target, label_smoothing=0.1), cross_entropy(logits, smoothed)
    )


def test_a_run_mixes_in_training_only_and_repeats_itself_after_a_restart(root: Path, tmp_path: Path):
    class Shapes(Recorder):
        def __init__(self) -> None:
            super().__init__(features=3 * 32 * 32, classes=2)
            self.shapes: set[tuple[str, int]] = set()
            self.shares: set[float] = set()

        def training_step(self, batch: Sample, batch_idx: int) -> torch.Tensor:
            self.shapes.add(("train", batch.target.ndim))
            self.shares.add(float(batch.target.max(1).values.min()))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Sample, batch_idx: int) -> None:
            self.shapes.add(("val", batch.target.ndim))
            super().validation_step(batch, batch_idx)

    def fit(path: str | None = None, **settings: object) -> Shapes:
        model = Shapes()
        trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0, **settings).fit(model, module(root), ckpt_path=path)
        return model

    whole = fit()
    assert whole.shapes == {("train", 2), ("val", 1)}
    assert len(whole.shares) > 4  # each step mixes in its own way
    assert len({total for _, total in whole.trained}) == len(whole.trained) == 8
    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=3, save_top_k=-1)
    first = fit(callbacks=[saver], max_steps=3)
    (path,) = (tmp_path / "ckpt").glob("*.ckpt")
    assert first.trained + fit(str(path)).trained == whole.trained


def test_no_strength_that_can_be_drawn_is_refused_by_pillow():
    recipe = FullRecipe(lambda picture, generator: picture, 8, InterpolationMode.BICUBIC, MEAN, STD)
    for index in range(1500):  # one in 350 images was posterised to 0 bits
        assert recipe(photo(size=8), sample_generator(0, 0, index)).shape == (3, 8, 8)
