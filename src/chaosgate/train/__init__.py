"""The one LightningModule, the backbones and weights it starts from, the schedules it follows."""
