"""Networks: timm's by name, and residual ones for small images that are registered with timm.

``timm.create_model("resnet10_small")`` works once this module is imported. A standard ResNet shrinks 28 or 32 pixels to
one site before its last stage, and a field needs a grid to live on. The small ones have a 3x3 stem without stride or
pooling, so the stages of a 28-pixel image have 28, 14, 7 and 4 sites a side. Their ``feature_info`` says so, and stage
names work as for any other backbone.
"""

import socket
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import timm
from huggingface_hub import constants, try_to_load_from_cache
from lightning.pytorch.plugins import TorchSyncBatchNorm
from timm.layers import convert_sync_batchnorm  # type: ignore[attr-defined]
from timm.models import build_model_with_cfg, register_model
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from chaosgate.field.arguments import nearest

_SMALL_IMAGES: dict[str, Any] = {
    "input_size": (3, 32, 32),
    "pool_size": (4, 4),
    "num_classes": 10,
    "first_conv": "conv1",
    "classifier": "fc",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}
_FEATURES = {"out_indices": (0, 1, 2, 3)}  # the four stages, when timm is asked for features only
default_cfgs = {"resnet10_small": _SMALL_IMAGES, "resnet18_small": _SMALL_IMAGES}  # timm reads this name


class SmallResNet(ResNet):
    """timm's ResNet of basic blocks with a stem for images of 24 to 64 pixels.

    Args:
        layers: Blocks per stage.
        channels: Width of the four stages; the stem has that of the first.
        in_chans: Channels of the images.
        last_stride: Stride of the last stage: 2, or 1 for a last map as large as the one before it.
        kwargs: Passed on to timm's ResNet (``num_classes``, ``drop_rate`` ...).
    """

    def __init__(
        self, layers: tuple[int, ...], channels: tuple[int, ...], in_chans: int = 3, last_stride: int = 2, **kwargs: Any
    ) -> None:
        if len(channels) != 4 or any(width < 2 or width % 2 for width in channels):
            raise ValueError(f"channels are the widths of four stages, each even and at least 2; got {list(channels)}")
        if last_stride not in (1, 2):
            raise ValueError(f"last_stride is 1 or 2; got {last_stride!r}")
        if kwargs.pop("output_stride", 32) != 32:
            raise ValueError("output_stride would dilate; for a larger last map set last_stride to 1")
        # The deep stem is the only one whose width timm lets us choose; its convolutions are replaced right after.
        arguments: dict[str, Any] = {"block": BasicBlock, "stem_type": "deep", "stem_width": channels[0] // 2, **kwargs}
        super().__init__(layers=layers, in_chans=in_chans, channels=channels, **arguments)
        stem = nn.Conv2d(in_chans, channels[0], kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        self.add_module("conv1", stem)
        self.add_module("maxpool", nn.Identity())
        if last_stride == 1:
            for module in self.get_submodule("layer4.0").modules():
                if isinstance(module, nn.Conv2d):
                    module.stride = (1, 1)
        self.feature_info = [
            {"num_chs": width, "reduction": reduction, "module": f"layer{k}"}
            for k, (width, reduction) in enumerate(zip(channels, (1, 2, 4, 4 * last_stride), strict=True), start=1)
        ]


@register_model
def resnet10_small(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """One block per stage, 16 to 128 channels, 0.3 million parameters: minutes on a laptop."""
    args = {"layers": (1, 1, 1, 1), "channels": (16, 32, 64, 128), **kwargs}
    return build_model_with_cfg(SmallResNet, "resnet10_small", pretrained, feature_cfg=_FEATURES, **args)


@register_model
def resnet18_small(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """Two blocks per stage, 64 to 512 channels: the usual ResNet-18 for 32-pixel images."""
    args = {"layers": (2, 2, 2, 2), "channels": (64, 128, 256, 512), **kwargs}
    return build_model_with_cfg(SmallResNet, "resnet18_small", pretrained, feature_cfg=_FEATURES, **args)


_OTHER_WEIGHTS = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")  # timm's own ways to a file


def create_backbone(name: str, **kwargs: Any) -> nn.Module:
    """A timm model by name; an unknown name gets the nearest ones suggested.

    Weights from files are read elsewhere (:mod:`chaosgate.train.weights`): not every version of timm reads them safely.
    """
    if ways := [key for key in _OTHER_WEIGHTS if kwargs.get(key)]:
        raise ValueError(
            f"model.backbone_args.{ways[0]} would let timm read weights of its own choice. Give the file with "
            "model.checkpoint instead."
        )
    if not timm.is_model(name):
        hint = nearest(name, timm.list_models(), 3) or " timm.list_models() lists the names."
        raise ValueError(f"timm has no model {name!r}.{hint} Set model.backbone.")
    if kwargs.get("pretrained"):
        require_reachable(name)
    try:
        model: nn.Module = timm.create_model(name, **kwargs)
    except (TypeError, ValueError, AttributeError, LookupError, AssertionError, ArithmeticError) as error:
        raise ValueError(f"timm cannot build {name!r} from {kwargs}: {error}. Set model.backbone_args.") from error
    return model


def size_argument(name: str, image_size: int | None) -> dict[str, int]:
    """``img_size`` for a timm network that is built for one size of images, such as a ViT; nothing for the others.

    >>> size_argument("vit_tiny_patch16_224", 64), size_argument("resnet18", 64)
    ({'img_size': 64}, {})
    """
    known = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return {"img_size": image_size} if known is not None and known.fixed_input_size and image_size is not None else {}


def require_reachable(name: str) -> None:
    """Fail at once, with a remedy, where timm's weights are neither on this machine nor to be had: timm tries long."""
    source = timm.get_pretrained_cfg(name)
    if source is None or not source.hf_hub_id or getproxies():
        return
    files = ("model.safetensors", "pytorch_model.bin")
    if any(isinstance(try_to_load_from_cache(source.hf_hub_id, file), str) for file in files):
        return
    host = urlsplit(constants.ENDPOINT).hostname or "huggingface.co"
    try:
        socket.create_connection((host, 443), timeout=3).close()
    except OSError as error:
        raise ConnectionError(
            f"model.pretrained: the weights of {name} are not on this machine, and {host} cannot be reached ({error}). "
            "Download them on a machine with network access and give the file with --model.checkpoint FILE "
            "(.safetensors, .pth), or set model.pretrained to false."
        ) from error


class SyncBatchNorm(TorchSyncBatchNorm):
    """What ``trainer.sync_batchnorm: true`` does here: statistics over all processes, everything else as before.

    torch's own converter replaces every BatchNorm by a bare one. Those of timm's EfficientNet, RegNet, DenseNet and
    others hold the activation that follows: it would be lost silently. timm's converter keeps it.
    """

    def apply(self, model: nn.Module) -> nn.Module:
        """Replace the BatchNorms of a network before it is distributed."""
        converted: nn.Module = convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
