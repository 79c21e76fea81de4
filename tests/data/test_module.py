import random

import numpy as np
import pytest
import torch

from chaosgate.data import Sample
from tests.data.recorder import LIGHTNING_WARNINGS, FewImages

pytestmark = LIGHTNING_WARNINGS


def few(**settings: object) -> FewImages:
    module = FewImages(**{"batch_size": 64, "corruptions": None, **settings})
    module.setup("test")
    return module


def epoch(module: FewImages, number: int) -> list[Sample]:
    loader = module.train_dataloader()
    loader.sampler.set_epoch(number)
    return list(loader)


def same(first: list[Sample], second: list[Sample]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a, b) for batches in pairs for a, b in zip(*batches, strict=True))


def test_batches_depend_neither_on_workers_nor_on_the_global_streams():
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    module = few(num_workers=2)
    loader = module.train_dataloader()
    assert loader.persistent_workers  # they outlive an epoch
    for number in (0, 1):
        loader.sampler.set_epoch(number)
        assert same(list(loader), epoch(few(), number))
    list(module.test_dataloader())
    assert draws() == expected


def test_an_augmented_image_is_a_function_of_seed_epoch_and_index():
    def images(module: FewImages, number: int) -> dict[int, bytes]:
        return {
            int(index): image.numpy().tobytes()
            for batch in epoch(module, number)
            for index, image in zip(batch.index, batch.image, strict=True)
        }

    reference = images(few(), 0)
    assert images(few(batch_size=50), 0).items() >= reference.items()
    for other in (images(few(), 1), images(few(seed=1), 0)):
        shared = reference.keys() & other.keys()
        assert sum(reference[index] != other[index] for index in shared) > 0.9 * len(shared)


def test_images_are_normalized_where_they_are_and_only_once():
    module = few(channels_last=True)
    batch = next(iter(module.test_dataloader()))
    done = module.on_after_batch_transfer(batch, 0)
    expected = (batch.image.double() / 255 - 0.286) / 0.353
    assert batch.image.dtype == torch.uint8 and done.image.dtype == torch.float32
    torch.testing.assert_close(done.image.double(), expected, rtol=0, atol=1e-6)
    assert done.image.is_contiguous(memory_format=torch.channels_last)
    assert module.on_after_batch_transfer(done, 0) is done


def test_a_training_set_smaller_than_a_step_is_refused_unless_the_last_batch_is_kept():
    with pytest.raises(ValueError, match="600 .* do not fill one step of 700 .*drop_last"):
        few(batch_size=700).train_dataloader()
    assert len(few(batch_size=700, drop_last=False).train_dataloader()) == 1
