"""``chaosgate init``: the project that it writes trains and passes its own tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaosgate.__main__ import main

SOURCE = Path(__file__).parents[2] / "src"


def test_a_project_has_its_own_name_and_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "waves"]) == 0
    assert "class Blink" in Path("waves/waves/gates.py").read_text()
    texts = [path.read_text() for path in Path("waves").rglob("*") if path.is_file()]
    assert not any("my_project" in text for text in texts)
    assert main(["init", "waves"]) == 1 and "waves" in capsys.readouterr().err
    assert main(["init", "new-name"]) == 1 and not Path("new-name").exists()


@pytest.mark.slow
def test_the_project_trains_and_passes_its_tests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "waves"]) == 0
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    configs = ["-c", "base", "-c", "configs/shapes.yaml", "-c", "configs/islands.yaml"]
    for words in (
        ["-m", "pytest", "-q"],
        ["-m", "chaosgate", "fit", *configs],
        ["-m", "chaosgate", "test", *configs],
        ["-m", "chaosgate", "study", "run", "study.yaml"],
        ["train.py"],
    ):
        run = [sys.executable, *words]
        done = subprocess.run(run, cwd="waves", env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert Path("waves/runs/studies/shapes/report.html").is_file()
