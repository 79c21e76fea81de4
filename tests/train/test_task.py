"""The task takes its sizes from the data, logs what it says, and works with other data modules."""

import json
import warnings
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
import yaml
from lightning.pytorch import LightningDataModule, Trainer
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from chaosgate.train.schedules import WarmupCosine, WeightsOnlyAdamW, warn_of_recipe
from chaosgate.train.task import ImageClassifier
from tests.conftest import REPOSITORY

QUICK = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
    "--trainer.enable_progress_bar=false",
    "--data.corruptions=null",
)
SMALL = {"channels": [8, 8, 16, 16]}


class Pairs(LightningDataModule):
    """Another author's data module: pairs (image, target) and Lightning's samplers."""

    num_classes = 4

    def loader(self, seed, count=18):
        generator = torch.Generator().manual_seed(seed)
        target = torch.randint(0, 4, (count,), generator=generator)
        image = torch.randn(count, 3, 32, 32, generator=generator) + target.view(-1, 1, 1, 1)
        return DataLoader(TensorDataset(image, target), batch_size=4)

    def train_dataloader(self):
        return self.loader(0)

    def val_dataloader(self):
        return self.loader(1)

    def test_dataloader(self):
        return self.loader(2, count=17)


def trainer(folder, **settings):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "num_sanity_val_steps": 0}
    return Trainer(**{**quiet, "max_epochs": 1, "default_root_dir": folder, **settings})


def write_folder(root, images, side):
    generator = torch.Generator().manual_seed(0)
    for k in range(3):
        (root / f"class{k}").mkdir(parents=True)
        for i in range(images):
            noise = torch.randint(0, 100, (side, side, 3), generator=generator, dtype=torch.uint8)
            noise[..., k] += 120
            Image.fromarray(noise.numpy()).save(root / f"class{k}" / f"{i}.png")
    return root


def test_sizes_come_from_the_data(command, configs, tmp_path):
    root = write_folder(tmp_path / "images", images=20, side=48)
    vit = ("--model.backbone=vit_tiny_patch16_224", "--model.backbone_args={depth: 2}")
    files = configs("base", "model/vit", "data/image_folder", "noise/none")
    options = (*files, *QUICK, *vit, f"--data.root={root}", "--data.image_size=32")
    options = (*options, "--data.batch_size=8", "--run_dir=run")
    status, _, err = command("fit", *options)
    assert status == 0, err
    path = Path("run/checkpoints/last.ckpt")
    known = torch.load(path, weights_only=True)["hyper_parameters"]
    assert (known["num_classes"], known["in_chans"]) == (3, 3)
    assert known["backbone_args"] == {"img_size": 32, "depth": 2}
    module = ImageClassifier.load_from_checkpoint(path, weights_only=True)
    assert module(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    assert command("test", *options)[0] == 0
    status, _, err = command("fit", *options, "--model.num_classes=5", "--run_dir=other")
    assert status == 1 and "the data have 3 classes" in err


def test_train_top1_is_the_share_of_right_predictions(tmp_path):
    torch.manual_seed(0)
    module = ImageClassifier("resnet10_small", 4, backbone_args=SMALL)
    run, right = trainer(tmp_path), []
    step = module.training_step

    def counted(batch, batch_idx):
        hook = module.model.register_forward_hook(
            lambda _, __, logits: right.extend((logits.argmax(1) == batch[1]).tolist())
        )
        with hook:
            return step(batch, batch_idx)

    module.training_step = counted
    run.fit(module, Pairs())
    assert run.callback_metrics["train/top1"].item() == pytest.approx(sum(right) / 18)
    assert len(right) == 18 and 0 < sum(right) < 18


@pytest.mark.ddp
def test_other_data_modules_work_on_two_processes_with_a_warning(tmp_path):
    class Write(ImageClassifier):
        def on_test_end(self):
            (tmp_path / f"{self.global_rank}.json").write_text(json.dumps(self.test_rows))

    torch.manual_seed(0)
    module = Write("resnet10_small", 4, backbone_args=SMALL)
    several = trainer(tmp_path, devices=2, strategy="ddp_fork")
    with pytest.warns(UserWarning, match="may count an image twice"):
        module.trainer = several
        module.setup("test")
    warnings.simplefilter("ignore")
    several.test(module, Pairs(), verbose=False)
    rows = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert rows[0] == rows[1] and rows[0][0]["n"] == 18  # 17 images, one of them twice


def test_recipe_that_does_not_train_gives_a_warning():
    for name, rate, times in (
        ("convnext_atto", 0.1, 1),
        ("convnext_atto", 0.001, 0),
        ("resnet18", 0.1, 0),
    ):
        network = timm.create_model(name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_recipe(network, name, torch.optim.SGD(network.parameters(), lr=rate))
        assert ["AdamW" in str(one.message) for one in caught] == [True] * times


def test_schedules_of_torch_step_per_epoch_and_ours_per_batch(tmp_path):
    def decay(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    for schedule, interval in ((decay, "epoch"), (WarmupCosine, "step")):
        module, run = ImageClassifier("resnet10_small", 4, lr_scheduler=schedule), trainer(tmp_path)
        run.fit(module, Pairs())
        assert run.lr_scheduler_configs[0].interval == interval


def test_swins_recipe_decays_weights_only():
    config = yaml.safe_load((REPOSITORY / "configs/model/swin_tiny.yaml").read_text())["model"]
    assert config["optimizer"]["class_path"].endswith("schedules.WeightsOnlyAdamW")
    small = {"img_size": 56, "embed_dim": 12, "depths": (1, 1), "num_heads": (1, 2)}
    build = partial(WeightsOnlyAdamW, **config["optimizer"]["init_args"])
    network = ImageClassifier(
        config["backbone"], 3, backbone_args=small, optimizer=build, lr_scheduler=None
    )
    groups = network.configure_optimizers().param_groups
    decay = {id(one): group["weight_decay"] for group in groups for one in group["params"]}
    for name, one in network.named_parameters():
        plain = one.ndim == 1 or "relative_position_bias_table" in name
        assert decay.pop(id(one)) == (0.0 if plain else 0.05), name
    assert not decay and {group["lr"] for group in groups} == {1e-3}
