"""The checkpoint of the last finished epoch, whatever the metric."""

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from chaosgate.run_directory import LAST, RunDirectory


class KeepLastEpoch(ModelCheckpoint):
    """Write ``last.ckpt`` after every epoch.

    Lightning's ``save_last`` writes it only when the monitored metric has improved (seen in 2.6): a run that is cut
    would go back to its best epoch, and a test of the last epoch would test the best one.
    """

    def __init__(self) -> None:
        super().__init__(filename=LAST.removesuffix(".ckpt"), enable_version_counter=False)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The run directory is known now."""
        self.dirpath = str(RunDirectory(Path(trainer.default_root_dir)).checkpoints)
        super().setup(trainer, pl_module, stage)
