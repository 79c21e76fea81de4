"""A tiny real study through the command line: training, test, table; killed and resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaosgate.run.files import RunDirectory
from chaosgate.study.execute.state import state_of
from tests.study.real_studies import KILL, RECORD, environment, numbers, runs_of, study, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished study, in which one run was killed in its second epoch, and its output."""
    folder = tmp_path_factory.mktemp("a study")
    methods = {"none": ["noise/none", RECORD], "gch": ["noise/gch", RECORD]}
    path = tiny(folder, "tiny", {**methods, "cut": ["noise/gch", KILL]})
    process = study("run", path, "--jobs", "2", "--threads", "1")
    assert process.returncode == 0, process.stdout + process.stderr
    return path, process.stdout


def test_runs_are_reported_resumed_paired_and_recorded(finished: tuple[Path, str]) -> None:
    path, printed = finished
    assert all(word in printed for word in ("clean", "corrupted", "Top-1", "Report:", "Next:"))
    names = {file.name for file in (path.parent / "tiny").iterdir()}
    assert {"report.html", "table.csv", "table.md", "table.tex"} <= names
    none, whole, cut = runs_of(path)
    assert (cut.directory / "killed").exists() and state_of(cut).condition == "done"
    assert "Restored all states" in (cut.directory / "log.txt").read_text()
    assert numbers(cut) == numbers(whole)  # of the uninterrupted one
    seen = (none.directory / "seen.txt").read_text()  # initial weights and batches are shared
    assert seen == (whole.directory / "seen.txt").read_text()
    assert len(set(seen.splitlines())) == 1 + 9  # all batches differ
    for run in (none, whole, cut):
        rows = RunDirectory(run.directory).rows()
        assert len({(row["corruption"], row["severity"]) for row in rows}) == len(rows) == 5
        about = {(row["study"], row["method"], row["n"]) for row in rows}
        assert about == {("tiny", run.method, 2000)} and f"log in {run.directory}" in printed


def test_status_does_not_import_torch(finished: tuple[Path, str]) -> None:
    path, _ = finished
    program = "import sys; from chaosgate.__main__ import main; "
    program += "sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [sys.executable, "-c", program, "study", "status", str(path), "--root"]
    command.append(str(path.parent))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("done") >= 3, done.stderr
