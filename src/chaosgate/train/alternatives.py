r"""What people use for calibration instead of noise, or together with it: losses, mixed images, averaged weights.

With targets :math:`y` (one-hot, smoothed or mixed) and probabilities :math:`p`, the loss of an image is

.. math:: -\sum_k y_k\,(1 - p_k)^{\gamma}\,\log p_k ,

cross-entropy at :math:`\gamma = 0` and the focal loss (Lin et al., 2017; for calibration Mukhoti et al., 2020)
otherwise. Label smoothing :math:`\varepsilon` replaces :math:`y` by :math:`(1-\varepsilon)\,y + \varepsilon / K`. Mixup
(Zhang et al., 2018) blends two images and their targets in proportions :math:`\lambda \sim \mathrm{Beta}(a, a)`; cutmix
(Yun et al., 2019) pastes a rectangle of share :math:`1 - \lambda` of one into the other.

Averages of the weights are by torch's ``AveragedModel`` and Lightning's callback around it.
"""

from math import sqrt
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
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


class AverageWeights(WeightAveraging):
    r"""Validate, save and test an average of the weights (and of batch-norm statistics) instead of the last ones.

    With ``decay``, an exponential moving average (EMA) over steps, :math:`\bar w \leftarrow d\,\bar w + (1-d)\,w`
    with :math:`d = \min(\text{decay}, (1 + \text{step}) / (10 + \text{step}))`. Without, stochastic weight averaging
    (SWA, Izmailov et al., 2018): the mean over the ends of the epochs from ``start`` on; until then the average is the
    network itself. A checkpoint holds the average as its network, and what is needed to go on beside it.

    Args:
        decay: Of the moving average, e.g. 0.999; null for SWA.
        start: Share of the training after which SWA begins.
    """

    def __init__(self, decay: float | None = None, start: float = 0.75) -> None:
        if decay is not None and not 0 < decay < 1:
            raise ValueError(f"decay is between 0 and 1, or null for SWA; got {decay!r}.")
        if not 0 <= start < 1:
            raise ValueError(f"start is a share of the training in [0, 1); got {start!r}.")
        self.decay, self.start = decay, start
        self._share = 1.0  # of the current weights in the next average
        super().__init__(use_buffers=True, avg_fn=self._averaged)

    def _averaged(self, average: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        return average + self._share * (current - average)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None  # never at the end of an epoch, which comes after validation

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.decay is not None:
            step = max(0, trainer.global_step - 1)
            self._share = 1 - min(self.decay, (1 + step) / (10 + step))
        elif batch_idx + 1 == trainer.num_training_batches:
            epochs = trainer.max_epochs if trainer.max_epochs is not None else -1
            if epochs < 1:
                raise ValueError("SWA needs the length of the training: set trainer.max_epochs.")
            averaged = trainer.current_epoch - int(self.start * epochs) + 1  # epochs in the average with this one
            self._share = 1 / max(1, averaged)
        else:
            return
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            super().on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":  # a test loads the average as the network, and needs no more
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
