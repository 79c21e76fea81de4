"""Is the pipeline right? The accuracy of bare timm weights beside the number timm publishes for them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import timm


class Published(NamedTuple):
    """Top-1 on the ImageNet validation set and how the images were cut: side, share of the shorter side, resizing."""

    top1: float
    size: int
    crop: float
    interpolation: str


PUBLISHED = {
    "densenet121.ra_in1k": Published(0.76500, 288, 0.95, "bicubic"),
    "densenet121.tv_in1k": Published(0.74764, 224, 0.875, "bicubic"),
    "deit_tiny_patch16_224.fb_in1k": Published(0.72172, 224, 0.9, "bicubic"),
    "efficientnet_b0.ra_in1k": Published(0.77694, 224, 0.875, "bicubic"),
    "efficientnet_lite0.ra_in1k": Published(0.75480, 224, 0.875, "bicubic"),
    "mobilenetv2_100.ra_in1k": Published(0.72976, 224, 0.875, "bicubic"),
    "mobilenetv3_large_100.ra_in1k": Published(0.75766, 224, 0.875, "bicubic"),
    "regnety_004.pycls_in1k": Published(0.74028, 224, 0.875, "bicubic"),
    "regnety_004.tv2_in1k": Published(0.75598, 224, 0.965, "bicubic"),
    "resnet18.a1_in1k": Published(0.73158, 288, 1.0, "bicubic"),
    "resnet18.tv_in1k": Published(0.69760, 224, 0.875, "bilinear"),
    "resnet34.a1_in1k": Published(0.77918, 288, 1.0, "bicubic"),
    "resnet50.a1_in1k": Published(0.81214, 288, 1.0, "bicubic"),
    "resnet50.tv2_in1k": Published(0.80850, 224, 0.965, "bilinear"),
    "resnet50.tv_in1k": Published(0.76130, 224, 0.875, "bilinear"),
    "resnet101.tv_in1k": Published(0.77376, 224, 0.875, "bilinear"),
    "resnet152.tv_in1k": Published(0.78322, 224, 0.875, "bilinear"),
    "swin_tiny_patch4_window7_224.ms_in1k": Published(0.81376, 224, 0.9, "bicubic"),
    "vit_small_patch16_224.augreg_in21k_ft_in1k": Published(0.81384, 224, 0.9, "bicubic"),
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": Published(0.75454, 224, 0.9, "bicubic"),
}
"""From timm's ``results-imagenet.csv``."""


def full_name(backbone: str) -> str:
    """Name with the tag of the weights that ``pretrained=True`` loads.

    >>> full_name("resnet50")
    'resnet50.a1_in1k'
    """
    config = timm.get_pretrained_cfg(backbone, allow_unregistered=True)
    tag = None if config is None else config.tag
    return backbone if "." in backbone or not tag else f"{backbone}.{tag}"


class Seen(NamedTuple):
    """How a test showed its images."""

    size: int
    resize: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def sanity_row(backbone: str, measured: Mapping[str, Any], seen: Seen, complete: bool) -> str:
    """One line: what bare weights reached here, what timm publishes, and what differed between the two."""
    name = full_name(backbone)
    line = (
        f"sanity: bare {name} has top-1 {measured['top1']:.4f}, NLL {measured['nll']:.4f}, ECE {measured['ece']:.4f} "
        f"on {int(measured['n'])} images; "
    )
    known = PUBLISHED.get(name)
    if known is None:
        line += "its published top-1 is not in the table here, see timm's results-imagenet.csv."
    else:
        line += f"timm publishes top-1 {known.top1:.4f}."
    wanted = _differences(name, known, seen)
    if wanted:
        line += f" Not like for like: for theirs set {', '.join(wanted)}."
    if not complete:
        line += " The set is not the whole validation set, so expect a difference."
    return line


def _differences(name: str, known: Published | None, seen: Seen) -> list[str]:
    """Settings that would show the images as the weights expect them."""
    wanted = []
    if known is not None and (seen.size != known.size or abs(seen.size / seen.resize - known.crop) > 0.005):
        wanted += [f"data.image_size {known.size}", f"data.eval_resize {round(known.size / known.crop)}"]
    if known is not None and seen.interpolation != known.interpolation:
        wanted.append(f"data.interpolation {known.interpolation}")
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if config is not None and (tuple(config.mean), tuple(config.std)) != (seen.mean, seen.std):
        wanted += [f"data.mean {list(config.mean)}", f"data.std {list(config.std)}"]
    return wanted
