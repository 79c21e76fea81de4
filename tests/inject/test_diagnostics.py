import pytest
import timm
import torch

import chaosgate.train.backbones  # noqa: F401
from chaosgate.inject import reestimate_bn

IMAGES = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_reestimated_statistics_are_those_of_the_data_without_noise():
    model = timm.create_model("resnet10_small").eval()
    stem = model.bn1
    stem.running_mean.fill_(5.0)
    count = reestimate_bn(model, IMAGES.split(16))
    with torch.no_grad():
        features = model.conv1(IMAGES)
    parts = features.split(16)
    mean = torch.stack([p.mean((0, 2, 3)) for p in parts]).mean(0)
    variance = torch.stack([p.var((0, 2, 3)) for p in parts]).mean(0)
    assert count == 4
    assert torch.allclose(stem.running_mean, mean, atol=1e-5)
    assert torch.allclose(stem.running_var, variance, rtol=1e-4)
    assert stem.momentum == 0.1 and not any(m.training for m in model.modules())


def test_nothing_to_estimate_is_an_error():
    with pytest.raises(ValueError, match="0 BatchNorms"):
        reestimate_bn(torch.nn.Conv2d(3, 3, 1), IMAGES.split(16))
    model = timm.create_model("resnet10_small")
    before = model.bn1.running_mean.clone()
    with pytest.raises(ValueError, match="no batches"):
        reestimate_bn(model, [])
    assert torch.equal(before, model.bn1.running_mean)
