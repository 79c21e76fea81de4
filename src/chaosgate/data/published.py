r"""Numbers that others published: timm's accuracy of bare weights, and the mean corruption error relative to AlexNet.

The first tells whether the pipeline is right. The second (Hendrycks and Dietterich 2019) is

.. math:: \mathrm{CE}_c = \frac{\sum_s E(c, s)}{\sum_s E_\text{AlexNet}(c, s)}, \qquad
    \mathrm{mCE} = \frac{100}{15} \sum_{c \in \text{common}} \mathrm{CE}_c

with :math:`E` the top-1 error. The name belongs to all fifteen common corruptions at all five severities; nothing else
is called mCE here. The paper's own aggregate is :func:`chaosgate.metrics.aggregate_cells` over its seven.
"""

from collections.abc import Mapping
from math import fsum
from typing import Any, NamedTuple

import timm

from chaosgate.corruptions import COMMON


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


ALEXNET_ERROR = {
    "gaussian_noise": (0.69528, 0.82542, 0.93554, 0.98138, 0.99452),
    "shot_noise": (0.71224, 0.85108, 0.93574, 0.98182, 0.99146),
    "impulse_noise": (0.78374, 0.89808, 0.94870, 0.98720, 0.99548),
    "defocus_blur": (0.65624, 0.73202, 0.85036, 0.91364, 0.94714),
    "glass_blur": (0.64308, 0.75054, 0.88806, 0.91622, 0.93344),
    "motion_blur": (0.58430, 0.70048, 0.82108, 0.89750, 0.92638),
    "zoom_blur": (0.70008, 0.76992, 0.80784, 0.84198, 0.87198),
    "snow": (0.71726, 0.88392, 0.86468, 0.91870, 0.94952),
    "frost": (0.61390, 0.79734, 0.88790, 0.89942, 0.93430),
    "fog": (0.67474, 0.76050, 0.84378, 0.87260, 0.94500),
    "brightness": (0.45140, 0.48502, 0.54048, 0.62166, 0.72440),
    "contrast": (0.64548, 0.76150, 0.88874, 0.97760, 0.99270),
    "elastic_transform": (0.52596, 0.70116, 0.55686, 0.64076, 0.80554),
    "pixelate": (0.52218, 0.54620, 0.73728, 0.87092, 0.91262),
    "jpeg_compression": (0.51002, 0.54718, 0.57294, 0.65458, 0.74778),
    "speckle_noise": (0.66192, 0.74440, 0.90246, 0.94548, 0.97268),
    "gaussian_blur": (0.54732, 0.70444, 0.82574, 0.89864, 0.95940),
    "spatter": (0.47196, 0.62194, 0.75052, 0.84132, 0.90182),
    "saturate": (0.59342, 0.65514, 0.51174, 0.70834, 0.82260),
}
"""Top-1 error of AlexNet at severities 1 to 5, as the benchmark's authors published it."""


def corruption_error(top1: Mapping[tuple[str, int], float], corruption: str) -> float:
    """Error on one corruption relative to AlexNet's, from the top-1 accuracy of its five severities."""
    absent = [severity for severity in range(1, 6) if (corruption, severity) not in top1]
    if absent:
        raise ValueError(f"no top-1 of {corruption} at severities {absent}; its corruption error needs 1 to 5.")
    return fsum(1 - top1[corruption, severity] for severity in range(1, 6)) / fsum(ALEXNET_ERROR[corruption])


def mean_corruption_error(top1: Mapping[tuple[str, int], float]) -> float:
    """The mCE in percent, from the top-1 accuracy of each cell ``(corruption, severity)``; AlexNet has 100.

    Raises:
        ValueError: A cell of the fifteen common corruptions is missing: a mean over fewer is not mCE.
    """
    absent = [cell for cell in all_common_cells() if cell not in top1]
    if absent:
        raise ValueError(
            f"{len(absent)} of the 75 cells of mCE have no top-1, among them {absent[:3]}. Test all fifteen common "
            "corruptions at five severities, or report chaosgate.metrics.aggregate_cells and do not call it mCE."
        )
    return 100 * fsum(corruption_error(top1, corruption) for corruption in COMMON) / len(COMMON)


def all_common_cells() -> list[tuple[str, int]]:
    """The 75 cells that mCE is made of."""
    return [(corruption, severity) for corruption in COMMON for severity in range(1, 6)]
