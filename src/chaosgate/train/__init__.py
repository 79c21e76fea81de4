"""The LightningModule, backbones and weights, losses, and learning rate schedules."""
