"""The studies in results/: their rows and scores give the committed tables byte for byte, and come from one commit."""

import csv
import json
import re
import runpy
import shutil
from pathlib import Path

import pytest

from chaosgate.__main__ import main

RESULTS = Path(__file__).parents[3] / "results"
KEPT = sorted(path.parent for path in RESULTS.glob("*/runs.json"))
MANY = 10  # runs, from which on a report takes half a minute
LIMIT = 60_000_000  # bytes that the whole folder may take in a clone


def reported() -> list[object]:
    sizes = {path: len(json.loads((path / "runs.json").read_text())) for path in KEPT}
    marks = {path: [pytest.mark.slow] if size > MANY else [] for path, size in sizes.items()}
    return [pytest.param(path, id=path.name, marks=marks[path]) for path in KEPT]


@pytest.mark.parametrize("study", reported())
def test_report_gives_the_committed_tables_and_the_numbers_behind_figures(study: Path, tmp_path: Path) -> None:
    runs = json.loads((study / "runs.json").read_text())
    for name in {Path(run["directory"]).parts[0] for run in runs} | {study.name}:
        shutil.copytree(RESULTS / name, tmp_path / name)
    made = tmp_path / study.name
    committed = {name: (made / name).read_bytes() for name in ("table.md", "table.csv", "table.tex", "figures.json")}
    for name in committed:
        (made / name).unlink()
    assert main(["study", "report", str(made)]) == 0
    assert {name: (made / name).read_bytes() for name in committed} == committed


@pytest.mark.parametrize("study", KEPT, ids=lambda path: path.name)
def test_rows_of_a_study_come_from_one_commit_and_say_so(study: Path) -> None:
    rows = [
        json.loads(line)
        for run in json.loads((study / "runs.json").read_text())
        for line in (RESULTS / run["directory"] / "results.jsonl").read_text().splitlines()
    ]
    assert rows and len({row["commit"] for row in rows}) == 1 and "dirty" not in rows[0]["commit"]
    assert all(row["config_hash"] and row["versions"]["torch"] and row["n"] and "seed" in row for row in rows)


def test_networks_that_several_studies_trained_agree_to_the_last_bit() -> None:
    """Same configuration and cell: commits, machines and minutes differ, numbers do not."""
    found: dict[tuple[object, ...], set[tuple[float, ...]]] = {}
    commits: dict[tuple[object, ...], set[str]] = {}
    for path in RESULTS.glob("*/*/results.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            cell = (row["config_hash"], row["monte_carlo"], row["weights_file"], row["corruption"], row["severity"])
            found.setdefault(cell, set()).add(
                tuple(row[name] for name in ("top1", "nll", "ece", "temperature", "nll_T"))
            )
            commits.setdefault(cell, set()).add(row["commit"])
    assert sum(len(those) == 3 for those in commits.values()) == 6 * 8
    assert all(len(numbers) == 1 for numbers in found.values())


def test_page_of_results_has_the_numbers_of_every_kept_study() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    script = runpy.run_path(str(RESULTS.parent / "scripts" / "results_page.py"))
    assert {match[1] for match in script["BLOCK"].findall(text)} == {"probes", *(path.name for path in KEPT)}
    assert script["filled"](text) == text


QUOTED = re.compile(r"(?<!from )(?:([+-]\.\d{3}),? \(?)?([+-]\d?\.\d{3}) to ([+-]\d?\.\d{3})")


def test_intervals_in_the_sentences_of_the_page_are_those_of_its_tables() -> None:
    """Written `difference (low to high)`, or without the difference; `from` one mean `to` another is none."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in RESULTS.glob("*/table.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["low95"]]
        found[path.parent.name] = [
            (_signed(row["difference"]), _signed(row["low95"]), _signed(row["high95"])) for row in rows
        ]
    page = re.sub(r"<!-- table of .*?<!-- end of table -->", "", (RESULTS / "README.md").read_text("utf-8"), flags=re.S)
    quoted = 0
    for section in page.split("\n## ")[1:]:
        name = section.partition(":")[0]
        known = found.get(name) or [interval for study in found.values() for interval in study]
        for difference, low, high in QUOTED.findall(" ".join(section.split())):
            quoted += 1
            assert any((difference or d, low, high) == (d, lo, hi) for d, lo, hi in known), f"{name}: {low} to {high}"
    assert quoted > 60


def _signed(number: str) -> str:
    return f"{float(number):+.3f}".replace("0.", ".", 1)


def test_figures_of_the_page_are_there() -> None:
    figures = re.findall(r"!\[.*?\]\((.*?)\)", (RESULTS / "README.md").read_text("utf-8"))
    assert len(figures) >= len(KEPT) and all((RESULTS / figure).is_file() for figure in figures)


def test_folder_stays_small_enough_for_a_clone() -> None:
    """Of the figures git has those of ECE and NLL; a report makes the others and its page."""
    files = [path for path in RESULTS.rglob("*") if path.is_file() and path.name != "report.html"]
    kept = [path for path in files if path.parent.name != "figures" or path.name.startswith("ece_and_nll_")]
    assert sum(path.stat().st_size for path in kept) < LIMIT
