"""Batches are a function of seed, epoch and index; a resumed run goes on with the next one."""

import json
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from chaosgate.data import ImageFolder
from chaosgate.data.samples import Progress
from tests.data.photos import write_classes
from tests.data.recorder import FewImages, Recorder, trainer

EPOCHS, STEPS = 3, 6  # steps per epoch


def data(workers=0, **settings):
    settings = {"batch_size": 100, "corruptions": None, **settings}
    return FewImages(num_workers=workers, **settings)


def photos(recipe):
    def make(root, workers=0, **settings):
        settings = {"batch_size": 7, "recipe": recipe, "interpolation": "bicubic", **settings}
        return ImageFolder(str(root), 32, num_workers=workers, **settings)

    return make


def images(make, root, *args, epoch=2, skip=0, **settings):
    """The training images of an epoch by their indices, in their order."""
    module = make(*[root] * (make is not data), *args, **settings)
    module.setup("fit")
    loader = module.train_dataloader()
    loader.progress = lambda: Progress(epoch, skip)
    return {
        int(index): image.numpy().tobytes()
        for batch in loader
        for image, index in zip(batch.image, batch.index, strict=True)
    }


@pytest.mark.parametrize("make", [data, photos("standard"), photos("full")])
def test_an_augmented_image_is_a_function_of_seed_epoch_and_index(make, flat):
    def draws():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    reference = images(make, flat)
    workers, resumed = images(make, flat, 2), images(make, flat, skip=3)
    assert list(workers.items()) == list(reference.items())
    assert list(resumed.items()) == list(reference.items())[len(reference) // 2 :]
    assert images(make, flat, batch_size=6).items() == reference.items()
    assert draws() == expected  # nothing is drawn from the global streams
    for other in ({"epoch": 1}, {"seed": 1}):
        changed = images(make, flat, batch_size=6, **other)
        assert sum(changed[i] != reference[i] for i in reference) > 0.9 * len(reference)


def test_images_are_normalized_where_they_are_and_only_once():
    module = data(channels_last=True)
    module.setup("test")
    batch = next(iter(module.test_dataloader()))
    done = module.on_after_batch_transfer(batch, 0)
    expected = (batch.image.double() / 255 - 0.286) / 0.353
    assert batch.image.dtype == torch.uint8 and done.image.dtype == torch.float32
    torch.testing.assert_close(done.image.double(), expected, rtol=0, atol=1e-6)
    assert done.image.is_contiguous(memory_format=torch.channels_last)
    assert module.on_after_batch_transfer(done, 0) is done


def test_a_training_set_smaller_than_a_step_is_refused_unless_the_last_batch_is_kept():
    with pytest.raises(ValueError, match="600 .* do not fill one step of 700 .*drop_last"):
        images(data, None, batch_size=700)
    assert len(images(data, None, batch_size=700, drop_last=False)) == 600


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    model = Recorder()
    trainer(tmp_path_factory.mktemp("whole"), max_epochs=EPOCHS).fit(model, data())
    assert len(model.trained) == EPOCHS * STEPS
    return model


def checkpoint(folder, step="*"):
    (path,) = folder.glob(f"*step={step}.ckpt")
    return path


END = {"save_on_train_epoch_end": True}
STOPS = {  # how the first run ends, when it saves (None: at an error), workers of the second
    "inside an epoch, workers": ({"max_steps": 4}, {"every_n_train_steps": 4}, 2),
    "after a batch of the next epoch": ({"max_steps": 7}, {"every_n_train_steps": 7}, 0),
    "a step failed: its batch is given again": ({}, None, 0),
    # a stock loader's workers would have fetched batches of epoch 0 before the epoch is known
    "after an epoch, workers": ({"max_epochs": 1}, END, 2),
    # Lightning 2.6 tells the sampler one epoch too many here
    "measured in steps": ({"max_epochs": -1, "max_steps": 6}, END, 0),
    "at a validation inside an epoch": (
        {"max_steps": 8, "val_check_interval": 2},
        {"save_on_train_epoch_end": False},
        0,
    ),
}


@pytest.mark.parametrize("stop", STOPS)
def test_a_stopped_run_goes_on_with_the_next_batch(tmp_path, whole, stop):
    ends, saves, workers = STOPS[stop]
    first, second = Recorder(fail_at=None if saves else 8), Recorder()
    folder, settings = tmp_path / "ckpt", {"max_epochs": EPOCHS, **ends}
    saver = ModelCheckpoint(folder, **saves) if saves else OnExceptionCheckpoint(folder)
    failing = nullcontext() if saves else pytest.raises(RuntimeError, match="the step failed")
    with failing:
        trainer(tmp_path, callbacks=[saver], **settings).fit(first, data(workers))
    steps = stop == "measured in steps"
    settings |= {"max_steps": 18} if steps else {"max_epochs": EPOCHS, "max_steps": -1}
    (path,) = folder.iterdir()
    trainer(tmp_path, **settings).fit(second, data(workers), ckpt_path=path, weights_only=True)
    assert first.trained + second.trained == whole.trained
    assert torch.equal(second.linear.weight, whole.linear.weight)


def test_other_images_are_refused_inside_an_epoch_and_mentioned_between_epochs(tmp_path):
    root = write_classes(tmp_path / "photos", 12)
    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=2, save_top_k=-1)

    def fit(epochs, seed=0, step=0):
        path = checkpoint(tmp_path / "ckpt", step) if step else None
        run = trainer(tmp_path, max_epochs=epochs, callbacks=[] if step else [saver])
        photos = ImageFolder(str(root), 8, batch_size=6, num_workers=0, seed=seed)
        run.fit(Recorder(192, 2), photos, ckpt_path=path, weights_only=True if step else None)

    fit(2)
    with pytest.raises(ValueError, match="after batch 1 of epoch 1.*seed was 0, is 1.*same data"):
        fit(3, seed=1, step=4)
    first, second = ImageFolder(str(root)).list_images("fit")["train"].paths[:2]
    first.write_bytes(second.read_bytes() + b"\0\0")  # a training image of another size
    with pytest.raises(ValueError, match="after batch 1 of epoch 1.*files was"):
        fit(3, step=4)
    with pytest.warns(UserWarning, match="not those that the checkpoint was trained on: files was"):
        fit(3, step=6)


class Writer(Recorder):
    """Leaves what its process saw in a file, since processes share no memory."""

    def on_fit_end(self):
        path = f"{self.trainer.default_root_dir}/{self.global_rank}.json"
        with open(path, "w") as file:
            json.dump([self.trained, self.evaluated], file)


@pytest.mark.ddp
def test_two_processes_share_each_step_count_validation_once_and_resume_inside_an_epoch(
    tmp_path, whole
):
    def run(name, path=None, **more):
        (tmp_path / name).mkdir()
        processes = {"devices": 2, "strategy": "ddp_fork", "num_sanity_val_steps": 0}
        fit = trainer(tmp_path / name, max_epochs=EPOCHS, **processes, **more)
        fit.fit(Writer(), data(batch_size=50, eval_batch_size=17), ckpt_path=path)
        return [json.loads((tmp_path / name / f"{rank}.json").read_text()) for rank in (0, 1)]

    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=4)
    first = run("first", max_steps=4, callbacks=[saver])
    second = run("second", checkpoint(tmp_path / "ckpt"))
    counted = [index for _, evaluated in second for _, index in evaluated if index != -1]
    assert sorted(counted) == sorted([*range(101)] * EPOCHS)
    a, b = (one[0] + two[0] for one, two in zip(first, second, strict=True))
    together = [set(i) | set(j) for (i, _), (j, _) in zip(a, b, strict=True)]
    assert together == [set(indices) for indices, _ in whole.trained]
