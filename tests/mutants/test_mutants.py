"""Every small fault in field, gate, compat and metrics is caught by tests/paper or a unit test."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.table import COMPAT, FIELD, GATE, METRICS, mutated


def test_every_mutant_is_there_once_and_finds_its_line():
    everything = [*FIELD, *GATE, *COMPAT, *METRICS]
    assert len(set(everything)) == len(everything) >= 60
    for mutant in everything:
        with mutated(mutant):  # LookupError where the code has moved on
            pass


@pytest.mark.slow
@pytest.mark.parametrize("package", ["field", "gate", "compat", "metrics"])
def test_every_mutant_is_killed(package):
    command = [sys.executable, "-m", "tests.mutants", package]
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]
