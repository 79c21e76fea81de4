"""Learning rate schedule, weight decay of weights only, and a warning about recipes."""

import math

from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler


class WarmupCosine(LRScheduler):
    r"""Linear warm-up, then a half cosine to ``final`` times the base rate; stepped per batch.

    .. math:: \eta(s)=\eta_0\begin{cases}(s+1)/(wT+1)&s<wT\\
        f+(1-f)\tfrac12(1+\cos\pi\tfrac{s-wT}{T-wT})&\text{else}\end{cases}

    Args:
        optimizer: Its learning rates are the peak rates.
        warmup: Share :math:`w` of all steps spent rising.
        final: Last rate as a share :math:`f` of the peak.
        total_steps: Length :math:`T`; null takes the length of the run.
        base_batch: Images per optimizer step for which the learning rate is given. The peak is
            scaled by the actual number (``data.batch_size`` x processes x accumulated batches)
            over this number. Null does not scale.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup: ClosedUnitInterval = 0.0,
        final: ClosedUnitInterval = 0.0,
        total_steps: PositiveInt | None = None,
        base_batch: PositiveInt | None = None,
    ) -> None:
        self.warmup, self.final = float(warmup), float(final)  # plain numbers in checkpoints
        self.total_steps = total_steps and int(total_steps)
        self.base_batch = base_batch and int(base_batch)
        super().__init__(optimizer)

    def follow(self, trainer: Trainer) -> None:
        """Set the length of the run, and scale the peak with the images per step."""
        if self.total_steps is None:
            self.total_steps = max(1, int(trainer.estimated_stepping_batches))
        if self.base_batch is not None:
            batch = getattr(getattr(trainer, "datamodule", None), "batch_size", None)
            if not isinstance(batch, int):
                raise ValueError("base_batch needs data with a batch_size; set base_batch to null.")
            images = batch * trainer.world_size * trainer.accumulate_grad_batches
            self.base_lrs = [base * (images / self.base_batch) for base in self.base_lrs]
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


class WeightsOnlyAdamW(AdamW):
    """AdamW with weight decay for weights only, as in Swin's recipe: not for norms, biases, and
    position tables.

    The position tables are listed by ``no_weight_decay`` of a timm network.
    """

    def exempt(self, network: nn.Module) -> None:
        """Move the parameters without decay into their own group."""
        tables = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()  # type: ignore[operator]
        named = network.named_parameters()
        free = {one: None for name, one in named if one.ndim <= 1 or name in tables}
        (group,) = self.param_groups
        group["params"] = [one for one in group["params"] if one not in free]
        self.add_param_group({"params": list(free), "weight_decay": 0.0})


def warn_of_recipe(network: nn.Module, name: str, optimizer: Optimizer) -> None:
    """Warn about a recipe that is known not to train a network from scratch.

    ConvNeXt, ViT and Swin normalize each token by LayerNorm and have no BatchNorm; with SGD at the
    usual rates of a ResNet their loss does not decrease. They are trained with AdamW.
    """
    kinds = " ".join({type(module).__name__ for module in network.modules()})
    high_rate = isinstance(optimizer, SGD) and optimizer.param_groups[0]["lr"] >= 0.01
    if high_rate and "LayerNorm" in kinds and "BatchNorm" not in kinds:
        rank_zero_warn(
            f"{name} has LayerNorm and no BatchNorm; such networks do not train from scratch with "
            "a high SGD rate. Use AdamW: -c model/convnext, model/vit or model/swin_tiny."
        )
