"""Learning rates that know the length of the training run and the size of its steps; recipes that do not train."""

import math

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

_HIGH_RATE = 0.01  # of SGD, for networks without BatchNorm


class WarmupCosine(LRScheduler):
    r"""Linear warm-up, then a half cosine to ``final`` times the base rate; stepped once per optimiser step.

    .. math:: \eta(s)=\eta_0\begin{cases}(s+1)/(wT+1)&s<wT\\
        f+(1-f)\tfrac12(1+\cos\pi\tfrac{s-wT}{T-wT})&\text{else}\end{cases}

    Args:
        optimizer: Its base rates are the peak.
        warmup: Share :math:`w` of all steps spent rising, in [0, 1).
        final: Last rate as a share :math:`f` of the peak, in [0, 1].
        total_steps: Length :math:`T`; None lets the task fill in the length of the run.
    """

    def __init__(
        self, optimizer: Optimizer, warmup: float = 0.0, final: float = 0.0, total_steps: int | None = None
    ) -> None:
        if not 0 <= warmup < 1:
            raise ValueError(f"WarmupCosine: warmup is a share of all steps in [0, 1); got {warmup!r}.")
        if not 0 <= final <= 1:
            raise ValueError(f"WarmupCosine: final is a share of the peak in [0, 1]; got {final!r}.")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"WarmupCosine: total_steps is at least 1; got {total_steps!r}.")
        self.warmup = warmup
        self.final = final
        self.total_steps = total_steps
        super().__init__(optimizer)

    def set_total_steps(self, total_steps: int) -> None:
        """Set the length, and the rates of the current step with it."""
        self.total_steps = max(1, total_steps)
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate

    def factor(self, step: int) -> float:
        """Rate at a step, as a share of the peak."""
        if self.total_steps is None:
            return 1.0
        rising = self.warmup * self.total_steps
        if step < rising:
            return (step + 1) / (rising + 1)
        done = min(1.0, (step - rising) / max(1.0, self.total_steps - rising))
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))

    def get_lr(self) -> list[float | Tensor]:
        """Rates of the current step, one per parameter group."""
        return [float(base) * self.factor(self.last_epoch) for base in self.base_lrs]


def effective_batch(trainer: Trainer) -> int:
    """Images of one optimiser step: per process and batch, times processes, times accumulated batches."""
    per_process = getattr(getattr(trainer, "datamodule", None), "batch_size", None)
    if not isinstance(per_process, int):
        raise ValueError(
            "model.lr_base_batch scales the learning rate with the batch, and the data do not say how large theirs is. "
            "Give the data module an attribute batch_size, or set model.lr_base_batch to null."
        )
    return per_process * trainer.world_size * trainer.accumulate_grad_batches


def require_rates(optimizer: Optimizer) -> None:
    """Refuse learning rates that no optimiser of torch refuses: nan, and infinity."""
    for group in optimizer.param_groups:
        if not math.isfinite(group["lr"]):
            raise ValueError(f"model.optimizer has lr {group['lr']}; give a finite, positive learning rate.")


def scale_rates(optimizer: Optimizer, factor: float) -> None:
    """Multiply the rate of every parameter group; before a schedule takes them as its base rates."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor


def warn_of_recipe(network: nn.Module, name: str, optimizer: Optimizer) -> None:
    """Warn of a recipe that is known not to train a network from scratch.

    ConvNeXt, ViT and Swin normalise each token by LayerNorm and have no BatchNorm; with SGD at the rates that are usual
    for a ResNet their loss stays where it starts. They are trained with AdamW.
    """
    kinds = {type(module).__name__ for module in network.modules()}
    has_layer_norm = any("LayerNorm" in kind for kind in kinds)
    has_batch_norm = any("BatchNorm" in kind for kind in kinds)
    rate = max(float(group["lr"]) for group in optimizer.param_groups)
    if isinstance(optimizer, SGD) and has_layer_norm and not has_batch_norm and rate >= _HIGH_RATE:
        rank_zero_warn(
            f"{name} normalises with LayerNorm, and training such a network from scratch with SGD at a rate of "
            f"{rate:g} is known to fail: the loss stays where it starts. Use AdamW: add -c model/convnext, model/vit "
            f"or model/swin_tiny in front of --model.backbone {name}, or set model.optimizer.",
            category=UserWarning,
        )
