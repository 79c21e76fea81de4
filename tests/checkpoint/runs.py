"""Compare two runs bit by bit: weights, optimiser, everything that was logged. Shared with ``scripts/chaos.py``."""

import json
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every logged number, as TensorBoard shows it."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def differences(run: Path, other: Path) -> list[str]:
    """What differs between two finished runs; empty if they are the same to the last bit."""
    found = []
    mine, theirs = (torch.load(r / "checkpoints" / "last.ckpt", weights_only=True) for r in (run, other))
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "random_states", "global_step", "epoch"):
        if not same(mine[part], theirs[part]):
            found.append(part)
    if not same(mine["callbacks"], theirs["callbacks"]):
        found.append("callbacks")
    logged, also = scalars(run), scalars(other)
    found += [f"logged {tag}" for tag in sorted(logged.keys() | also.keys()) if logged.get(tag) != also.get(tag)]
    chosen, too = (json.loads((r / "checkpoints" / "selection.json").read_text()) for r in (run, other))
    return found + (["selection"] if chosen != too else [])


def same(one: object, two: object) -> bool:
    """Equality to the last bit of nested data."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and (one == two or one != one)
