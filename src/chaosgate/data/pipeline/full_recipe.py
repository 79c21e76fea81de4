r"""The recipe with which Swin-T was trained, through timm's own tools (Liu et al. 2021; Touvron et al. 2021).

On each image, after crop and mirroring: RandAugment ``rand-m9-mstd0.5-inc1``, then with probability 1/4 a rectangle of
normal noise. On the batch, on the device: mixup (:math:`\alpha=0.8`) or cutmix (:math:`\alpha=1`), half of the batches
each. Label smoothing of 0.1 belongs to the recipe and to the loss: set ``model.label_smoothing``; smoothing mixed
targets there is the same as mixing smoothed ones.

timm draws from global streams; here they are lent to it, seeded, for the time of a call. So an image stays a function
of (seed, epoch, index) and the mixing one of (seed, epoch, step, rank).
"""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torchvision.transforms import InterpolationMode

from chaosgate.data.pipeline.dataset import Augmentation
from chaosgate.data.pipeline.decoding import Picture, as_tensor
from chaosgate.data.pipeline.sample import Sample
from chaosgate.data.pipeline.streams import lent_streams

POLICY = "rand-m9-mstd0.5-inc1"
ERASE = 0.25
MIXUP, CUTMIX, SWITCH = 0.8, 1.0, 0.5
# Strengths are normal around 9, cut at 10: there posterising keeps 0 bits, once a black image, an error in Pillow 13.
_LARGEST = 9.99


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
    m, s = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    normalised = (image.float() / 255 - m) / s
    eraser = RandomErasing(probability=1.0, mode="pixel", device="cpu")  # type: ignore[no-untyped-call]
    erased: Tensor = eraser(normalised)
    return (255 * (erased * s + m)).round_().clamp_(0, 255).to(torch.uint8)


def mix(batch: Sample, num_classes: int, key: int) -> Sample:
    """Mixup or cutmix of a batch with its reverse, by timm; targets become shares (B, K)."""
    mixup = Mixup(  # type: ignore[no-untyped-call]
        MIXUP, CUTMIX, switch_prob=SWITCH, label_smoothing=0.0, num_classes=num_classes
    )
    with lent_streams(key):
        image, target = mixup(batch.image, batch.target)
    return batch._replace(image=image, target=target)
