"""The networks for small images: what they say about their stages is what comes out of them."""

import pytest
import torch

import chaosgate as cg
from chaosgate.train.backbones import create_backbone


@pytest.mark.parametrize("name", ["resnet10_small", "resnet18_small"])
@pytest.mark.parametrize(("last_stride", "sides"), [(2, [28, 14, 7, 4]), (1, [28, 14, 7, 7])])
def test_stages_have_the_sizes_that_they_report(name, last_stride, sides):
    widths = (8, 16, 24, 32)
    model = create_backbone(name, in_chans=1, channels=widths, last_stride=last_stride)
    seen = {}
    for stage, module in cg.resolve_stages(model).items():
        model.get_submodule(module).register_forward_hook(
            lambda _, __, out, stage=stage: seen.update({stage: out.shape})
        )
    model.eval()(torch.zeros(1, 1, 28, 28))
    assert list(seen) == ["L1", "L2", "L3", "L4"]
    assert [tuple(shape[1:]) for shape in seen.values()] == [
        (width, side, side) for width, side in zip(widths, sides, strict=True)
    ]
    reported = [-(-28 // entry["reduction"]) for entry in model.feature_info]
    assert reported == sides  # rounded up, as strides do
