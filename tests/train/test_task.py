"""The task agrees with its data, and warns of recipes that do not train."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from lightning.pytorch import Trainer
from PIL import Image

import chaosgate as cg
from chaosgate.run.identity import training_hash
from chaosgate.train.schedules import warn_of_recipe
from chaosgate.train.task import ImageClassifier

QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--data.corruptions=null",
)


def write_folder(root: Path, classes: int = 3, images: int = 20, side: int = 48) -> Path:
    generator = torch.Generator().manual_seed(0)
    for k in range(classes):
        (root / f"class{k}").mkdir(parents=True)
        for i in range(images):
            noise = torch.randint(0, 100, (side, side, 3), generator=generator, dtype=torch.uint8)
            noise[..., k % 3] += 120
            Image.fromarray(noise.numpy()).save(root / f"class{k}" / f"{i}.png")
    return root


def test_classes_channels_and_size_come_from_the_data(command: Any, configs: Any, tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images")
    vit = ("--model.backbone=vit_tiny_patch16_224", "--model.backbone_args={depth: 4}", "--data.image_size=32")
    files = configs("base", "model/vit", "data/image_folder", "noise/none")
    options = (*files, *QUICK, *vit, f"--data.root={root}", "--data.batch_size=8", "--run_dir=run")
    status, _, err = command("fit", *options)
    assert status == 0, err
    known = torch.load("run/checkpoints/last.ckpt", weights_only=True)["hyper_parameters"]
    assert (known["num_classes"], known["in_chans"], known["image_size"]) == (3, 3, 32)
    stored = yaml.safe_load(Path("run/config.yaml").read_text())
    assert stored["model"]["num_classes"] is None  # written as it was asked, so that the name of the run is the same
    status, _, err = command("test", *options)
    assert status == 0, err
    status, _, err = command("fit", *options, "--resume")
    assert status == 0, err
    status, _, err = command("fit", *options, "--model.num_classes=5", "--run_dir=other")
    assert status == 1 and "the data have num_classes=3, the model num_classes=5" in err


def test_grey_images_have_one_channel_and_nobody_need_say_so(command: Any, configs: Any) -> None:
    files = configs("base", "data/fashion_mnist", "noise/none")
    unsaid = ("--model.in_chans=null", "--model.num_classes=null", "--model.backbone_args={channels: [8, 8, 16, 16]}")
    status, _, err = command("fit", *files, *QUICK, *unsaid, "--run_dir=run")
    assert status == 0, err
    known = torch.load("run/checkpoints/last.ckpt", weights_only=True)["hyper_parameters"]
    assert (known["num_classes"], known["in_chans"]) == (10, 1)


def test_what_is_given_is_part_of_the_run_and_what_is_not_is_not() -> None:
    asked = {"model": {"backbone": "resnet18", "num_classes": None, "image_size": None}}
    assert training_hash(asked) == training_hash({"model": {"backbone": "resnet18"}})
    assert training_hash(asked) != training_hash({"model": {"backbone": "resnet18", "num_classes": 3}})


def test_in_python_the_defaults_are_those_of_imagenet() -> None:
    module = ImageClassifier("resnet18")
    assert (module.hparams["num_classes"], module.hparams["in_chans"]) == (1000, 3)


@pytest.mark.parametrize(
    ("network", "optimizer", "rate", "warned"),
    [
        ("convnext_atto", torch.optim.SGD, 0.1, True),
        ("vit_tiny_patch16_224", torch.optim.SGD, 0.1, True),
        ("convnext_atto", torch.optim.SGD, 0.001, False),
        ("convnext_atto", torch.optim.AdamW, 0.1, False),
        ("resnet18", torch.optim.SGD, 0.1, False),
    ],
)
def test_recipe_that_does_not_train_is_warned_of(network: str, optimizer: Any, rate: float, warned: bool) -> None:
    model = timm.create_model(network)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_recipe(model, network, optimizer(model.parameters(), lr=rate))
    assert [network in str(one.message) and "AdamW" in str(one.message) for one in caught] == [True] * warned


def test_training_warns_of_such_a_recipe() -> None:
    module = ImageClassifier("convnext_atto", 4, lr_scheduler=None)  # SGD 0.1 is the default
    with pytest.warns(UserWarning, match="convnext_atto.*AdamW"):
        module.configure_optimizers()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["convnext", "vit"])
def test_shipped_recipe_trains_what_sgd_does_not(recipe: str, command: Any, configs: Any, tmp_path: Path) -> None:
    """On four classes that a colour tells apart, where SGD 0.1 leaves the loss at ln 4."""
    root = write_folder(tmp_path / "images", classes=3, images=40, side=32)
    small = {"convnext": "{depths: [1, 1, 1, 1], dims: [16, 32, 64, 64]}", "vit": "{depth: 4, patch_size: 8}"}[recipe]
    backbone = {"convnext": "convnext_atto", "vit": "vit_tiny_patch16_224"}[recipe]
    options = (
        *configs("base", f"model/{recipe}", "data/image_folder", "noise/none"),
        *QUICK[3:],
        f"--model.backbone={backbone}",
        f"--model.backbone_args={small}",
        f"--data.root={root}",
        "--data.image_size=32",
        "--data.batch_size=16",
        "--trainer.max_epochs=8",
        "--run_dir=run",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*LayerNorm.*")
        status, _, err = command("fit", *options)
    assert status == 0, err
    last = yaml.safe_load(Path("run/curves.jsonl").read_text().splitlines()[-1])
    assert last["val/nll"] < 0.6  # ln 3 = 1.10 for guessing


class Few(cg.FashionMNIST):
    """41 test images of ten classes."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.test_splits = [type(split)(split.images[:41], split.targets[:41]) for split in self.test_splits]


def test_images_of_no_class_have_a_confidence_and_nothing_else(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = ImageClassifier("resnet10_small", num_classes=3, in_chans=1, backbone_args={"channels": [8, 8, 16, 16]})
    data = Few(corruptions=["pixelate"], severities=[1], eval_batch_size=20)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(**options, enable_checkpointing=False, use_distributed_sampler=False, default_root_dir=tmp_path)
    with pytest.raises(ValueError, match="the data have num_classes=10, the model num_classes=3"):
        trainer.test(network, data, verbose=False)
    network.ood = True
    trainer.test(network, data, verbose=False)
    clean, pixelate = network.test_rows
    assert set(clean) == {"ood", "corruption", "severity", "n", "confidence"} and clean["ood"] is True
    assert (clean["corruption"], pixelate["corruption"], clean["n"]) == ("ood", "ood pixelate", 41)
    images = data.normalise(torch.cat([batch.image for batch in data.predict_dataloader()]))
    with torch.no_grad():
        confidence = network.eval()(images).double().softmax(1).amax(1).mean()
    assert clean["confidence"] == pytest.approx(float(confidence), abs=1e-6)
