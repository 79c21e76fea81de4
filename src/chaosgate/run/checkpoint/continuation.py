"""What makes a continued run equal to an uninterrupted one to the last bit, and the comparison that shows it.

A checkpoint also holds the global random streams of every process, in plain data, and counters of Lightning that say
exactly which batch comes next.
"""

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer

from chaosgate.run.directory import SELECTION, RunDirectory

_PARTS = ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "random_states", "global_step", "epoch")


def gather_random_states() -> list[dict[str, Any]]:
    """The states of all processes, by rank, on every rank."""
    mine = _state()
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, mine)
    return states


def restore_random_state(states: list[dict[str, Any]], rank: int) -> bool:
    """Restore this rank's streams; False, without any effect, if the checkpoint has fewer processes."""
    if rank >= len(states):
        return False
    state = states[rank]
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, words, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(words, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
    return True


def _state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def load_forgotten_loader_state(trainer: Trainer) -> None:
    """Give the loaders the state that Lightning (2.6) forgets when it had to build them before reading the checkpoint.

    They know their position from the loop's counters; their state has what must not have changed since.
    """
    loop: Any = trainer.fit_loop
    states = getattr(loop, "_combined_loader_states_to_load", [])
    if states and loop._combined_loader is not None:
        loop._combined_loader._load_state_dicts(states)
        loop._combined_loader_states_to_load = []


def count_as_not_begun(checkpoint: dict[str, Any]) -> None:
    """Let Lightning's counters say that the batch at hand has not been fetched.

    Lightning knows checkpoints made at the end of a batch, before its metrics are logged, and repairs the counters on
    loading. Here the batch before is over entirely, which is what its counters look like after a whole epoch.
    """
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    for part in ("total", "current"):
        done = progress[part]["completed"]
        progress[part].update(ready=done, started=done, processed=done)
    progress["is_last_batch"] = False


def differences(run: Path, other: Path) -> list[str]:
    """Names of what differs between two finished runs; empty if they are the same."""
    mine, theirs = (torch.load(RunDirectory(path).selected("last"), weights_only=True) for path in (run, other))
    found = [part for part in _PARTS if not same(mine[part], theirs[part])]
    logged, also = logged_scalars(run), logged_scalars(other)
    found += [f"logged {tag}" for tag in sorted(logged.keys() | also.keys()) if logged.get(tag) != also.get(tag)]
    chosen, too = (json.loads((RunDirectory(path).checkpoints / SELECTION).read_text()) for path in (run, other))
    return found + (["selection"] if chosen != too else [])


def logged_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Every logged number by tag, as (step, value), in the way that TensorBoard shows an interrupted run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # only a comparison needs it

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
