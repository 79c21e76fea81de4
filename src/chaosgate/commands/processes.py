"""One command, several processes: how the others are started, and how this one is left as it was."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import torch

_LEFT_BEHIND = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")


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
        with warnings.catch_warnings():
            # said of every number that is not averaged over the processes; ours are those of all processes already
            warnings.filterwarnings("ignore", "It is recommended to use `self.log.*sync_dist=True")
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
