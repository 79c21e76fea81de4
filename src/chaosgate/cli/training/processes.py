"""One command, several processes: what is refused before they start, and how this one is left as it was."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from chaosgate.cli.flags import cores

_LEFT_BEHIND = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
_LARGEST_SEED = 2**32 - 1  # of numpy's global stream, which Lightning seeds as well
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
_TALKATIVE = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero") + (
    "lightning.fabric.utilities.seed",
)
_LOGGING = ("lightning.pytorch", "lightning.fabric")  # they keep the standard error of their import
_CHATTER = (
    "GPU available",
    "TPU available",
    "HPU available",
    "Loading `train_dataloader`",
    "Restoring states from",  # a second line says what was loaded
    "Seed set to",
    "`Trainer.fit` stopped",
    "\N{ELECTRIC LIGHT BULB}",  # tips about other products
)
_CHATTER_WARNINGS = (
    # said of every number that is not averaged over the processes; ours are those of all processes already
    "It is recommended to use `self.log.*sync_dist=True",
    "The `srun` command is available",
    ".*is smaller than the logging interval",
    ".*does not have many workers",
    r"`isinstance\(treespec, LeafSpec\)`",
)
_MOST_PER_CORE = 4  # processes of one training on the CPU


@contextmanager
def as_command(arguments: Sequence[str]) -> Iterator[None]:
    """Let this process look like ``python -m chaosgate ARGUMENTS`` for as long as the command runs.

    LightningCLI finds its arguments in ``sys.argv``, and warns of arguments handed over while there are others.
    Lightning starts the processes of ranks 1, 2, ... by repeating the command of this one, which it takes from
    ``sys.argv`` and the specification of ``__main__``: in a study's worker or in a notebook that would be another one.
    What it leaves in the environment tells the next command in this process that its processes are there already:
    it would wait for them for ever. The same goes for a process group whose other members have ended.
    """
    argv, main = sys.argv, sys.modules["__main__"]
    specification = getattr(main, "__spec__", None)
    environment = {name: os.environ.get(name) for name in _LEFT_BEHIND}
    grouped = torch.distributed.is_initialized()
    sys.argv = ["chaosgate", *arguments]
    main.__spec__ = find_spec("chaosgate.__main__")
    try:
        with _without_chatter():
            yield
    finally:
        sys.argv, main.__spec__ = argv, specification
        if torch.distributed.is_initialized() and not grouped:
            torch.distributed.destroy_process_group()
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Drop what libraries say about themselves; what they say about the run, and all that is ours, passes."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    for logger in loggers:
        logger.addFilter(_says_something)
    handlers = [one for name in _LOGGING for one in logging.getLogger(name).handlers]
    streams = {one: one.setStream(_Stderr()) for one in handlers if type(one) is logging.StreamHandler}
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
                warnings.filterwarnings("ignore", category=category, module=r"(lightning|torch|timm|jsonargparse)")
            for text in _CHATTER_WARNINGS:
                warnings.filterwarnings("ignore", text)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_says_something)
        for handler, stream in streams.items():
            handler.setStream(stream)


class _Stderr:
    """Standard error as it is when a line is written: above a progress bar, while rich draws one."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _says_something(record: logging.LogRecord) -> bool:
    return not record.getMessage().lstrip().startswith(_CHATTER)


def check_run(config: Mapping[str, Any]) -> None:
    """Look at ``seed_everything`` and ``trainer`` of a parsed configuration.

    >>> check_run({"seed_everything": 0, "trainer": {"num_nodes": 0}})
    Traceback (most recent call last):
        ...
    ValueError: trainer.num_nodes is 0; give a number of at least 1.
    """
    seed = config["seed_everything"]
    if not isinstance(seed, bool) and not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"seed_everything is {seed}; give a whole number from 0 to {_LARGEST_SEED}.")
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
    _check_devices(trainer)


def _check_devices(trainer: Mapping[str, Any]) -> None:
    """On the CPU, Lightning starts as many processes as it is told to, and they wait for each other for ever."""
    asked = str(trainer.get("devices"))
    graphics = torch.cuda.is_available() or torch.backends.mps.is_available()
    if not asked.isdigit() or trainer.get("accelerator") not in ("cpu", "auto", None):
        return
    most = _MOST_PER_CORE * cores()
    if int(asked) > most and (trainer.get("accelerator") == "cpu" or not graphics):
        raise ValueError(
            f"trainer.devices is {asked}, and this machine has {cores()} cores and no other device to use; at most "
            f"{_MOST_PER_CORE} processes per core are started. Give at most {most}."
        )
