"""The global random streams of every process, in plain data that a checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def gather_random_states() -> list[dict[str, Any]]:
    """The states of all processes, by rank, on every rank."""
    mine = _state()
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, mine)
    return states


def restore_random_state(states: list[dict[str, Any]], rank: int) -> bool:
    """Take up this rank's streams; False, and nothing done, if the checkpoint knows fewer processes."""
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
