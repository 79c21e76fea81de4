"""Run the tests against every mutant: ``python -m tests.mutants [field gate compat metrics]``.

Each mutant gets a process of its own, in which tests/paper and the unit tests of its module run
until the first failure. The exit status is 1 if a mutant survives.
"""

import contextlib
import importlib
import io
import multiprocessing
import os
import sys
from pathlib import Path

import pytest
import torch

from tests.mutants.table import COMPAT, FIELD, GATE, METRICS, Mutant, mutated

ROOT = Path(__file__).parents[2]
TABLE = {"field": FIELD, "gate": GATE, "compat": COMPAT, "metrics": METRICS}
OPTIONS = "-x -q -p no:cacheprovider -p no:xdist --assert=plain --noconftest --no-header".split()


def killed(mutant: Mutant) -> bool:
    """Whether a test fails: first those of the module and of the paper, then all of the package."""
    torch.set_num_threads(1)
    package, module = mutant.target.partition(":")[0].split(".")
    names = [f"{package}/test_{module}.py", f"{package}/test_operators.py"]
    names += [f"paper/test_{package}.py", package, *["paper"] * (package != "metrics")]
    files = [f"tests/{name}" for name in names]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for tests in filter(os.path.exists, files):
            with mutated(mutant):
                status = pytest.main([*OPTIONS, tests])
            if status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
                return True  # interrupted: the mutant fails on import
    return False


def main(packages: list[str]) -> int:
    os.chdir(ROOT)
    for name in ("scipy.optimize", "scipy.stats", "chaosgate.compat.verify", "chaosgate.metrics"):
        importlib.import_module(name)  # once, before the processes are forked
    mutants = [mutant for package in packages for mutant in TABLE[package]]
    alive = 0
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        found = pool.imap(killed, mutants, chunksize=1)
        for number, (mutant, dead) in enumerate(zip(mutants, found, strict=True), 1):
            alive += not dead
            print(f"{number}: {'killed' if dead else 'SURVIVES'}: {mutant}", flush=True)
    print(f"{len(mutants) - alive} mutants killed, {alive} left")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(TABLE)))
