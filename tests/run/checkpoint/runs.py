"""A small run to cut and resume."""

SMALL = (
    "--model.backbone_args={channels: [8, 8, 16, 16], drop_rate: 0.2}",
    "--data.init_args.batch_size=100",
    "--trainer.max_epochs=3",
    "--trainer.limit_train_batches=7",
    "--trainer.limit_val_batches=2",
    "--trainer.log_every_n_steps=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--saving.every_n_steps=2",
)
"""A run of 21 steps with dropout (the global random stream), momentum, a schedule, and checkpoints within epochs."""
