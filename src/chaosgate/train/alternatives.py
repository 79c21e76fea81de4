r"""Alternatives to noise for calibration: losses, mixed images, averaged weights.

With targets :math:`y` (one-hot, smoothed or mixed) and probabilities :math:`p`, the loss of an
image is

.. math:: -\sum_k y_k\,(1 - p_k)^{\gamma}\,\log p_k ,

cross-entropy at :math:`\gamma = 0` and the focal loss (Lin et al., 2017; for calibration Mukhoti et
al., 2020) otherwise. Label smoothing :math:`\varepsilon` replaces :math:`y` by
:math:`(1-\varepsilon)\,y + \varepsilon / K`. Mixup (Zhang et al., 2018) blends two images and their
targets in proportions :math:`\lambda \sim \mathrm{Beta}(a, a)`; cutmix (Yun et al., 2019) pastes a
rectangle with the share :math:`1 - \lambda` of the area of one image into the other.
"""

from math import sqrt
from typing import Any

import numpy as np
import torch
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, OpenUnitInterval
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, one_hot


class CrossEntropy(nn.Module):
    """Mean cross-entropy in float32; the base class of losses.

    Args:
        label_smoothing: Share of the target that is spread evenly over all classes.
    """

    def __init__(self, label_smoothing: ClosedUnitInterval = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """``logits (B, K)`` against classes ``(B,)`` or class weights ``(B, K)``."""
        return cross_entropy(logits.float(), target, label_smoothing=self.label_smoothing)


class FocalLoss(CrossEntropy):
    """Focal loss: images that are already classified with confidence have less weight.

    Args:
        gamma: Exponent; 0 is cross-entropy.
        label_smoothing: As in cross-entropy.
    """

    def __init__(
        self, gamma: NonNegativeFloat = 3.0, label_smoothing: ClosedUnitInterval = 0.0
    ) -> None:
        super().__init__(label_smoothing)
        self.gamma = gamma

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        log_p = log_softmax(logits.float(), dim=1)
        classes = log_p.shape[1]
        shares = (one_hot(target, classes) if target.ndim == 1 else target).to(log_p)
        shares = (1 - self.label_smoothing) * shares + self.label_smoothing / classes
        weighted: Tensor = shares * (1 - log_p.exp()).pow(self.gamma) * log_p
        return -weighted.sum(1).mean()


class Mixing:
    """Mixup and cutmix of a batch with a permutation of itself.

    Args:
        mixup: Parameter of mixup's Beta distribution, e.g. 0.2; 0 for no mixup.
        cutmix: Parameter of cutmix' Beta distribution, e.g. 1.0; 0 for no cutmix. If both are
            positive, each is used for half of the batches.
    """

    def __init__(self, mixup: NonNegativeFloat = 0.0, cutmix: NonNegativeFloat = 0.0) -> None:
        if not mixup and not cutmix:
            raise ValueError("Mixing with mixup 0 and cutmix 0 does nothing; set one of them.")
        self.mixup, self.cutmix = mixup, cutmix

    def __call__(
        self, image: Tensor, target: Tensor, num_classes: int, key: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Mixed images ``(B, C, H, W)`` and class weights ``(B, K)`` of classes ``(B,)``.

        Proportion, rectangle and permutation are functions of ``key``.
        """
        generator = np.random.default_rng(key)
        cut = bool(self.cutmix) and (not self.mixup or bool(generator.random() < 0.5))
        parameter = self.cutmix if cut else self.mixup
        share = float(generator.beta(parameter, parameter))
        partner = torch.from_numpy(generator.permutation(len(image))).to(image.device)
        if cut:
            window = []
            for size in image.shape[-2:]:  # cut off at the border
                center, half = int(generator.integers(size)), sqrt(1 - share) * size / 2
                window.append(slice(max(0, round(center - half)), min(size, round(center + half))))
            rows, columns = window
            mixed = image.clone()
            mixed[..., rows, columns] = image[partner][..., rows, columns]
            height, width = image.shape[-2:]
            area = (rows.stop - rows.start) * (columns.stop - columns.start)
            share = 1 - area / (height * width)
        else:
            mixed = torch.lerp(image[partner], image, share)
        shares = one_hot(target, num_classes).to(torch.promote_types(image.dtype, torch.float32))
        return mixed, torch.lerp(shares[partner], shares, share)


class AverageWeights(WeightAveraging):
    r"""Validate, save and test an average of the weights and batch-norm statistics.

    With ``decay``, an exponential moving average (EMA) over steps,
    :math:`\bar w \leftarrow d\,\bar w + (1-d)\,w` with
    :math:`d = \min(\text{decay}, (1 + \text{step}) / (10 + \text{step}))`. Without ``decay``,
    stochastic weight averaging (SWA, Izmailov et al., 2018): the mean of the weights after each
    epoch from ``start`` on; before, the network itself. A checkpoint contains the average as
    network, and the current weights for resuming.

    Args:
        decay: Decay of the moving average, e.g. 0.999; null for SWA.
        start: Share of the training after which SWA begins.
    """

    def __init__(
        self, decay: OpenUnitInterval | None = None, start: ClosedUnitInterval = 0.75
    ) -> None:
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
            epochs = trainer.max_epochs
            if epochs is None or epochs < 1:
                raise ValueError("SWA needs the length of the training: set trainer.max_epochs.")
            averaged = trainer.current_epoch - int(self.start * epochs) + 1  # epochs so far
            self._share = 1 / max(1, averaged)
        else:
            return
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
