"""The true grid of the features, or a refusal with the two readings; outputs and arguments of any
kind."""

from functools import partial

import pytest
import torch
from torch import nn

import chaosgate as cg
from chaosgate.inject.layout import logits_of as logits
from tests.inject.networks import Convolutions, Dense, Returning, build, gate, images, timm_vit


def trained_twice(model, x, kind, grid):
    with cg.attach(model.train(), gate(), "body") as handle:
        report = handle.check(x)[0]
        assert (report.layout, report.grid, report.channels) == (kind, grid, 64)
        first, second = model(x), model(x)
        first.sum().backward()
    assert not torch.equal(first, second) and handle.fired == 2


def conv1d():
    """4: features of a sequence are a line of 50 sites, not a square of 8 x 8."""
    trained_twice(Convolutions(1), torch.randn(3, 4, 50), "NCL", (50,))


def conv3d():
    """4: features of a volume are on three axes."""
    trained_twice(Convolutions(3), torch.randn(3, 4, 4, 6, 5), "NCDHW", (4, 6, 5))


def dynamic_image_size():
    """4: the true rows and columns of a ViT whose images change."""
    model, _ = timm_vit(dynamic_img_size=True)
    for shape, grid in (((32, 128), (2, 8)), ((64, 64), (4, 4)), ((96, 32), (6, 2))):
        with cg.attach(model.eval(), gate(), "blocks.1", check=False) as handle, torch.no_grad():
            with handle.forced(1, record=True) as maps:
                model(torch.randn(1, 3, *shape))
            assert tuple(maps[handle.sites[0].module][0].shape[2:]) == grid
            with handle.forced(1, record=True) as maps:
                model.forward_features(torch.randn(1, 3, *shape))
            assert tuple(maps[handle.sites[0].module][0].shape[2:]) == grid


def images_among_the_arguments():
    """4: the images are what the first convolution sees, not the first argument, and not its first
    axes."""

    class Around(nn.Module):
        def __init__(self, taken):
            super().__init__()
            self.vit, self.taken = timm_vit()[0], taken

        def forward(self, *given):
            return self.vit(self.taken(*given))

    x = images(64)
    for taken, given in (
        (lambda text, x: x, (torch.randn(4, 7, 32), x)),
        (lambda x: x.permute(0, 3, 1, 2), (x.permute(0, 2, 3, 1),)),
        (lambda x: x.flatten(0, 1), (x.view(2, 2, 3, 64, 64),)),  # frames of videos
        (lambda left, right: torch.cat([left, right]), (x[:2], x[2:])),
    ):
        model = Around(taken).train()
        with cg.attach(model, gate(), "vit.blocks.2", check=False) as handle:
            model(*given)
            assert handle.sites[0].layout.grid == (4, 4) and handle.fired == 1


def windows():
    """4: windows of a map are not maps: refused, unless they are said to be."""
    for model, x in (build("timm swin"), build("huggingface swin")):
        name = next(
            n
            for n, m in model.named_modules()
            if type(m).__name__ in ("WindowAttention", "SwinAttention")
        )
        with cg.attach(model.train(), gate(), name, check=False):
            with pytest.raises(ValueError, match="256 maps for 4 inputs, such as windows"):
                model(x)
    model, x = build("timm swin")
    with cg.attach(
        model.train(), gate(), "layers.0.blocks.0.attn", check=False, grid=(2, 2)
    ) as handle:
        model(x)
        assert handle.fired == 1


def unrolled_tokens():
    """4: tokens in an order of the network's own."""
    model, x = build("timm_hiera")
    with cg.attach(model.train(), gate(), "blocks.0", check=False):
        with pytest.raises(ValueError, match="is not known.*example=batch"):
            model(x)


def images_that_shrink():
    """A sample-wise gate on one site is the constant one: refused whenever it happens, not only in
    the first step."""
    model, x = build("timm resnet")
    with cg.attach(model.train(), gate(), "L4") as handle:
        model(x)
        with pytest.raises(ValueError, match="grid 1x1 is the constant one"):
            model(images(8))
        model(x)
        assert handle.fired == 2


def ambiguous_map():
    """4: two readings are refused by name, and either can be said."""

    class Twisted(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.mix, self.head = nn.Conv2d(3, 8, 4, 4), nn.Identity(), nn.Linear(8, 5)

        def forward(self, x):
            return self.head(self.mix(self.stem(x).permute(0, 2, 3, 1)).mean((1, 2)))

    model, x = Twisted().train(), images(32)
    with (
        cg.attach(model, gate(), "mix"),
        pytest.raises(ValueError, match="is not known.*'NCHW', 'NHWC'"),
    ):
        model(x)
    with cg.attach(model, gate(), "mix", layout="NHWC") as handle:
        report = handle.check(x)[0]
        assert report.layout == "NHWC" and report.logit_change > 1e-3
    with cg.attach(model, gate(), "mix") as handle:
        assert handle.check(images(32, width=64))[0].grid == (8, 16)  # the shape of the image tells


def unknown_tokens():
    """4: tokens of a network nobody knows need a grid; a class token in front of it is left
    alone."""
    body = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
    model, x = nn.Sequential(body, nn.Flatten(), nn.Linear(78, 4)).train(), torch.randn(2, 13, 6)
    with (
        cg.attach(model, gate(), "0"),
        pytest.raises(ValueError, match="is not known.*'NCL'.*grid="),
    ):
        model(x)
    with cg.attach(model, gate(), "0", grid=(3, 4)) as handle:
        model(x)
        assert (handle.sites[0].layout.grid, handle.sites[0].layout.prefix) == ((3, 4), 1)
    with (
        cg.attach(model, gate(), "0", grid=(5, 5)),
        pytest.raises(ValueError, match="does not fit.*(2, 13, 6)"),
    ):
        model(x)


def bad_layout():
    model, _ = build("timm resnet")
    with pytest.raises(ValueError, match="layout is one of NCL"):
        cg.attach(model, gate(), "L4", layout="CHW")
    with pytest.raises(ValueError, match="grid is for tokens"):
        cg.attach(model, gate(), "L4", grid=7)


def mvit():
    """11: tokens that come with their grid beside them."""
    model, x = build("timm_mvit")
    with cg.attach(model.eval(), gate(), "stages.1", check=False) as handle:
        with torch.no_grad(), handle.forced(1, record=True) as maps:
            model(x)
        assert tuple(maps[handle.sites[0].module][0].shape[2:]) == (28, 28)
        with pytest.raises(ValueError, match="normalization behind"):
            handle.check(x)
    with cg.attach(model.eval(), gate(), "L3") as handle:
        assert handle.check(x)[0].grid == (14, 14)


def channels_last():
    model, x = build("timm resnet")
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    with cg.attach(model.eval(), gate(), "L3", check=False) as handle, torch.no_grad():
        with handle.forced(1, record=True) as maps:
            model(x)
        assert maps[handle.sites[0].module][1].is_contiguous(memory_format=torch.channels_last)
        assert handle.sites[0].layout.kind == "NCHW"


def dense_monte_carlo():
    """10: the class axis of dense outputs is said, not guessed."""
    model, x = Dense().eval(), images(8)
    with cg.attach(model, gate(), "body") as handle, torch.no_grad():
        with handle.monte_carlo(3), pytest.raises(ValueError, match="class_axis"):
            model(x)
        parts = []
        for draw in (1, 2, 3):
            with handle.forced(draw):
                parts.append(model(x).softmax(1))
        with handle.monte_carlo(3, class_axis=1):
            mean = model(x)
        assert torch.allclose(mean.exp(), torch.stack(parts).mean(0), atol=1e-6)
        assert handle.uncertainty["entropy"].shape == (4, 8, 8)
        with handle.monte_carlo(3, class_axis=0), pytest.raises(ValueError, match="class_axis="):
            model(x)


def structured(kind):
    """11: dict, tuple and dataclass outputs: checked, gated, averaged."""
    torch.manual_seed(0)
    model, x = Returning(kind), images(32)
    with cg.attach(model.train(), gate(), "L4") as handle:
        assert handle.sites[0].module == "backbone.layer4"
        assert not torch.equal(logits(model(x)), logits(model(x)))
        with torch.no_grad(), handle.monte_carlo(2):
            averaged = model.eval()(x)
        assert type(averaged) is type(model(x))
        assert torch.allclose(logits(averaged).exp().sum(-1), torch.ones(4), atol=1e-5)


def second_argument():
    """11: the check calls the model as the loop does."""
    model, x = Returning("tensor", second=True).train(), images(32)
    with cg.attach(model, gate(), "L4") as handle:
        model(x, 2.0)
        model(x, scale=torch.full((4, 1), 2.0))
        assert handle.fired == 2


ROWS = [
    images_that_shrink,
    conv1d,
    conv3d,
    dynamic_image_size,
    images_among_the_arguments,
    windows,
    unrolled_tokens,
    ambiguous_map,
    unknown_tokens,
    bad_layout,
    mvit,
    channels_last,
    dense_monte_carlo,
    second_argument,
    partial(structured, "dict"),
    partial(structured, "tuple"),
    partial(structured, "dataclass"),
]
