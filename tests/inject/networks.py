"""Networks of several libraries, small and with random weights, and loops that people train them
with."""

from contextlib import contextmanager
from dataclasses import dataclass

import timm
import torch
import torchvision
from torch import nn

import chaosgate as cg
import chaosgate.train.backbones


def small_resnet():
    return timm.create_model("resnet10_small", channels=(8, 16, 16, 32)), images(32)


def timm_vit(**settings):
    given = {"depth": 6, "embed_dim": 32, "num_heads": 2, "num_classes": 10, **settings}
    return timm.create_model("vit_tiny_patch16_224", img_size=64, **given), images(64)


def timm_swin(**settings):
    given = {
        "embed_dim": 16,
        "depths": (1, 1, 2, 1),
        "num_heads": (1, 2, 4, 8),
        "window_size": 2,
        "num_classes": 10,
    }
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=64, **given, **settings
    ), images(64)


def timm_convnext():
    model = timm.create_model(
        "convnext_atto", depths=(1, 1, 2, 1), dims=(16, 32, 64, 128), num_classes=10
    )
    return model, images(64)


def timm_mixer():
    model = timm.create_model("mixer_s32_224", num_classes=10)
    return model, images(224, batch=2)


def timm_mvit():
    return timm.create_model("mvitv2_tiny", num_classes=10), images(224, batch=1)


def timm_hiera():
    return timm.create_model("hiera_tiny_224", embed_dim=32, num_heads=1, num_classes=10), images(
        224, batch=1
    )


def torchvision_resnet():
    return torchvision.models.resnet18(num_classes=10), images(64)


def torchvision_swin():
    model = torchvision.models.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[1, 1, 2, 1],
        num_heads=[1, 2, 4, 8],
        window_size=[2, 2],
        num_classes=10,
    )
    return model, images(64)


def torchvision_convnext():
    setting = torchvision.models.convnext.CNBlockConfig
    widths = (16, 32, 64, 128)
    blocks = [
        setting(width, after, 1) for width, after in zip(widths, (*widths[1:], None), strict=True)
    ]
    return torchvision.models.ConvNeXt(blocks, num_classes=10), images(64)


def torchvision_efficientnet():
    return torchvision.models.efficientnet_b0(num_classes=10), images(96)


def torchvision_vit():
    model = torchvision.models.VisionTransformer(64, 16, 6, 2, 32, 64, num_classes=10)
    nn.init.normal_(model.heads.head.weight, std=0.1)  # torchvision starts it at zero
    return model, images(64)


def huggingface(name, **settings):
    import transformers

    config = getattr(transformers, f"{name}Config")(image_size=64, num_labels=10, **settings)
    return getattr(transformers, f"{name}ForImageClassification")(config), images(64)


def huggingface_vit():
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    return huggingface("ViT", num_hidden_layers=6, num_attention_heads=2, **sizes)


def huggingface_swin():
    heads = {"num_heads": [1, 2, 4, 8], "window_size": 2}
    return huggingface("Swin", embed_dim=16, depths=[1, 1, 2, 1], **heads)


def huggingface_convnext():
    return huggingface("ConvNext", hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1])


class Convolutions(nn.Module):
    """A network of sequences (one axis) or volumes (three)."""

    def __init__(self, axes):
        super().__init__()
        layer, norm = {1: (nn.Conv1d, nn.BatchNorm1d), 3: (nn.Conv3d, nn.BatchNorm3d)}[axes]
        self.body = nn.Sequential(layer(4, 64, 3, padding=1), norm(64), nn.ReLU())
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.body(x).flatten(2).mean(2))


class Wrapper(nn.Module):
    """A network inside another, as most projects have it."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x):
        return self.backbone(x)


class Shared(nn.Module):
    """One block that runs twice in a forward."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.block(self.block(self.stem(x))).mean((2, 3)))


@dataclass
class Prediction:
    logits: torch.Tensor
    features: torch.Tensor


class Returning(nn.Module):
    """Returns a dict, a tuple or a dataclass, and may want a second argument."""

    def __init__(self, kind, second=False):
        super().__init__()
        self.backbone, _ = small_resnet()
        self.kind, self.second = kind, second

    def forward(self, x, scale=None):
        if self.second and scale is None:
            raise TypeError("forward() needs scale")
        features = self.backbone.forward_features(x)
        logits = self.backbone.forward_head(features) * (1.0 if scale is None else scale)
        return {
            "tensor": lambda: logits,
            "dict": lambda: {"logits": logits, "features": features},
            "tuple": lambda: (logits, None),
            "dataclass": lambda: Prediction(logits, features),
        }[self.kind]()


class Dense(nn.Module):
    """Logits for every site: (B, K, H, W)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, x):
        return self.head(self.body(x))


def images(side, batch=4, width=None):
    return torch.randn(batch, 3, side, width or side, generator=torch.Generator().manual_seed(0))


FAMILIES = {  # builder, and the grid and channels of L3
    "timm resnet": (small_resnet, (8, 8), 16),
    "timm vit": (timm_vit, (4, 4), 32),
    "timm swin": (timm_swin, (4, 4), 64),
    "timm convnext": (timm_convnext, (4, 4), 64),
    "torchvision resnet": (torchvision_resnet, (4, 4), 256),
    "torchvision swin": (torchvision_swin, (4, 4), 64),
    "torchvision convnext": (torchvision_convnext, (4, 4), 64),
    "torchvision efficientnet": (torchvision_efficientnet, (6, 6), 112),
    "torchvision vit": (torchvision_vit, (4, 4), 32),
    "huggingface vit": (huggingface_vit, (4, 4), 32),
    "huggingface swin": (huggingface_swin, (4, 4), 64),
    "huggingface convnext": (huggingface_convnext, (4, 4), 64),
}


def gate(**settings):
    return cg.GaussianChaos(**(settings or {"log_std": 1.0}))


def build(name):
    """A network by its name, with an input; without drop-path and dropout, which draw from the
    global stream."""
    torch.manual_seed(0)
    model, x = FAMILIES[name][0]() if name in FAMILIES else globals()[name]()
    for module in model.modules():
        if "drop" in type(module).__name__.lower():
            for attribute in ("p", "drop_prob"):
                if hasattr(module, attribute):
                    setattr(module, attribute, 0.0)
    return model, x


@contextmanager
def gated(family="timm resnet", stages="L4", one=None, train=True, check=False, **options):
    """A network, its input and a handle."""
    model, x = build(family)
    with cg.attach(model.train(train), one or gate(), stages, check=check, **options) as handle:
        yield model, x, handle


class Noting(cg.Gate):
    """Keeps numbers of every draw."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def perturb(self, h, noise):
        self.drawn.append(tuple(noise.normal((4,)).tolist()))
        return h * 1.1

    def expected_energy(self, h):  # that of any gate is estimated on the same draws
        return 0.01 * h.square().flatten(1).sum(1)


def features_of(model, module):
    """Outputs of a module, in the order of its calls."""
    seen = []
    found = model.get_submodule(module)
    found.register_forward_hook(
        lambda m, args, output: seen.append(output if torch.is_tensor(output) else output[0])
    )
    return seen


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
