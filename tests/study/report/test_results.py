"""The studies in results/: their rows and scores give the committed tables, and come from one commit."""

import io
import json
from pathlib import Path

import pandas as pd
import pytest

from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import results_of
from chaosgate.study.report.packed import load_packed

RESULTS = Path(__file__).parents[3] / "results"
KEPT = sorted(path.parent for path in RESULTS.glob("*/runs.json"))
MANY = 10  # runs, from which on a report takes half a minute
LIMIT = 60_000_000  # bytes that the whole folder may take in a clone


def reported() -> list[object]:
    sizes = {path: len(json.loads((path / "runs.json").read_text())) for path in KEPT}
    marks = {path: [pytest.mark.slow] if size > MANY else [] for path, size in sizes.items()}
    return [pytest.param(path, id=path.name, marks=marks[path]) for path in KEPT]


@pytest.mark.parametrize("study", reported())
def test_kept_rows_give_the_committed_table(study: Path) -> None:
    """Values and intervals to 1e-12, selections and marks exactly."""
    packed, runs = load_packed(study)
    text = io.StringIO(results_of(packed, runs, collect(runs)).csv)
    made, kept = (pd.read_csv(source) for source in (text, study / "table.csv"))
    pd.testing.assert_frame_equal(made, kept, check_exact=False, rtol=0, atol=1e-12)


@pytest.mark.parametrize("study", KEPT, ids=lambda path: path.name)
def test_rows_of_a_study_come_from_one_commit_and_say_so(study: Path) -> None:
    rows = [
        json.loads(line)
        for run in json.loads((study / "runs.json").read_text())
        for line in (RESULTS / run["directory"] / "results.jsonl").read_text().splitlines()
    ]
    assert rows and len({row["commit"] for row in rows}) == 1 and "dirty" not in rows[0]["commit"]
    assert all(
        row["config_hash"] and row["versions"]["torch"] and row["n"] and "seed" in row
        for row in rows
    )


def test_networks_that_several_studies_trained_agree_to_the_last_bit() -> None:
    """Same configuration and cell: commits, machines and minutes differ, numbers do not."""
    found: dict[tuple[object, ...], set[tuple[float, ...]]] = {}
    commits: dict[tuple[object, ...], set[str]] = {}
    for path in RESULTS.glob("*/*/results.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            cell = (
                row["config_hash"],
                row["monte_carlo"],
                row["weights_file"],
                row["corruption"],
                row["severity"],
            )
            found.setdefault(cell, set()).add(
                tuple(row[name] for name in ("top1", "nll", "ece", "temperature", "nll_T"))
            )
            commits.setdefault(cell, set()).add(row["commit"])
    assert sum(len(those) == 3 for those in commits.values()) == 6 * 8
    assert all(len(numbers) == 1 for numbers in found.values())


def test_folder_stays_small_enough_for_a_clone() -> None:
    """Of the figures git has some of ECE and NLL; a report makes the others and its page."""
    files = [path for path in RESULTS.rglob("*") if path.is_file() and path.name != "report.html"]
    kept = [
        path
        for path in files
        if path.parent.name != "figures" or path.name.startswith("ece_and_nll_")
    ]
    kept = [path for path in kept if "energy" not in path.name]
    assert sum(path.stat().st_size for path in kept) < LIMIT
