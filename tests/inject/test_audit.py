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
from tests.inject.networks import build, gate, images


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

    def __init__(self, p, real, inplace=False):
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


def overwritten(self, h):
    noisy = F.dropout(h, 0.3, self.training)
    noisy = h
    return noisy


def times_zero(self, h):
    return h + 0 * torch.randn_like(h)


def added_to_detached(self, h):
    h.clone().add_(torch.randn_like(h))
    return h


def scale_of_token(self, h):
    return h * (1 + torch.rand(len(h), 1, *h.shape[2:]))


def scale_of_sample(self, h):
    return h * (1 + torch.rand(len(h), 1, 1, 1))


def shift(self, h):
    return h + torch.randn(len(h), 1, *h.shape[2:])


class TokenNorm(nn.Module):
    def forward(self, h):
        return h / h.norm(dim=1, keepdim=True).clamp_min(1e-6)


class Centred(nn.Module):
    def forward(self, h):
        return h - h.mean(1, keepdim=True)


def sequential_off(model):
    model.drop.eval()
    return model


def unused(drop):
    """A model with a layer that it never calls."""
    return net(lambda self, h: h, drop)


def eval_noise(self, h):
    return h + 0.1 * torch.randn_like(h)


DROP, NEVER, FIXED = nn.Dropout, "never draws", "drawn but constant"
UNUSED, LOST = "result unused", "removed by a normalization"
LOUD, RATE = "active in evaluation", "rate differs from the request"
MISTAKES = {  # a model, and the verdict on its noise
    "rate of zero": (lambda: net(lambda s, h: s.drop(h), DROP(0.0)), NEVER),
    "layer never called": (lambda: unused(DROP(0.2)), NEVER),
    "2d layer never called": (lambda: unused(nn.Dropout2d(0.2)), NEVER),
    "drop path never called": (lambda: unused(timm.layers.DropPath(0.2)), NEVER),
    "rrelu never called": (lambda: unused(nn.RReLU()), NEVER),
    "gate as layer never called": (lambda: unused(gate()), NEVER),
    "layer in evaluation mode": (
        lambda: sequential_off(net(lambda s, h: s.drop(h), DROP(0.2))),
        NEVER,
    ),
    "layer that stays in evaluation": (lambda: net(lambda s, h: s.drop(h), Frozen(0.2)), NEVER),
    "drop path of rate zero": (
        lambda: net(lambda s, h: s.drop(h), timm.layers.DropPath(0.0)),
        NEVER,
    ),
    "model reseeds torch": (lambda: net(reseeded), FIXED),
    "generator reseeded": (lambda: net(own_generator), FIXED),
    "everything is dropped": (lambda: net(lambda s, h: h + s.drop(h), DROP(1.0)), None),
    "result of a layer forgotten": (lambda: net(forgotten, DROP(0.2)), UNUSED),
    "result of a 2d layer forgotten": (lambda: net(forgotten, nn.Dropout2d(0.2)), UNUSED),
    "result of drop path forgotten": (lambda: net(forgotten, timm.layers.DropPath(0.2)), UNUSED),
    "hook without return": (lambda: hooked(discarded), UNUSED),
    "result overwritten": (lambda: net(overwritten), UNUSED),
    "multiplied by zero": (lambda: net(times_zero), UNUSED),
    "added to a copy": (lambda: net(added_to_detached), UNUSED),
    "result of a gate forgotten": (lambda: net(forgotten, gate()), UNUSED),
    "token scale before a token norm": (lambda: net(scale_of_token, norm=TokenNorm()), LOST),
    "sample scale before a group norm": (
        lambda: net(scale_of_sample, norm=nn.GroupNorm(1, 8, eps=1e-12)),
        LOST,
    ),
    "shift before centring": (lambda: net(shift, norm=Centred()), LOST),
    "functional dropout in evaluation": (lambda: net(lambda s, h: F.dropout(h, 0.2)), LOUD),
    "alpha dropout in evaluation": (lambda: net(lambda s, h: F.alpha_dropout(h, 0.2, True)), LOUD),
    "layer that stays in training": (lambda: net(lambda s, h: s.drop(h), Loud(0.2)), LOUD),
    "noise without a switch": (lambda: net(eval_noise), LOUD),
    "rrelu in evaluation": (lambda: net(lambda s, h: F.rrelu(h - 1, training=True)), LOUD),
    "gaussian hook in evaluation": (lambda: hooked(lambda m, a, h: h + torch.randn_like(h)), LOUD),
    "numpy noise in evaluation": (lambda: net(lambda s, h: h * float(np.random.rand() + 1)), LOUD),
    "keep probability as rate": (lambda: net(lambda s, h: s.drop(h), Rate(0.1, 0.9)), RATE),
    "half the rate": (lambda: net(lambda s, h: s.drop(h), Rate(0.4, 0.2)), RATE),
    "dropblock on a small map": (lambda: net(lambda s, h: s.drop(h), DropBlock(0.1, 7)), RATE),
    "dropblock of block 5": (lambda: net(lambda s, h: s.drop(h), DropBlock(0.1, 5)), RATE),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_its_verdict(name):
    make, verdict = MISTAKES[name]
    model, x = make(), images(12, batch=16)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    found = audit(model, x)
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    if verdict is None:  # a constant is not noise
        assert not any(source.draws and source.verdict == "acts" for source in found.sources)
        return
    assert verdict in [source.verdict for source in found.sources], str(found)
    with pytest.raises(AssertionError, match="sources of noise"):
        found.require(training="acts", evaluation="silent")


def test_an_attached_gate_is_a_source():
    model, x = build("timm swin")
    torch.nn.init.normal_(model.patch_embed.proj.weight, std=10.0)
    with cg.attach(model, gate(), "L3", check=False):
        (row,) = (s for s in audit(model, x).sources if s.operator == "attached gate")
        assert row.verdict == "acts" and row.energy > 0.1 and row.change > 0
    with cg.attach(model, gate(), "layers.3", check=False):
        (row,) = (s for s in audit(model, x).sources if s.operator == "attached gate")
        assert row.verdict == LOST


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


def huggingface(name, **settings):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(num_labels=10, **settings)
    return getattr(transformers, f"{name}ForImageClassification")(config)


TIMM = {
    "resnet50": {"drop_rate": 0.1, "drop_path_rate": 0.1},
    "vit_tiny_patch16_224": {"img_size": 64, "drop_path_rate": 0.1, "attn_drop_rate": 0.1},
    "deit3_small_patch16_224": {"img_size": 64, "drop_path_rate": 0.1},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 2, "drop_path_rate": 0.1},
    "convnext_atto": {"drop_path_rate": 0.1},
    "efficientnet_b0": {"drop_rate": 0.2, "drop_path_rate": 0.1},
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
        "ViT", image_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    ),
    "transformers convnext": lambda: huggingface(
        "ConvNext", image_size=64, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1], drop_path_rate=0.1
    ),
    "transformers swin": lambda: huggingface(
        "Swin", image_size=64, embed_dim=16, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8], window_size=2,
        drop_path_rate=0.1,
    ),
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
