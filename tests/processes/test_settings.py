"""Settings for several devices: the files in configs/trainer, and the learning rate of large steps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Trainer

from chaosgate.train.backbones import SyncBatchNorm, create_backbone
from chaosgate.train.schedules import WarmupCosine, effective_batch


def trainer(batch: Any, processes: int = 1, accumulated: int = 1) -> Trainer:
    data = SimpleNamespace(batch_size=batch)
    made = SimpleNamespace(
        datamodule=data, world_size=processes, accumulate_grad_batches=accumulated
    )
    return cast(Trainer, made)


def test_effective_batch_counts_processes_and_accumulated_batches():
    assert effective_batch(trainer(32)) == 32
    assert effective_batch(trainer(32, processes=8, accumulated=2)) == 512


def test_data_of_unknown_batch_cannot_scale_the_rate():
    with pytest.raises(
        ValueError, match="base_batch.*needs data with a batch_size.*base_batch to null"
    ):
        effective_batch(trainer(None))


def test_rate_is_linear_in_the_batch_in_every_group_and_through_the_schedule():
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.25}], lr=0.5
    )
    schedule = WarmupCosine(optimizer, total_steps=2, base_batch=256)
    schedule.follow(trainer(32, processes=8, accumulated=2))
    assert schedule.base_lrs == [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5]


def test_rate_in_training_is_the_scaled_one(command, configs, tmp_path):
    arguments = [
        *configs("base", "data/fashion_mnist", "noise/none"),
        "--run_dir=run",
        "--trainer.accelerator=cpu",
    ]
    arguments += [
        "--trainer.max_steps=1",
        "--trainer.limit_val_batches=1",
        "--data.init_args.batch_size=24",
    ]
    arguments += [
        "--trainer.accumulate_grad_batches=2",
        "--model.lr_scheduler.init_args.base_batch=32",
    ]
    arguments += [
        "--model.lr_scheduler.init_args.final=1",
        "--model.lr_scheduler.init_args.warmup=0",
    ]
    arguments += [
        "--model.backbone_args={channels: [8, 8, 8, 8]}",
        "--trainer.enable_progress_bar=false",
    ]
    assert command("fit", *arguments)[0] == 0
    path = next((tmp_path / "run" / "checkpoints").glob("*.ckpt"))
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.1 * 1.5)
    status, _, err = command("validate", *arguments, f"--ckpt_path={path}")
    assert status == 0, err


def test_bad_base_batch_is_refused(command, configs):
    bad = "--model.lr_scheduler.init_args.base_batch=0"
    status, _, err = command(
        "fit", *configs("base", "data/fashion_mnist", "noise/none"), "--run_dir=run", bad
    )
    assert status and "base_batch" in err


def test_file_for_several_devices_is_understood(command, configs):
    status, out, err = command(
        "fit", *configs("base", "data/fashion_mnist", "noise/gch", "trainer/ddp"), "--print_config"
    )
    assert status == 0, err
    assert "strategy: ddp" in out


@pytest.mark.parametrize("backbone", ["resnet10_small", "efficientnet_lite0"])
def test_synchronised_batch_norm_changes_neither_the_network_nor_its_checkpoint(backbone):
    """efficientnet_lite0 holds activations in its norms, which torch's own converter loses."""
    torch.manual_seed(0)
    network = create_backbone(backbone, pretrained=False, num_classes=10, in_chans=3).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before, weights = (
            network(images),
            {name: value.clone() for name, value in network.state_dict().items()},
        )
        converted = SyncBatchNorm().apply(network).eval()
        after = converted(images)
    assert any(isinstance(module, torch.nn.SyncBatchNorm) for module in converted.modules())
    assert not any(type(module) is torch.nn.BatchNorm2d for module in converted.modules())
    assert torch.equal(after, before)
    assert converted.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in converted.state_dict().items())


def test_synchronised_batch_norm_is_one_flag(command, configs):
    """As far as a machine without a GPU can see: the layers are there, and torch says that it wants one."""
    arguments = [
        *configs("base", "data/fashion_mnist", "noise/none"),
        "--run_dir=run",
        "--trainer.accelerator=cpu",
    ]
    status, _, err = command(
        "fit",
        *arguments,
        "--trainer.strategy=ddp",
        "--trainer.devices=1",
        "--trainer.sync_batchnorm=true",
    )
    assert status == 1 and "SyncBatchNorm layers only work with GPU modules" in err
