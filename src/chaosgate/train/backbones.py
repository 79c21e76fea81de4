"""Networks of timm by name, residual networks for small images, and weights from files.

``timm.create_model("resnet10_small")`` works once this module is imported. A standard ResNet
reduces 28 or 32 pixels to one site before its last stage, and a field needs a grid. The small
networks have a 3x3 stem without stride or pooling: the stages of a 28-pixel image have 28, 14, 7
and 4 sites per side. They have a ``feature_info``, so stage names work as for other backbones.
"""

import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import timm
import torch
from lightning.pytorch.plugins import TorchSyncBatchNorm
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import load_file
from timm.layers import convert_sync_batchnorm  # type: ignore[attr-defined]
from timm.models import build_model_with_cfg, register_model
from timm.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn

_SMALL_IMAGES: dict[str, Any] = {
    "input_size": (3, 32, 32),
    "pool_size": (4, 4),
    "num_classes": 10,
    "first_conv": "conv1",
    "classifier": "fc",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}
default_cfgs = dict.fromkeys(("resnet10_small", "resnet18_small"), _SMALL_IMAGES)  # read by timm


class SmallResNet(ResNet):
    """timm's ResNet of basic blocks with a stem for images of 24 to 64 pixels.

    Args:
        layers: Blocks per stage.
        channels: Even widths of the four stages; the stem has the first.
        in_chans: Channels of the images.
        last_stride: Stride of the last stage, 2 or 1; with 1 its map has the size of the previous
            one.
        kwargs: Passed on to timm's ResNet (``num_classes``, ``drop_rate`` ...).
    """

    def __init__(
        self,
        layers: tuple[int, ...],
        channels: tuple[int, ...],
        in_chans: int = 3,
        last_stride: int = 2,
        **kwargs: Any,
    ) -> None:
        if last_stride not in (1, 2) or kwargs.pop("output_stride", 32) != 32:
            raise ValueError(
                "last_stride is 2, or 1 for a larger last map; dilation is not supported"
            )
        # only the deep stem of timm has a free width; its convolutions are replaced below
        stem = {"stem_type": "deep", "stem_width": channels[0] // 2}
        kwargs = {"block": BasicBlock, "in_chans": in_chans, **stem, **kwargs}
        super().__init__(layers=layers, channels=channels, **kwargs)
        conv = nn.Conv2d(in_chans, channels[0], kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        self.add_module("conv1", conv)
        self.add_module("maxpool", nn.Identity())
        if last_stride == 1:
            for module in self.get_submodule("layer4.0").modules():
                if isinstance(module, nn.Conv2d):
                    module.stride = (1, 1)
        reductions = (1, 2, 4, 4 * last_stride)
        self.feature_info = [
            {"num_chs": width, "reduction": reduction, "module": f"layer{k}"}
            for k, (width, reduction) in enumerate(zip(channels, reductions, strict=True), start=1)
        ]


def _build(name: str, pretrained: bool, **kwargs: Any) -> ResNet:
    stages = {"out_indices": (0, 1, 2, 3)}  # for timm's features_only
    return build_model_with_cfg(SmallResNet, name, pretrained, feature_cfg=stages, **kwargs)


@register_model
def resnet10_small(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """One block per stage, 16 to 128 channels, 0.3 million parameters."""
    kwargs = {"layers": (1, 1, 1, 1), "channels": (16, 32, 64, 128), **kwargs}
    return _build("resnet10_small", pretrained, **kwargs)


@register_model
def resnet18_small(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """Two blocks per stage, 64 to 512 channels: the usual ResNet-18 for 32-pixel images."""
    kwargs = {"layers": (2, 2, 2, 2), "channels": (64, 128, 256, 512), **kwargs}
    return _build("resnet18_small", pretrained, **kwargs)


def create_backbone(name: str, **kwargs: Any) -> nn.Module:
    """A timm model by name; the error for an unknown name suggests the nearest ones."""
    files = {"checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"} & kwargs.keys()
    if files:  # not every version of timm reads them safely
        raise ValueError(f"model.backbone_args has {min(files)}; give a file with model.weights.")
    if not timm.is_model(name):
        close = " or ".join(get_close_matches(name, timm.list_models(), 3, 0.5))
        raise ValueError(f"timm has no model {name!r}." + f" Did you mean {close}?" * bool(close))
    try:
        model: nn.Module = timm.create_model(name, **kwargs)
    except Exception as error:  # timm raises anything if arguments do not fit, or without a network
        raise ValueError(f"timm cannot build {name!r} from {kwargs}: {error}") from error
    return model


def size_argument(name: str, image_size: int | None) -> dict[str, int]:
    """``img_size`` for a timm network that is built for one image size, such as a ViT.

    >>> size_argument("vit_tiny_patch16_224", 64), size_argument("resnet18", 64)
    ({'img_size': 64}, {})
    """
    known = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    fixed = known is not None and known.fixed_input_size
    return {"img_size": image_size} if fixed and image_size is not None else {}


class SyncBatchNorm(TorchSyncBatchNorm):
    """``trainer.sync_batchnorm: true`` for timm networks: statistics over all processes.

    torch's converter replaces each BatchNorm by a plain one. The BatchNorms of timm's EfficientNet,
    RegNet, DenseNet and others include the activation that follows, which would be lost.
    timm's converter keeps the activation.
    """

    def apply(self, model: nn.Module) -> nn.Module:
        converted: nn.Module = convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted


# -- weights, without executing anything in their files --------------------------------------------

_WEIGHTS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("model._orig_mod.", "model.", "module.")
_NETWORK = ("backbone", "backbone_args", "num_classes", "in_chans")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Content of a ``.safetensors`` file, or of another file, loaded with ``weights_only=True``."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}; give a .ckpt, .pth or .safetensors file.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = dict(torch.load(path, map_location="cpu", weights_only=True))
        if is_zipfile(path):
            with ZipFile(path) as archive:  # torch does not compare its checksums
                if archive.testzip() is not None:
                    raise ValueError("checksum")
        return content
    except Exception as error:  # arbitrary bytes raise anything; torch advises to load unsafely
        raise ValueError(
            f"checkpoint {path} cannot be read safely ({type(error).__name__}): it is damaged, or "
            "holds a whole model instead of its state_dict."
        ) from error


def network_arguments(content: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the network in a checkpoint of :class:`~chaosgate.ImageClassifier`."""
    known = content.get("hyper_parameters") or {}
    return {name: known[name] for name in _NETWORK if known.get(name) is not None}


def network_weights(content: dict[str, Any]) -> dict[str, Tensor]:
    """The backbone's weights in a Lightning or timm checkpoint, or in a plain ``state_dict``.

    Averaged weights (``state_dict_ema``, ``model_ema``) are preferred, as in timm.
    """
    held: Any = next((content[k] for k in _WEIGHTS if isinstance(content.get(k), dict)), content)
    state = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    for prefix in _PREFIXES:
        if state and all(name.startswith(prefix) for name in state):
            return {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def load_weights(model: nn.Module, path: str | Path, name: str) -> list[str]:
    """Load a file into ``model``; raise an error if it is from another network.

    If the classes differ, the classifier keeps its initial weights, whose names are returned and
    printed. Tensors of files not written by timm are renamed by timm's filter.
    """
    found, wanted = network_weights(read_checkpoint(path)), model.state_dict()
    rename = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if wanted.keys() != found.keys() and rename is not None:
        with suppress(Exception):  # a format that timm does not know: require_fit reports it
            found = rename(found, model)
    known: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    names = known.get("classifier") or ()  # a name or several, as timm knows them
    heads = tuple(f"{one}." for one in ((names,) if isinstance(names, str) else names))
    shapes = {key: value.shape for key, value in found.items()}
    fresh = [k for k in wanted if k.startswith(heads) and shapes.get(k) != wanted[k].shape]
    found |= {key: wanted[key] for key in fresh}
    require_fit(model, found, path, name)
    model.load_state_dict(found)
    if fresh:
        has = f"{shapes[fresh[0]][0]} classes" if fresh[0] in shapes else f"no {fresh[0]}"
        rank_zero_info(f"{path} has {has}: {', '.join(fresh)} of {name} start from fresh weights")
    return fresh


def require_fit(model: nn.Module, found: dict[str, Tensor], path: str | Path, name: str) -> None:
    """Raise an error unless ``found`` has exactly the names and shapes of ``model``'s weights."""
    wanted = model.state_dict()
    missing, unknown = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    shaped = {k for k in wanted.keys() & found.keys() if wanted[k].shape != found[k].shape}
    wrong = {"missing": missing, "unknown": unknown, "of another shape": shaped}
    if not any(wrong.values()):
        return
    details = [f"{len(keys)} {what} (e.g. {min(keys)!r})" for what, keys in wrong.items() if keys]
    raise ValueError(
        f"checkpoint {path} is not from {name}: {', '.join(details)} out of {len(wanted)} tensors. "
        "Use the model.backbone, backbone_args, num_classes and in_chans of its training."
    )
