"""Train your own LightningModule with a gate, which the callback attaches."""

import lightning.pytorch as pl
from my_project.data import Shapes
from my_project.operators import Islands
from my_project.task import Classifier

import chaosgate as cg

if __name__ == "__main__":
    pl.seed_everything(0)
    data = Shapes(batch_size=64)
    gate = cg.GaussianChaos(log_std=1.0, operator=Islands())
    noise = cg.NoiseInjection(gate, stages=["L3"], target="network")
    trainer = pl.Trainer(max_epochs=2, callbacks=[noise], logger=False, accelerator="auto")
    task = Classifier(num_classes=3)
    trainer.fit(task, datamodule=data)
    trainer.test(task, datamodule=data)
