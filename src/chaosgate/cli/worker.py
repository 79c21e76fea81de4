"""``chaosgate worker ORDER``: train and test one run of a study.

``study run`` forks its workers from a process that has imported this module, and with it all that
training needs. SLURM jobs start the command.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch.utils.tensorboard  # noqa: F401  what the default logger imports: once

from chaosgate.cli.fit import execute, parsed
from chaosgate.run.directory import file_hash
from chaosgate.study.execute.worker import train_and_test, with_lock
from chaosgate.study.plan.parts import LIBRARIES, Sources

_KNOWN = ("chaosgate", *(name.replace("-", "_") for name in LIBRARIES))


def worker(order: Path) -> int:
    """Train and test one run of a study; 'chaosgate study run' starts this.

    Args:
        order: The file that 'study run' has written, or the run directory for the last one.
    """
    return with_lock(order, partial(train_and_test, execute=execute))


def run_order(order: str, environment: Mapping[str, str]) -> None:
    """The same in a forked process, in its own session: Ctrl-C in a terminal does not reach it."""
    os.setsid()
    os.environ.update(environment)
    sys.exit(worker(Path(order)))


def parse(words: Sequence[str]) -> tuple[dict[str, Any], Sources]:
    """A configuration as plain data, and hashes of the files of classes of no known library."""
    text = json.dumps(parsed(words), default=str)
    roots = set(re.findall(r'"class_path": "(\w+)', text)).difference(_KNOWN)
    names = [name for name in sys.modules if name.split(".")[0] in roots]
    files = {getattr(sys.modules[name], "__file__", None) for name in names}
    return json.loads(text), {file: file_hash(file) for file in sorted(filter(None, files))}
