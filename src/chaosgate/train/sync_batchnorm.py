"""Synchronised batch-norm that leaves timm's networks what they are."""

from lightning.pytorch.plugins import TorchSyncBatchNorm
from timm.layers import convert_sync_batchnorm  # type: ignore[attr-defined]
from torch.nn import Module


class SyncBatchNorm(TorchSyncBatchNorm):
    """What ``trainer.sync_batchnorm: true`` does here: statistics over all processes, everything else as before.

    torch's own converter replaces every BatchNorm by a bare one. Those of timm's EfficientNet, RegNet, DenseNet and
    others hold the activation that follows: it would be gone, without a word. timm's converter keeps it.
    """

    def apply(self, model: Module) -> Module:
        """Replace the BatchNorms of a network before it is distributed."""
        converted: Module = convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
