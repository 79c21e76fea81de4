"""What is cut from an image: augmentations with an explicit generator, and the central view for evaluation.

Images are uint8 tensors (C, H, W) or PIL images; the pixels are torchvision's work, the draws are made here.
"""

import math
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as pixels

from chaosgate.data.pipeline.decoding import Picture

P = TypeVar("P", Tensor, Picture)


def _whole(high: int, generator: torch.Generator) -> int:
    """Uniform on 0, ..., ``high``."""
    return int(torch.randint(high + 1, (), generator=generator))


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def random_flip(image: P, generator: torch.Generator, p: float = 0.5) -> P:
    """Mirror the image left to right with probability ``p``."""
    if _uniform(0, 1, generator) >= p:
        return image
    return image.flip(-1) if isinstance(image, Tensor) else image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def random_crop(image: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Surround (C, H, W) by ``padding`` zeros and cut a window of the old size at a uniform place."""
    height, width = image.shape[-2:]
    top, left = _whole(2 * padding, generator), _whole(2 * padding, generator)
    padded = torch.nn.functional.pad(image, [padding] * 4)
    return padded[..., top : top + height, left : left + width]


def random_resized_crop(
    image: Picture,
    size: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
) -> Picture:
    """Cut a window with a uniform share of the area and a log-uniform aspect ratio; resize it to ``size`` x ``size``.

    The law is that of torchvision's ``RandomResizedCrop``: ten attempts, then the largest central window whose aspect
    ratio is allowed.
    """
    rows, columns = pixels.get_size(image)
    top, left, height, width = _window(rows, columns, scale, ratio, generator)
    resized: Picture = pixels.resized_crop(
        image, top, left, height, width, [size, size], interpolation=interpolation, antialias=True
    )
    return resized


def crop_and_flip(image: Tensor, generator: torch.Generator, padding: int, flip: bool) -> Tensor:
    """The recipe for small images: a crop of the padded image, then mirroring; each may be left out."""
    if padding:
        image = random_crop(image, padding, generator)
    return random_flip(image, generator) if flip else image


def resized_crop_and_flip(
    image: Picture,
    generator: torch.Generator,
    size: int,
    scale: tuple[float, float],
    interpolation: InterpolationMode,
    flip: bool,
) -> Picture:
    """The recipe for photographs: a random resized crop, then mirroring, which may be left out."""
    image = random_resized_crop(image, size, generator, scale, interpolation=interpolation)
    return random_flip(image, generator) if flip else image


def centre_crop(image: Picture, resize: int, size: int, interpolation: InterpolationMode) -> Picture:
    """Resize so that the shorter side is ``resize``, then cut the central ``size`` x ``size``; nothing random."""
    image = pixels.resize(image, [resize], interpolation=interpolation, antialias=True)
    cut: Picture = pixels.center_crop(image, [size, size])
    return cut


def _window(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], generator: torch.Generator
) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = height * width * _uniform(*scale, generator)
        aspect = math.exp(_uniform(math.log(ratio[0]), math.log(ratio[1]), generator))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return _whole(height - h, generator), _whole(width - w, generator), h, w
    w, h = width, height
    if width / height < ratio[0]:
        h = min(height, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = min(width, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w
