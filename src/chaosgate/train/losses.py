r"""Losses and mixing of images: what people use for calibration instead of noise, or together with it.

With targets :math:`y` (one-hot, smoothed or mixed) and probabilities :math:`p`, the loss of an image is

.. math:: -\sum_k y_k\,(1 - p_k)^{\gamma}\,\log p_k ,

cross-entropy at :math:`\gamma = 0` and the focal loss (Lin et al., 2017; for calibration Mukhoti et al., 2020)
otherwise. Label smoothing :math:`\varepsilon` replaces :math:`y` by :math:`(1-\varepsilon)\,y + \varepsilon / K`. Mixup
(Zhang et al., 2018) blends two images and their targets in proportions :math:`\lambda \sim \mathrm{Beta}(a, a)`; cutmix
(Yun et al., 2019) pastes a rectangle of share :math:`1 - \lambda` of one into the other.
"""

from math import sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, one_hot


def classification_loss(
    logits: Tensor, target: Tensor, label_smoothing: float = 0.0, focal_gamma: float = 0.0
) -> Tensor:
    """Mean loss of ``logits (B, K)`` against classes ``(B,)`` or shares of classes ``(B, K)``."""
    if not focal_gamma:
        return cross_entropy(logits.float(), target, label_smoothing=label_smoothing)
    log_p = log_softmax(logits.float(), dim=1)
    shares = one_hot(target, log_p.shape[1]).to(log_p) if target.ndim == 1 else target.to(log_p)
    shares = (1 - label_smoothing) * shares + label_smoothing / log_p.shape[1]
    return -(shares * (1 - log_p.exp()).pow(focal_gamma) * log_p).sum(1).mean()


def mix_images(
    image: Tensor, target: Tensor, num_classes: int, mixup: float, cutmix: float, key: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Images ``(B, C, H, W)`` mixed with those of another order, and shares of classes ``(B, K)``.

    Args:
        image: The images.
        target: Their classes (B,).
        num_classes: Number of classes K.
        mixup: Parameter a of mixup's Beta distribution; 0 for none.
        cutmix: That of cutmix; where both are given, half of the batches each.
        key: Whole numbers that the proportion, the rectangle and the order are a function of.
    """
    generator = np.random.default_rng(key)
    cut = bool(cutmix) and (not mixup or bool(generator.random() < 0.5))
    parameter = cutmix if cut else mixup
    share = float(generator.beta(parameter, parameter))
    partner = torch.from_numpy(generator.permutation(len(image))).to(image.device)
    if cut:
        rows, columns = (_range(size, sqrt(1 - share), generator) for size in image.shape[-2:])
        mixed = image.clone()
        mixed[..., rows, columns] = image[partner][..., rows, columns]
        share = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (image.shape[-2] * image.shape[-1])
    else:
        mixed = torch.lerp(image[partner], image, share)
    shares = one_hot(target, num_classes).to(torch.promote_types(image.dtype, torch.float32))
    return mixed, torch.lerp(shares[partner], shares, share)


def _range(size: int, part: float, generator: np.random.Generator) -> slice:
    """A range of about ``part * size`` around a random centre, cut off at the border."""
    centre, half = int(generator.integers(size)), part * size / 2
    return slice(max(0, round(centre - half)), min(size, round(centre + half)))
