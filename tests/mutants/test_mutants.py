"""Every small fault in field, gate and compat is caught by ``verify``, every one in metrics by its default tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaosgate.compat.verify import STATEMENTS, Subject
from chaosgate.field import DirichletLaplacian
from tests.mutants.table import COMPAT, FIELD, GATE, METRICS, Mutant, mutated

VERIFIED = [*FIELD, *GATE, *COMPAT]
NAMES = "functional calibration adaptive scoring ranking aggregate sums temperature".split()
TESTS = [f"tests/metrics/test_{name}.py" for name in NAMES]
ROOT = Path(__file__).parents[2]


def caught_by() -> str | None:
    """The first statement that fails on a small oblong grid with few draws, if any."""
    subject = Subject(DirichletLaplacian(), (3, 5), gamma=0.9, beta=2.0, draws=1 << 13)
    for statement in STATEMENTS:
        try:
            findings = statement.check(subject)
        except Exception:  # a gate that cannot even be run agrees with nothing
            return statement.label
        if not all(finding.passed(sampled_findings=200) for finding in findings):
            return statement.label
    return None


def test_the_table_is_large_and_names_every_mutant_once() -> None:
    everything = [*VERIFIED, *METRICS]
    assert len(everything) >= 60 and len(set(everything)) == len(everything)
    assert sum(bool(mutant.equivalent) for mutant in everything) <= 3
    assert all((ROOT / test).is_file() for test in TESTS)  # pytest fails without them, as if a mutant were caught


def test_every_mutant_finds_its_line() -> None:
    for mutant in [*VERIFIED, *METRICS]:
        with mutated(mutant):  # LookupError where the code has moved on
            pass


def test_without_a_mutant_nothing_is_caught() -> None:
    assert caught_by() is None


@pytest.mark.slow
@pytest.mark.parametrize("mutant", VERIFIED, ids=str)
def test_verify_catches_every_mutant_of_field_gate_and_compat(mutant: Mutant) -> None:
    with mutated(mutant):
        found = caught_by()
    assert (found is None) == bool(mutant.equivalent), found


@pytest.mark.slow
@pytest.mark.parametrize("mutant", METRICS, ids=str)
def test_the_default_tests_catch_every_mutant_of_metrics(mutant: Mutant) -> None:
    code = (
        "import sys, pytest, chaosgate.metrics\n"
        "from tests.mutants.table import Mutant, mutated\n"
        f"with mutated({mutant!r}):\n"
        f"    sys.exit(pytest.main(['-x', '-q', '-n', '0', '-p', 'no:cacheprovider', *{TESTS!r}]))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout[-2000:] + run.stderr[-2000:]
