"""Run the tests against every mutant: ``python -m tests.mutants [field gate compat metrics]``.

Each mutant gets a process of its own, in which tests/paper and then the unit tests of its package
run until the first failure. Prints the mutants that survive; the exit status is 1 if there are any.
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
TESTS = {
    "field": ["tests/paper", "tests/field"],
    "gate": ["tests/paper", "tests/gate"],
    "compat": ["tests/paper", "tests/compat", "tests/cli/test_design.py"],
    "metrics": ["tests/metrics"],
}


def outcome(package: str, mutant: Mutant | None = None) -> int:
    """Exit status of the tests of a package."""
    torch.set_num_threads(1)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for tests in TESTS[package]:
            with mutated(mutant) if mutant else contextlib.nullcontext():
                status = int(pytest.main([*options, tests]))
            if status:
                return status
    return 0


def _task(task: tuple[str, Mutant | None]) -> tuple[str, Mutant | None, int]:
    return *task, outcome(*task)


def main(packages: list[str]) -> int:
    os.chdir(ROOT)
    for name in (
        "lightning.pytorch",
        "scipy.optimize",
        "chaosgate.compat.callback",
        "chaosgate.metrics",
    ):
        importlib.import_module(name)  # once, before the processes are forked
    tasks = [(package, mutant) for package in packages for mutant in (None, *TABLE[package])]
    survivors = 0
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for package, mutant, status in pool.imap(_task, tasks):
            killed = status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
            if killed == (mutant is None):
                survivors += 1
                print(
                    f"{'SURVIVES' if mutant else 'tests fail without a mutant'}: {mutant or package}"
                )
    print(f"{len(tasks) - len(packages) - survivors} mutants killed, {survivors} left")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(TABLE)))
