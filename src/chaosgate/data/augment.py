r"""What is cut from an image and done to it: augmentations with an explicit generator, the central view for evaluation.

Images are uint8 tensors (C, H, W) or PIL images; the pixels are torchvision's work, the draws are made here.

*The full recipe* is the one that Swin-T was trained with, through timm's own tools (Liu et al. 2021; Touvron et al.
2021). On each image, after crop and mirroring: RandAugment ``rand-m9-mstd0.5-inc1``, then with probability 1/4 a
rectangle of normal noise. On the batch, on the device: mixup (:math:`\alpha=0.8`) or cutmix (:math:`\alpha=1`), half of
the batches each. Label smoothing of 0.1 belongs to the recipe and to the loss: set ``model.label_smoothing``; smoothing
mixed targets there is the same as mixing smoothed ones. timm draws from global streams; here they are lent to it,
seeded, for the time of a call. So an image stays a function of (seed, epoch, index) and the mixing one of (seed, epoch,
step, rank).
"""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as pixels

from chaosgate.data.decoding import Picture, as_tensor, normalised
from chaosgate.data.samples import Augmentation, Sample
from chaosgate.data.streams import lent_streams

P = TypeVar("P", Tensor, Picture)

POLICY = "rand-m9-mstd0.5-inc1"
ERASE = 0.25
MIXUP, CUTMIX, SWITCH = 0.8, 1.0, 0.5
# Strengths are normal around 9, cut at 10: there posterising keeps 0 bits, once a black image, an error in Pillow 13.
_LARGEST = 9.99


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


def padded_crop_and_flip(
    image: Picture, generator: torch.Generator, size: int, padding: int, interpolation: InterpolationMode, flip: bool
) -> Tensor:
    """The recipe for small images in files, which are brought to ``size`` x ``size`` first if they are not that."""
    return crop_and_flip(as_tensor(centre_crop(image, size, size, interpolation)), generator, padding, flip)


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


def usual_resize(size: int) -> int:
    """The shorter side before a central cut of ``size`` pixels.

    >>> usual_resize(224)
    256
    """
    return round(size / 0.875)


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


class FullRecipe:
    """``cut``, then RandAugment and random erasing.

    Args:
        cut: The crop and mirroring that come first.
        image_size: Side of the square, which scales timm's translations.
        interpolation: Of RandAugment's rotations and shears.
        mean: Per channel; also the colour of what they bring into view.
        std: Per channel; the noise of an erased rectangle is standard normal after normalisation.
    """

    def __init__(
        self,
        cut: Augmentation,
        image_size: int,
        interpolation: InterpolationMode,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        self.cut = cut
        settings = {
            "translate_const": int(image_size * 0.45),
            "img_mean": tuple(min(255, round(255 * value)) for value in mean),
            "interpolation": Image.Resampling[interpolation.name],
            "magnitude_max": _LARGEST,
        }
        self.rand_augment: Any = rand_augment_transform(POLICY, settings)
        self.mean, self.std = tuple(mean), tuple(std)

    def __call__(self, picture: Picture, generator: torch.Generator) -> Tensor:
        """An augmented uint8 image (3, H, W)."""
        picture = self.cut(picture, generator)
        if isinstance(picture, Tensor):
            picture = Image.fromarray(picture.permute(1, 2, 0).numpy())
        key = int(torch.randint(2**62, (), generator=generator))
        with lent_streams(key):
            image = as_tensor(self.rand_augment(picture))
            if float(torch.rand(())) < ERASE:
                image = erase(image, self.mean, self.std)
        return image


def erase(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Fill a random rectangle of uint8 (3, H, W) with noise, standard normal in normalised units, by timm.

    The noise is rounded to the 256 grey levels and cut off at black and white, which timm's own is not: images travel
    as bytes.
    """
    eraser = RandomErasing(probability=1.0, mode="pixel", device="cpu")  # type: ignore[no-untyped-call]
    erased: Tensor = eraser(normalised(image, mean, std))
    m, s = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return (255 * (erased * s + m)).round_().clamp_(0, 255).to(torch.uint8)


def mix(batch: Sample, num_classes: int, key: int) -> Sample:
    """Mixup or cutmix of a batch with its reverse, by timm; targets become shares (B, K)."""
    mixup = Mixup(  # type: ignore[no-untyped-call]
        MIXUP, CUTMIX, switch_prob=SWITCH, label_smoothing=0.0, num_classes=num_classes
    )
    with lent_streams(key):
        image, target = mixup(batch.image, batch.target)
    return batch._replace(image=image, target=target)
