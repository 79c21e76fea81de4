from pathlib import Path

import pytest

from tests.study.toy_studies import Plan, Write, study_writer, toy_runs


@pytest.fixture
def write_study(tmp_path: Path) -> Write:
    return study_writer(tmp_path)


@pytest.fixture
def plan(write_study: Write, tmp_path: Path) -> Plan:
    """Runs of a study written with the given keys."""
    return lambda **keys: toy_runs(write_study(**keys), tmp_path / "runs")
