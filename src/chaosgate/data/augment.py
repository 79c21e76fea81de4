"""Crops and augmentations with an explicit generator.

Images are uint8 tensors (C, H, W) or PIL images. torchvision computes the pixels from
random numbers drawn here, so that an image is a function of (seed, epoch, index).

Order of the training augmentations:

* ``standard``: random resized crop, then mirroring.
* ``small`` (and sets in memory): zero padding, a random crop of the original size, then mirroring.
* ``full``: as ``standard``, then RandAugment ``rand-m9-mstd0.5-inc1``, then with probability 1/4 a
  rectangle of normal noise. This is the recipe of Swin-T (Liu et al. 2021; Touvron et al. 2021)
  with timm's functions. Mixup, cutmix and label smoothing are settings of the model,
  ``model.mixing`` and ``model.loss``, as in ``recipe/imagenet_full``.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as pixels

from chaosgate.data.samples import Augmentation, Picture, as_tensor, lent_streams, normalized

POLICY = "rand-m9-mstd0.5-inc1"
ERASE = 0.25
_RATIO = (3 / 4, 4 / 3)
# Strengths are normal around 9, cut at 10. There posterizing keeps 0 bits, an error in Pillow 13.
_LARGEST = 9.99


def _whole(high: int, generator: torch.Generator) -> int:
    """Uniform on 0, ..., ``high``."""
    return int(torch.randint(high + 1, (), generator=generator))


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def random_flip(image: Picture, generator: torch.Generator, p: float = 0.5) -> Any:
    """Mirror the image left to right with probability ``p``."""
    if _uniform(0, 1, generator) >= p:
        return image
    return image.flip(-1) if isinstance(image, Tensor) else pixels.horizontal_flip(image)


def resized_crop_and_flip(
    image: Picture,
    generator: torch.Generator,
    size: int,
    scale: tuple[float, float] = (0.08, 1.0),
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
    flip: bool = True,
) -> Picture:
    """The recipe for photographs: random resized crop and mirroring.

    Crop a uniform share of the area with a log-uniform aspect ratio, resize to ``size``, mirror if
    ``flip``. The distribution is that of torchvision's ``RandomResizedCrop``: ten attempts, then
    the largest central window with an allowed aspect ratio.
    """
    rows, columns = pixels.get_size(image)
    window = _window(rows, columns, scale, generator)
    image = pixels.resized_crop(
        image, *window, [size, size], interpolation=interpolation, antialias=True
    )
    return random_flip(image, generator) if flip else image


def _window(
    height: int, width: int, scale: tuple[float, float], generator: torch.Generator
) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = height * width * _uniform(*scale, generator)
        aspect = math.exp(_uniform(math.log(_RATIO[0]), math.log(_RATIO[1]), generator))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return _whole(height - h, generator), _whole(width - w, generator), h, w
    h = min(height, round(width / _RATIO[0]))
    w = min(width, round(height * _RATIO[1]))
    return (height - h) // 2, (width - w) // 2, h, w


def crop_and_flip(image: Picture, generator: torch.Generator, padding: int, flip: bool) -> Picture:
    """The recipe for small images: zero padding, random crop of the original size, mirroring."""
    image = as_tensor(image)
    if padding:
        height, width = image.shape[-2:]
        top, left = _whole(2 * padding, generator), _whole(2 * padding, generator)
        padded = torch.nn.functional.pad(image, [padding] * 4)
        image = padded[..., top : top + height, left : left + width]
    return random_flip(image, generator) if flip else image


def center_crop(
    image: Picture, resize: int, size: int, interpolation: InterpolationMode
) -> Picture:
    """Preprocessing of evaluation: resize the shorter side to ``resize``, crop the center."""
    image = pixels.resize(image, [resize], interpolation=interpolation, antialias=True)
    cut: Picture = pixels.center_crop(image, [size, size])
    return cut


def usual_resize(size: int) -> int:
    """The usual shorter side before a central crop of ``size`` pixels.

    >>> usual_resize(224)
    256
    """
    return round(size / 0.875)


class FullRecipe:
    """``crop``, then RandAugment and random erasing.

    Args:
        crop: The crop and mirroring that come first.
        image_size: Side of the image, which scales timm's translations.
        interpolation: Of RandAugment's rotations and shears.
        mean: Per channel; also the fill color.
        std: Per channel; the noise of an erased rectangle is standard normal after normalization.
    """

    def __init__(
        self,
        crop: Augmentation,
        image_size: int,
        interpolation: InterpolationMode,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        self.crop, self.mean, self.std = crop, tuple(mean), tuple(std)
        settings = {
            "translate_const": int(image_size * 0.45),
            "img_mean": tuple(min(255, round(255 * value)) for value in mean),
            "interpolation": Image.Resampling[interpolation.name],
            "magnitude_max": _LARGEST,
        }
        self.rand_augment: Any = rand_augment_transform(POLICY, settings)

    def __call__(self, picture: Picture, generator: torch.Generator) -> Tensor:
        """An augmented uint8 image (3, H, W)."""
        picture = self.crop(picture, generator)
        if isinstance(picture, Tensor):
            picture = Image.fromarray(picture.permute(1, 2, 0).numpy())
        with lent_streams(int(torch.randint(2**62, (), generator=generator))):
            image = as_tensor(self.rand_augment(picture))
            if float(torch.rand(())) < ERASE:
                image = erase(image, self.mean, self.std)
        return image


def erase(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Fill a random rectangle of uint8 (3, H, W) with noise, using timm.

    The noise is standard normal after normalization, rounded and clamped to 0, ..., 255.
    """
    eraser = RandomErasing(probability=1.0, mode="pixel", device="cpu")  # type: ignore[no-untyped-call]
    erased: Tensor = eraser(normalized(image, mean, std))
    m, s = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return (255 * (erased * s + m)).round_().clamp_(0, 255).to(torch.uint8)
