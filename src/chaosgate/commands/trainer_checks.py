"""Settings of the Trainer that Lightning accepts and then trips over, refused before anything is built."""

from collections.abc import Mapping
from typing import Any

LARGEST_SEED = 2**32 - 1  # of numpy's global stream, which Lightning seeds as well
_AT_LEAST = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "log_every_n_steps": 0,
    "num_nodes": 1,
    "max_epochs": -1,
    "max_steps": -1,
    "min_epochs": 0,
    "min_steps": 0,
    "num_sanity_val_steps": -1,
    "gradient_clip_val": 0,
}
_ENDLESS = {"max_epochs": " (-1 trains without end)", "max_steps": " (-1 sets no limit)"}


def check_run(config: Mapping[str, Any]) -> None:
    """Look at ``seed_everything`` and ``trainer`` of a parsed configuration.

    >>> check_run({"seed_everything": 0, "trainer": {"num_nodes": 0}})
    Traceback (most recent call last):
        ...
    ValueError: trainer.num_nodes is 0; give a number of at least 1.
    """
    seed = config["seed_everything"]
    if not isinstance(seed, bool) and not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed_everything is {seed}; give a whole number from 0 to {LARGEST_SEED}.")
    trainer = config["trainer"]
    for key, least in _AT_LEAST.items():
        value = trainer.get(key)
        if value is not None and not value >= least:  # so that nan is refused too
            raise ValueError(f"trainer.{key} is {value}; give a number of at least {least}{_ENDLESS.get(key, '')}.")
    if trainer.get("barebones"):
        raise ValueError(
            "trainer.barebones is true; it leaves out the checkpoints and rows that every run here writes. Set it to "
            "false."
        )
