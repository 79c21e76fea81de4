"""The networks for small images: what they say about their stages is what comes out of them."""

import pytest
import timm
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
    reported = [
        -(-28 // entry["reduction"]) for entry in model.feature_info
    ]  # rounded up, as strides do
    assert reported == sides


def test_another_stride_changes_no_weight():
    torch.manual_seed(0)
    coarse = create_backbone("resnet10_small")
    torch.manual_seed(0)
    fine = create_backbone("resnet10_small", last_stride=1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(coarse.state_dict().values(), fine.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("arguments", [{"last_stride": 3}, {"output_stride": 8}])
def test_other_strides_raise_an_error(arguments):
    with pytest.raises(ValueError, match="last_stride is 2, or 1"):
        create_backbone("resnet10_small", **arguments)


def test_four_stages_are_told_apart_by_their_order():
    dilated = timm.create_model("convnext_atto", output_stride=16)
    assert [entry["reduction"] for entry in dilated.feature_info] == [4, 8, 16, 16]
    assert cg.resolve_stages(dilated)["L4"] == "stages.3"
