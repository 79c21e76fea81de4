"""Compare two runs to the last bit: weights, optimiser, random streams, everything that was logged."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chaosgate.run.directory import SELECTION, RunDirectory

_PARTS = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "random_states", "global_step", "epoch")


def differences(run: Path, other: Path) -> list[str]:
    """Names of what differs between two finished runs; empty if they are the same."""
    mine, theirs = (torch.load(RunDirectory(path).selected("last"), weights_only=True) for path in (run, other))
    found = [part for part in _PARTS if not same(mine[part], theirs[part])]
    logged, also = logged_scalars(run), logged_scalars(other)
    found += [f"logged {tag}" for tag in sorted(logged.keys() | also.keys()) if logged.get(tag) != also.get(tag)]
    chosen, too = (json.loads((RunDirectory(path).checkpoints / SELECTION).read_text()) for path in (run, other))
    return found + (["selection"] if chosen != too else [])


def logged_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every logged number by tag, as (step, value), in the way that TensorBoard shows a run that was cut."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it announces what it purges
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def same(one: Any, two: Any) -> bool:
    """Equality to the last bit of nested plain data and tensors; not-a-number equals itself.

    >>> same({"a": [torch.zeros(2), float("nan")]}, {"a": [torch.zeros(2), float("nan")]}), same([1], [1.0])
    (True, False)
    """
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and bool(one == two or one != one)
