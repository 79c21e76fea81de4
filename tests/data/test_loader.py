"""Resuming, with real Trainers: the batches of an interrupted run and its continuation are those of
one run."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from chaosgate.data import ImageFolder
from tests.data.photos import write_photo
from tests.data.recorder import LIGHTNING_WARNINGS, FewImages, Recorder, trainer

pytestmark = LIGHTNING_WARNINGS
EPOCHS = 3
STEPS = 6  # per epoch


def data(workers: int = 0, **settings: object) -> FewImages:
    return FewImages(batch_size=100, num_workers=workers, corruptions=None, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    model = Recorder()
    trainer(tmp_path_factory.mktemp("whole"), max_epochs=EPOCHS).fit(model, data())
    assert len(model.trained) == EPOCHS * STEPS
    return model


def resume(path: Path, tmp_path: Path, workers: int, **settings: object) -> Recorder:
    model = Recorder()
    settings = {"max_epochs": EPOCHS, **settings}
    trainer(tmp_path, **settings).fit(model, data(workers), ckpt_path=path, weights_only=True)
    return model


def checkpoint(folder: Path) -> Path:
    (path,) = folder.glob("*.ckpt")
    return path


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "stop", [4, 6, 7]
)  # inside an epoch, at the end of one, after one batch of the next
def test_a_run_stopped_at_a_step_goes_on_with_the_next_batch(
    tmp_path: Path, whole: Recorder, stop: int, workers: int
):
    first = Recorder()
    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=stop)
    trainer(tmp_path, max_epochs=EPOCHS, max_steps=stop, callbacks=[saver]).fit(
        first, data(workers)
    )
    second = resume(checkpoint(tmp_path / "ckpt"), tmp_path, workers)
    assert first.trained + second.trained == whole.trained
    assert torch.equal(second.linear.weight, whole.linear.weight)


def test_a_checkpoint_at_the_end_of_an_epoch_leads_to_the_next_epoch(
    tmp_path: Path, whole: Recorder
):
    # two workers: with a stock loader they would have fetched batches of epoch 0 before the epoch
    # is known
    saver = ModelCheckpoint(tmp_path / "ckpt", save_on_train_epoch_end=True)
    trainer(tmp_path, max_epochs=1, callbacks=[saver]).fit(Recorder(), data())
    second = resume(checkpoint(tmp_path / "ckpt"), tmp_path, workers=2)
    assert second.trained == whole.trained[STEPS:]


def test_so_it_does_where_the_run_is_measured_in_steps(tmp_path: Path, whole: Recorder):
    # Lightning 2.6 tells the sampler one epoch too many here
    saver = ModelCheckpoint(tmp_path / "ckpt", save_on_train_epoch_end=True)
    trainer(tmp_path, max_epochs=-1, max_steps=STEPS, callbacks=[saver]).fit(Recorder(), data())
    second = resume(
        checkpoint(tmp_path / "ckpt"), tmp_path, workers=0, max_epochs=-1, max_steps=EPOCHS * STEPS
    )
    assert second.trained == whole.trained[STEPS:]


@pytest.mark.parametrize("step", [6, 8])
def test_a_batch_whose_step_failed_is_handed_out_again(tmp_path: Path, whole: Recorder, step: int):
    first = Recorder(fail_at=step)
    run = trainer(tmp_path, max_epochs=EPOCHS, callbacks=[OnExceptionCheckpoint(tmp_path / "ckpt")])
    with pytest.raises(RuntimeError, match="the step failed"):
        run.fit(first, data())
    second = resume(checkpoint(tmp_path / "ckpt"), tmp_path, workers=0)
    assert first.trained + second.trained == whole.trained


def test_a_checkpoint_of_a_validation_inside_an_epoch_resumes_there(
    tmp_path: Path, whole: Recorder
):
    first = Recorder()
    saver = ModelCheckpoint(tmp_path / "ckpt", save_on_train_epoch_end=False)
    settings = {"val_check_interval": 2}
    trainer(tmp_path, max_epochs=EPOCHS, max_steps=8, callbacks=[saver], **settings).fit(
        first, data()
    )
    second = resume(checkpoint(tmp_path / "ckpt"), tmp_path, workers=0, **settings)
    assert first.trained + second.trained == whole.trained


def test_other_data_settings_are_refused_inside_an_epoch_and_accepted_between_epochs(
    tmp_path: Path,
):
    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=4, save_top_k=-1)
    trainer(tmp_path, max_epochs=2, max_steps=12, callbacks=[saver]).fit(Recorder(), data())
    inside, end = (next((tmp_path / "ckpt").glob(f"*step={step}.ckpt")) for step in (8, 12))
    other = {"ckpt_path": inside, "weights_only": True}
    with pytest.raises(
        ValueError, match="after batch 2 of epoch 1.*seed was 0, is 1.*same data settings"
    ):
        trainer(tmp_path, max_epochs=EPOCHS).fit(Recorder(), data(seed=1), **other)
    trainer(tmp_path, max_epochs=EPOCHS).fit(
        Recorder(), data(seed=1), **{**other, "ckpt_path": end}
    )


def test_overfitting_a_few_batches_still_works(tmp_path: Path):
    model = Recorder()
    with pytest.warns(UserWarning, match="requested to overfit"):
        trainer(tmp_path, max_epochs=2, overfit_batches=2).fit(model, data())
    assert [indices for indices, _ in model.trained[:2]] == [
        indices for indices, _ in model.trained[2:]
    ]


def test_a_resume_says_that_the_files_have_changed(tmp_path: Path):
    for name in ("ant", "bee"):
        for number in range(12):
            write_photo(tmp_path / "photos" / name / f"{number}.jpg", number)

    def photos() -> ImageFolder:
        sizes = {"batch_size": 6, "num_workers": 0, "image_size": 8}
        return ImageFolder(str(tmp_path / "photos"), **sizes)

    saver = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=2, save_top_k=-1)
    trainer(tmp_path, max_epochs=2, callbacks=[saver]).fit(Recorder(192, 2), photos())
    inside, end = (next((tmp_path / "ckpt").glob(f"*step={step}.ckpt")) for step in (4, 6))
    images = [path for listing in photos().list_images("fit").values() for path in listing.paths]
    images[0].write_bytes(images[1].read_bytes() + b"\0\0")  # a training image of another size

    def resume(path: Path) -> None:
        fit = trainer(tmp_path, max_epochs=3)
        fit.fit(Recorder(192, 2), photos(), ckpt_path=path, weights_only=True)

    with pytest.raises(ValueError, match="after batch 1 of epoch 1.*files was"):
        resume(inside)
    with pytest.warns(UserWarning, match="not those that the checkpoint was trained on: files was"):
        resume(end)
