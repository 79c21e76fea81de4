"""Another program as a method of a study: the documented script, and possible mistakes."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from chaosgate.study import Run
from chaosgate.study.execute.run import rows_of, run
from chaosgate.study.execute.state import state_of
from tests.study.real_studies import REPOSITORY, runs_of, study

ARRAYS = "logits=np.zeros((2, 4, 3)), target=np.zeros(4, int)"
CELLS = f"'import numpy as np; np.savez(\"{{run_dir}}/logits.npz\", {ARRAYS})'"
PAGE = (REPOSITORY / "docs" / "howto" / "study.md").read_text()


def write(folder: Path, **methods: str) -> Path:
    """A study of programs, with an ensemble of the first one."""
    commands = {name: {"command": command} for name, command in methods.items()}
    first = next(iter(methods))
    content = {"methods": commands, "reference": first, "seeds": [0, 1]}
    path = folder / "programs.yaml"
    path.write_text(yaml.safe_dump({**content, "ensemble": {"of": first, "size": 2}}))
    return path


def by_hand(probabilities: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Metrics by code that shares nothing with the package."""
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == target
    bins = [(confidence > k / 15) & (confidence <= (k + 1) / 15) for k in range(15)]
    gaps = [abs(confidence[one].sum() - correct[one].sum()) for one in bins]
    nll = -np.log(probabilities[np.arange(len(target)), target]).mean()
    return {"top1": correct.mean(), "nll": nll, "ece": sum(gaps) / len(target)}


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
    table = pd.read_csv(tmp_path / "programs" / "table.csv").set_index(["kind", "metric"])
    found: dict[str, list[np.ndarray]] = {"plain": [], "smooth": []}
    for one in runs:
        with np.load(one.directory / "logits.npz") as arrays:
            weights, target = np.exp(arrays["logits"].astype(float)), arrays["target"]
        found[one.method].append(weights / weights.sum(1, keepdims=True))
    plain, smooth = ([by_hand(one, target) for one in own] for own in found.values())
    together = by_hand(np.mean(found["plain"], axis=0), target)
    for metric in together:
        means = table.loc[("mean", metric)].query("part == 'clean'").set_index("variant")
        expected = [np.mean([one[metric] for one in own]) for own in (plain, smooth)]
        assert list(means.value[:2]) == pytest.approx(expected, abs=1e-7)
        assert means.difference["smooth"] == pytest.approx(expected[1] - expected[0], abs=1e-7)
        assert means.value["plain ensemble x2"] == pytest.approx(together[metric], abs=1e-3)
    assert together["nll"] < np.mean([one["nll"] for one in plain])  # by convexity


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
        ("false", "false ended with status 1"),
        ("true", "wrote neither"),
        ("bash -c 'echo [] > {run_dir}/rows.jsonl'", "nor rows with corruption, severity"),
        (f"{sys.executable} -c {CELLS}", r"logits \(2, 4, 3\) are not .* for 1 cells"),
    ],
)
def test_program_that_fails_is_named(command: str, message: str, tmp_path: Path) -> None:
    (one, _) = runs_of(write(tmp_path, mine=command))
    with pytest.raises(Exception, match=message):
        works(one)
    assert state_of(one).condition == "failed"
