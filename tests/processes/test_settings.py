"""Settings for several devices: the files in configs/trainer, and the learning rate of large
steps."""

import copy
from types import SimpleNamespace

import pytest
import torch

from chaosgate.train.backbones import SyncBatchNorm, create_backbone
from chaosgate.train.schedules import WarmupCosine


def trainer(batch, processes=1, accumulated=1):
    about = {"world_size": processes, "accumulate_grad_batches": accumulated}
    return SimpleNamespace(datamodule=SimpleNamespace(batch_size=batch), **about)


def test_rate_is_linear_in_the_batch_in_every_group_and_through_the_schedule():
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.25}], lr=0.5
    )
    schedule = WarmupCosine(optimizer, total_steps=2, base_batch=256)
    schedule.follow(trainer(32, processes=8, accumulated=2))
    assert schedule.base_lrs == [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5]
    with pytest.raises(ValueError, match="base_batch needs data with a batch_size"):
        schedule.follow(trainer(None))


@pytest.mark.parametrize("backbone", ["resnet10_small", "efficientnet_lite0"])
def test_synchronised_batch_norm_changes_neither_the_network_nor_its_checkpoint(backbone):
    """efficientnet_lite0 holds activations in its norms, which torch's own converter loses."""
    torch.manual_seed(0)
    network = create_backbone(backbone, pretrained=False, num_classes=10, in_chans=3).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before, weights = network(images), copy.deepcopy(network.state_dict())
        converted = SyncBatchNorm().apply(network).eval()
        after = converted(images)
    assert any(isinstance(module, torch.nn.SyncBatchNorm) for module in converted.modules())
    assert not any(type(module) is torch.nn.BatchNorm2d for module in converted.modules())
    assert torch.equal(after, before)
    assert converted.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in converted.state_dict().items())
