"""Checkpoints that survive a crash: written whole or not at all, checked when read, chosen by validation."""

from chaosgate.checkpoint.atomic import AtomicCheckpointIO
from chaosgate.checkpoint.keep import KeepCheckpoints
from chaosgate.checkpoint.nonfinite import NonFiniteLoss, StopAtNonFiniteLoss
from chaosgate.checkpoint.preemption import Preempted

__all__ = ["AtomicCheckpointIO", "KeepCheckpoints", "NonFiniteLoss", "Preempted", "StopAtNonFiniteLoss"]
