"""Checkpoints that survive a crash: written whole or not at all, checked when read, chosen by validation."""

from chaosgate.run.checkpoint.files import AtomicCheckpointIO
from chaosgate.run.checkpoint.keep import KeepCheckpoints
from chaosgate.run.checkpoint.stopping import NonFiniteLoss, Preempted, StopAtNonFiniteLoss

__all__ = ["AtomicCheckpointIO", "KeepCheckpoints", "NonFiniteLoss", "Preempted", "StopAtNonFiniteLoss"]
