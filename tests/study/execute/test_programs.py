"""Another program as a method of a study: the documented script, and possible mistakes."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from chaosgate.run.outputs import load_samples
from chaosgate.study import Run
from chaosgate.study.execute.run import rows_of, run
from chaosgate.study.execute.state import state_of
from tests.study.real_studies import REPOSITORY, runs_of, study

PAGE = (REPOSITORY / "docs" / "howto" / "study.md").read_text()


def write(folder: Path, **methods: str) -> Path:
    """A study of programs."""
    commands = {name: {"command": command} for name, command in methods.items()}
    content = {"methods": commands, "reference": next(iter(methods)), "seeds": [0, 1]}
    path = folder / "programs.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def works(one: Run) -> list[dict[str, object]]:
    return run(one, lambda *_, **__: pytest.fail("chaosgate trains"))


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOSGATE_ALLOW", "command")


def test_script_of_the_documentation_is_compared_like_any_method(tmp_path: Path) -> None:
    scripts = re.findall("```python[^\n]*\n(.*?)```", PAGE, re.S)
    (tmp_path / "train.py").write_text(next(one for one in scripts if "logits.npz" in one))
    script = f"{sys.executable} {tmp_path / 'train.py'} --seed {{seed}} --out {{run_dir}}"
    path = write(tmp_path, plain=script, smooth=f"{script} --smoothing 0.1")
    assert "--allow command" in study("run", path).stdout
    done = study("run", path, "--allow", "command", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = runs_of(path)
    rows = [row for one in runs for row in rows_of(one)]
    assert [row["method"] for row in rows] == ["plain", "smooth"] * 2
    assert len({row["nll"] for row in rows}) == 4 and all(0.5 < row["top1"] < 1 for row in rows)
    assert all(row["nll_T"] < row["nll"] for row in rows[::2])  # plain is over-confident
    table = (tmp_path / "programs" / "table.csv").read_text()
    assert "nll_T" in table and "smooth" in table
    samples = load_samples(runs[0].directory, *runs[0].test_outputs.values())
    assert samples is not None and samples.scaled is not None
    assert samples.correct.mean() == rows[0]["top1"]
    assert samples.nll.astype(float).mean() == pytest.approx(rows[0]["nll"], rel=1e-6)


@pytest.mark.usefixtures("allowed")
def test_rows_are_taken_as_they_are_and_a_finished_program_is_not_repeated(tmp_path: Path) -> None:
    row = json.dumps({"corruption": "clean", "severity": 0, "n": 9, "top1": 0.5, "nll": 1.0})
    text = json.dumps(row.replace("{", "{{").replace("}", "}}"))
    script = f"echo x >> {{run_dir}}/calls; echo {text} > {{run_dir}}/rows.jsonl"
    (one, _) = runs_of(write(tmp_path, mine=f"bash -c '{script}'"))
    for _ in range(2):
        (found,) = works(one)
    assert (found["nll"], found["method"], found["seed"]) == (1.0, "mine", 0)
    (one.directory / "fitted.json").unlink()  # rows are read again
    works(one)
    assert state_of(one).condition == "done" and (one.directory / "calls").read_text() == "x\n"


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("false", "non-zero exit status 1"),
        ("true", "wrote neither"),
        ("bash -c 'echo [] > {run_dir}/rows.jsonl'", "nor rows with corruption, severity"),
    ],
)
def test_program_that_fails_is_named(command: str, message: str, tmp_path: Path) -> None:
    (one, _) = runs_of(write(tmp_path, mine=command))
    with pytest.raises(Exception, match=message):
        works(one)
    assert state_of(one).condition == "failed"


@pytest.mark.usefixtures("allowed")
def test_cells_without_their_names_are_refused(tmp_path: Path) -> None:
    (one, _) = runs_of(write(tmp_path, mine="false"))
    one.directory.mkdir(parents=True)
    arrays = {"logits": np.zeros((2, 4, 3)), "target": np.zeros(4, int)}
    np.savez(one.directory / "logits.npz", **arrays)
    with pytest.raises(ValueError, match=r"logits \(2, 4, 3\) are not"):
        works(one)
    cells = {"corruption": ["clean", "fog"], "severity": [0, 3]}
    np.savez(one.directory / "logits.npz", **arrays, **cells)
    found = [(row["corruption"], row["severity"]) for row in works(one)]
    assert found == [("clean", 0), ("fog", 3)]
