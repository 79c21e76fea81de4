"""``audit``: constructed mistakes get their verdict, healthy models raise no alarm."""

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import chaosgate as cg
from chaosgate.inject.sources import audit
from tests.inject.networks import build, gate, huggingface, images


def net(noise, drop=None, width=8, norm=None, before=None):
    """conv, ``noise(self, h)``, conv, linear; ``drop`` is a module that the noise may use."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 3)
            self.head, self.drop, self.norm = nn.Linear(width, 5), drop, norm
            self.generator, self.mask = torch.Generator(), None

        def forward(self, x):
            h = noise(self, self.stem(x).relu())
            h = h if self.norm is None else self.norm(h)
            return self.head(self.body(h).relu().mean((2, 3)))

    torch.manual_seed(0)
    return Net().train()


def hooked(function, target="stem"):
    model = net(lambda self, h: h)
    model.get_submodule(target).register_forward_hook(function)
    return model


class Frozen(nn.Dropout):
    """Stays in evaluation mode."""

    def train(self, mode=True):
        return super().train(False)


class Loud(nn.Dropout):
    """Stays in training mode."""

    def train(self, mode=True):
        return super().train(True)


class Rate(nn.Module):
    """Drops with another rate than the requested one."""

    def __init__(self, p, real):
        super().__init__()
        self.drop_prob, self.real = p, real

    def forward(self, x):
        return F.dropout(x, self.real, self.training)


class DropBlock(nn.Module):
    """The published rate of seeds, whatever the size of the map."""

    def __init__(self, drop_prob, block_size):
        super().__init__()
        self.drop_prob, self.block_size = drop_prob, block_size

    def forward(self, x):
        if not self.training:
            return x
        seeds = (torch.rand(len(x), 1, *x.shape[2:]) < self.drop_prob).to(x)
        return x * (1 - F.max_pool2d(seeds, self.block_size, 1, self.block_size // 2))


def own_generator(self, h):
    self.generator.manual_seed(1)
    return h * torch.rand(h.shape, generator=self.generator)


def reseeded(self, h):
    torch.manual_seed(0)
    return F.dropout(h, 0.3, self.training)


def forgotten(self, h):
    self.drop(h)
    return h


def discarded(module, args, output):
    F.dropout(output, 0.3, module.training)


def added_to_copy(self, h):
    h.clone().add_(torch.randn_like(h))
    return h


def scaled(size):
    """One random factor for each place of this many axes."""
    return lambda self, h: h * (1 + torch.rand(len(h), 1, *(h.shape[2:] if size else (1, 1))))


class TokenNorm(nn.Module):
    def forward(self, h):
        return h / h.norm(dim=1, keepdim=True).clamp_min(1e-6)


class Centred(nn.Module):
    def forward(self, h):
        return h - h.mean(1, keepdim=True)


def applied(layer):
    return net(lambda self, h: self.drop(h), layer)


def idle(layer):
    """A model with a layer that it never calls."""
    return net(lambda self, h: h, layer)


def switched_off():
    model = applied(nn.Dropout(0.2))
    model.drop.eval()
    return model


def path(rate):
    return timm.layers.DropPath(rate)


MISTAKES = {  # by verdict: models, and what is wrong with their noise
    "never draws": {
        "rate of zero": lambda: applied(nn.Dropout(0.0)),
        "drop path of rate zero": lambda: applied(path(0.0)),
        "layer never called": lambda: idle(nn.Dropout(0.2)),
        "2d layer never called": lambda: idle(nn.Dropout2d(0.2)),
        "drop path never called": lambda: idle(path(0.2)),
        "rrelu never called": lambda: idle(nn.RReLU()),
        "gate as layer never called": lambda: idle(gate()),
        "layer in evaluation mode": switched_off,
        "layer that stays in evaluation": lambda: applied(Frozen(0.2)),
    },
    "drawn but constant": {
        "model reseeds torch": lambda: net(reseeded),
        "generator reseeded": lambda: net(own_generator),
    },
    "result unused": {
        "result of a layer": lambda: net(forgotten, nn.Dropout(0.2)),
        "result of a 2d layer": lambda: net(forgotten, nn.Dropout2d(0.2)),
        "result of drop path": lambda: net(forgotten, path(0.2)),
        "result of a gate": lambda: net(forgotten, gate()),
        "hook without return": lambda: hooked(discarded),
        "multiplied by zero": lambda: net(lambda self, h: h + 0 * torch.randn_like(h)),
        "added to a copy": lambda: net(added_to_copy),
    },
    "removed by a normalization": {
        "token scale before a token norm": lambda: net(scaled(1), norm=TokenNorm()),
        "sample scale before a group norm": lambda: net(
            scaled(0), norm=nn.GroupNorm(1, 8, eps=1e-12)
        ),
        "shift before centring": lambda: net(
            lambda self, h: h + torch.randn(len(h), 1, *h.shape[2:]), norm=Centred()
        ),
    },
    "active in evaluation": {
        "functional dropout": lambda: net(lambda self, h: F.dropout(h, 0.2)),
        "alpha dropout": lambda: net(lambda self, h: F.alpha_dropout(h, 0.2, True)),
        "layer that stays in training": lambda: applied(Loud(0.2)),
        "noise without a switch": lambda: net(lambda self, h: h + 0.1 * torch.randn_like(h)),
        "rrelu": lambda: net(lambda self, h: F.rrelu(h - 1, training=True)),
        "gaussian hook": lambda: hooked(lambda m, a, h: h + torch.randn_like(h)),
        "numpy noise": lambda: net(lambda self, h: h * float(np.random.rand() + 1)),
    },
    "rate differs from the request": {
        "keep probability as rate": lambda: applied(Rate(0.1, 0.9)),
        "half the rate": lambda: applied(Rate(0.4, 0.2)),
        "dropblock on a small map": lambda: applied(DropBlock(0.1, 7)),
        "dropblock of block 5": lambda: applied(DropBlock(0.1, 5)),
    },
}
LOST = "removed by a normalization"


@pytest.mark.parametrize(
    ("verdict", "name"),
    [(verdict, name) for verdict, models in MISTAKES.items() for name in models],
)
def test_a_mistake_gets_its_verdict(verdict, name):
    model, x = MISTAKES[verdict][name](), images(12, batch=16)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    found = audit(model, x)
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert verdict in [source.verdict for source in found.sources], str(found)
    with pytest.raises(AssertionError, match="sources of noise"):
        found.require(training="acts", evaluation="silent")


def test_a_constant_is_not_noise():
    found = audit(net(lambda self, h: h + self.drop(h), nn.Dropout(1.0)), images(12))
    assert not any(source.draws and source.verdict == "acts" for source in found.sources)


def test_an_attached_gate_is_a_source():
    model, x = build("timm swin")
    torch.nn.init.normal_(model.patch_embed.proj.weight, std=10.0)
    for stage, verdict in (("L3", "acts"), ("layers.3", LOST)):
        with cg.attach(model, gate(), stage, check=False):
            (row,) = (s for s in audit(model, x).sources if s.operator == "attached gate")
        assert row.verdict == verdict and row.energy > 0.1 and row.change > 0


def test_the_table_in_three_forms():
    found = audit(
        nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)), torch.ones(8, 4)
    )
    assert found.require(training="acts", evaluation="silent") is found
    frame = found.to_frame()
    assert list(frame.verdict) == ["acts"] and frame.realized[0] == pytest.approx(0.5, abs=0.1)
    assert "Dropout" in str(found) and "<table" in found._repr_html_()


def test_the_command(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    body = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout({}), nn.Flatten(), nn.Linear(800, 2))"
    for name, rate in (("on", 0.3), ("off", 0.0)):
        code = f"from torch import nn\n\ndef build():\n    return {body.format(rate)}\n"
        (tmp_path / f"mine_{name}.py").write_text(code)
    sized = ("--image_size", "12", "--require")
    status, out, err = command("audit", "mine_on:build", *sized)
    assert status == 0 and "acts" in out, err
    status, _, err = command("audit", "mine_off:build", *sized)
    assert status == 1 and "not all noise acts" in err


TIMM = {
    "resnet50": {"drop_rate": 0.1, "drop_path_rate": 0.1},
    "vit_tiny_patch16_224": {"img_size": 64, "drop_path_rate": 0.1, "attn_drop_rate": 0.1},
    "deit3_small_patch16_224": {"img_size": 64, "drop_path_rate": 0.1},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 2, "drop_path_rate": 0.1},
    "convnext_atto": {"drop_path_rate": 0.1},
    "efficientnet_b0": {"drop_rate": 0.2},  # its blocks without a shortcut never call drop path
    "mobilenetv3_small_100": {"drop_rate": 0.2},
    "regnety_002": {"drop_rate": 0.1, "drop_path_rate": 0.1},
    "mixer_s32_224": {"img_size": 64, "drop_path_rate": 0.1},
    "cait_xxs24_224": {"img_size": 64, "drop_path_rate": 0.1},
    "densenet121": {"drop_rate": 0.1},
    "edgenext_xx_small": {"drop_path_rate": 0.1},
}
HEALTHY = {
    **{name: (lambda n=name, s=s: timm.create_model(n, num_classes=10, **s)) for name, s in TIMM.items()},
    **{
        f"torchvision {name}": (lambda n=name: torchvision.models.get_model(n, num_classes=10))
        for name in ("alexnet", "vgg11", "efficientnet_b0", "mobilenet_v3_small", "squeezenet1_1")
    },
    "transformers vit": lambda: huggingface(
        "ViT", hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )[0],
    "transformers convnext": lambda: huggingface(
        "ConvNext", hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1], drop_path_rate=0.1
    )[0],
    "transformers swin": lambda: huggingface(
        "Swin", embed_dim=16, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], window_size=2,
        drop_path_rate=0.1,
    )[0],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_raises_no_alarm(name):
    torch.manual_seed(0)
    found = audit(HEALTHY[name](), images(64, batch=4))
    found.require(training="acts", evaluation="silent")


@pytest.mark.slow
def test_a_resnet50_needs_few_forwards():
    found = audit(
        timm.create_model("resnet50", drop_rate=0.1, drop_path_rate=0.1), images(224, batch=2)
    )
    assert found.forwards <= 40
