"""The true grid of the features, or a refusal; outputs and arguments of any kind."""

import pytest
import torch
from torch import nn

import chaosgate as cg
from chaosgate.inject.layout import logits_of as logits
from tests.inject.networks import (
    Convolutions,
    Dense,
    Returning,
    build,
    gate,
    gated,
    images,
    timm_vit,
)


def grid_of(handle, run):
    """The grid on which the first gate acts."""
    with handle.forced(1, record=True) as maps, torch.no_grad():
        run()
    return tuple(maps[handle.sites[0].module][0].shape[2:])


@pytest.mark.parametrize(
    ("axes", "shape", "kind"), [(1, (3, 4, 50), "NCL"), (3, (3, 4, 4, 6, 5), "NCDHW")]
)
def test_sequences_and_volumes(axes, shape, kind):
    model, x = Convolutions(axes).train(), torch.randn(shape)
    with cg.attach(model, gate(), "body") as handle:
        report = handle.check(x)[0]
        assert (report.layout, report.grid, report.channels) == (kind, shape[2:], 64)
        first, second = model(x), model(x)
        first.sum().backward()
    assert not torch.equal(first, second) and handle.fired == 2


def test_images_whose_size_changes():
    model, _ = timm_vit(dynamic_img_size=True)
    with cg.attach(model.eval(), gate(), "blocks.1", check=False) as handle:
        for shape, grid in (((32, 128), (2, 8)), ((64, 64), (4, 4)), ((96, 32), (6, 2))):
            x = torch.randn(1, 3, *shape)
            assert grid_of(handle, lambda: model(x)) == grid  # noqa: B023
            assert grid_of(handle, lambda: model.forward_features(x)) == grid  # noqa: B023


def test_images_that_shrink_to_one_site():
    with gated(check=True) as (model, x, handle):
        model(x)
        with pytest.raises(ValueError, match="grid 1x1 is the constant one"):
            model(images(8))
        model(x)
        assert handle.fired == 2


X = images(64)
AROUND = {  # what is taken of the arguments, and the arguments
    "text first": (lambda text, x: x, (torch.randn(4, 7, 32), X)),
    "channels last": (lambda x: x.permute(0, 3, 1, 2), (X.permute(0, 2, 3, 1),)),
    "frames of videos": (lambda x: x.flatten(0, 1), (X.view(2, 2, 3, 64, 64),)),
    "two views": (lambda left, right: torch.cat([left, right]), (X[:2], X[2:])),
}


@pytest.mark.parametrize("name", AROUND)
def test_the_images_are_what_the_first_convolution_sees(name):
    taken, given = AROUND[name]

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit, _ = timm_vit()

        def forward(self, *given):
            return self.vit(taken(*given))

    model = Around().train()
    with cg.attach(model, gate(), "vit.blocks.2", check=False) as handle:
        model(*given)
        assert handle.sites[0].layout.grid == (4, 4) and handle.fired == 1


@pytest.mark.parametrize("family", ["timm swin", "huggingface swin"])
def test_windows_are_not_maps(family):
    model, x = build(family)
    kinds = ("WindowAttention", "SwinAttention")
    name = next(n for n, m in model.named_modules() if type(m).__name__ in kinds)
    with cg.attach(model.train(), gate(), name, check=False):
        with pytest.raises(ValueError, match="256 maps for 4 inputs, such as windows"):
            model(x)
    with cg.attach(model.train(), gate(), name, check=False, grid=(2, 2)) as handle:
        if family == "timm swin":  # unless they are said to be
            model(x)
            assert handle.fired == 1


def test_tokens_in_an_order_of_the_network():
    with gated("timm_hiera", "blocks.0") as (model, x, _):
        with pytest.raises(ValueError, match="is not known.*example=batch"):
            model(x)


def test_a_map_with_two_readings():
    class Twisted(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.mix, self.head = nn.Conv2d(3, 8, 4, 4), nn.Identity(), nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.mix(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))

    model, x = Twisted().train(), images(32)
    with cg.attach(model, gate(), "mix") as handle:
        with pytest.raises(ValueError, match="is not known.*'NCHW', 'NHWC'"):
            model(x)
        assert handle.check(images(32, width=64))[0].grid == (8, 16)  # the shape of the image tells
    with cg.attach(model, gate(), "mix", layout="NHWC") as handle:
        report = handle.check(x)[0]
        assert report.layout == "NHWC" and report.logit_change > 1e-3


def test_tokens_of_an_unknown_network_need_a_grid():
    body = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
    model, x = nn.Sequential(body, nn.Flatten(), nn.Linear(78, 4)).train(), torch.randn(2, 13, 6)
    for grid, message in (
        (None, "is not known.*'NCL'.*grid="),
        ((5, 5), "does not fit.*(2, 13, 6)"),
    ):
        with cg.attach(model, gate(), "0", grid=grid), pytest.raises(ValueError, match=message):
            model(x)
    with cg.attach(model, gate(), "0", grid=(3, 4)) as handle:
        model(x)
        layout = handle.sites[0].layout
        assert (layout.grid, layout.prefix) == ((3, 4), 1)  # a class token


def test_tokens_with_their_grid_beside_them():
    with gated("timm_mvit", "stages.1", train=False) as (model, x, handle):
        assert grid_of(handle, lambda: model(x)) == (28, 28)
        with pytest.raises(ValueError, match="later normalization"):
            handle.check(x)


def test_channels_last_stays():
    model, x = (part.to(memory_format=torch.channels_last) for part in build("timm resnet"))
    with cg.attach(model.eval(), gate(), "L3", check=False) as handle, torch.no_grad():
        with handle.forced(1, record=True) as maps:
            model(x)
        assert maps[handle.sites[0].module][1].is_contiguous(memory_format=torch.channels_last)


def test_monte_carlo_of_dense_outputs_has_its_classes_on_axis_1():
    model, x = Dense().eval(), images(8)
    with cg.attach(model, gate(), "body") as handle, torch.no_grad():
        parts = []
        for draw in (1, 2, 3):
            with handle.forced(draw):
                parts.append(model(x).softmax(1))
        with handle.monte_carlo(3):
            mean = model(x)
        assert torch.allclose(mean.exp(), torch.stack(parts).mean(0), atol=1e-6)


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass"])
def test_structured_outputs_are_checked_and_gated(kind):
    model, x = Returning(kind), images(32)
    with cg.attach(model.train(), gate(), "L4") as handle:
        assert handle.sites[0].module == "backbone.layer4"
        assert not torch.equal(logits(model(x)), logits(model(x)))
        with torch.no_grad(), pytest.raises(ValueError, match="needs a model that returns logits"):
            with handle.monte_carlo(2):
                model.eval()(x)


def test_the_check_calls_the_model_as_the_loop_does():
    model, x = Returning("tensor", second=True).train(), images(32)
    with cg.attach(model, gate(), "L4") as handle:
        model(x, 2.0)
        model(x, scale=torch.full((4, 1), 2.0))
        assert handle.fired == 2
