"""Resuming, with real Trainers: the batches of an interrupted run and its continuation are those of
one run."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from chaosgate.data import ImageFolder
from tests.data.photos import write_classes
from tests.data.recorder import LIGHTNING_WARNINGS, FewImages, Recorder, trainer

pytestmark = LIGHTNING_WARNINGS
EPOCHS, STEPS = 3, 6  # steps per epoch


def data(workers: int = 0, **settings: object) -> FewImages:
    return FewImages(batch_size=100, num_workers=workers, corruptions=None, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    model = Recorder()
    trainer(tmp_path_factory.mktemp("whole"), max_epochs=EPOCHS).fit(model, data())
    assert len(model.trained) == EPOCHS * STEPS
    return model


def checkpoint(folder: Path, step: int | str = "*") -> Path:
    (path,) = folder.glob(f"*step={step}.ckpt")
    return path


END = {"save_on_train_epoch_end": True}
STOPS = {  # how the first run ends, when it saves, workers of the second
    "inside an epoch": ({"max_steps": 4}, {"every_n_train_steps": 4}, 0),
    "inside an epoch, workers": ({"max_steps": 4}, {"every_n_train_steps": 4}, 2),
    "after a batch of the next epoch": ({"max_steps": 7}, {"every_n_train_steps": 7}, 0),
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
def test_a_stopped_run_goes_on_with_the_next_batch(tmp_path: Path, whole: Recorder, stop: str):
    ends, saves, workers = STOPS[stop]
    first, second = Recorder(), Recorder()
    saver = ModelCheckpoint(tmp_path / "ckpt", **saves)
    settings = {"max_epochs": EPOCHS, **ends}
    trainer(tmp_path, callbacks=[saver], **settings).fit(first, data(workers))
    endless = settings["max_epochs"] == -1
    settings |= (
        {"max_steps": EPOCHS * STEPS} if endless else {"max_epochs": EPOCHS, "max_steps": -1}
    )
    path = checkpoint(tmp_path / "ckpt")
    trainer(tmp_path, **settings).fit(second, data(workers), ckpt_path=path, weights_only=True)
    assert first.trained + second.trained == whole.trained
    assert torch.equal(second.linear.weight, whole.linear.weight)


@pytest.mark.parametrize("step", [6, 8])
def test_a_batch_whose_step_failed_is_given_again(tmp_path: Path, whole: Recorder, step: int):
    first, second = Recorder(fail_at=step), Recorder()
    saver = OnExceptionCheckpoint(tmp_path)
    with pytest.raises(RuntimeError, match="the step failed"):
        trainer(tmp_path, max_epochs=EPOCHS, callbacks=[saver]).fit(first, data())
    path = tmp_path / "on_exception.ckpt"
    trainer(tmp_path, max_epochs=EPOCHS).fit(second, data(), ckpt_path=path, weights_only=True)
    assert first.trained + second.trained == whole.trained


def test_other_images_are_refused_inside_an_epoch_and_mentioned_between_epochs(tmp_path: Path):
    root = write_classes(tmp_path / "photos", 12)
    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=2, save_top_k=-1)

    def fit(epochs: int, seed: int = 0, step: int = 0) -> None:
        sizes = {"batch_size": 6, "num_workers": 0, "image_size": 8}
        path = checkpoint(tmp_path / "ckpt", step) if step else None
        run = trainer(tmp_path, max_epochs=epochs, callbacks=[] if step else [saver])
        photos = ImageFolder(str(root), seed=seed, **sizes)
        run.fit(Recorder(192, 2), photos, ckpt_path=path, weights_only=True if step else None)

    fit(2)
    with pytest.raises(ValueError, match="after batch 1 of epoch 1.*seed was 0, is 1.*same data"):
        fit(3, seed=1, step=4)
    fit(3, seed=1, step=6)
    listings = ImageFolder(str(root)).list_images("fit").values()
    first, second, *_ = [path for listing in listings for path in listing.paths]
    first.write_bytes(second.read_bytes() + b"\0\0")  # a training image of another size
    with pytest.raises(ValueError, match="after batch 1 of epoch 1.*files was"):
        fit(3, step=4)
    with pytest.warns(UserWarning, match="not those that the checkpoint was trained on: files was"):
        fit(3, step=6)
