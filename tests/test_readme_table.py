"""The tables in README: a script writes the quickstart's from what it left, the first one is that of a kept study."""

import csv
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "readme_table.py"))
HEAD = "method,part,metric,mean,mark"


def results(mark: str = "", without: str = "") -> str:
    lines = [HEAD]
    for k, method in enumerate(SCRIPT["METHODS"]):
        for metric in SCRIPT["METRICS"]:
            for part in ("train",) if metric == "energy" else ("clean", "corrupted"):
                if method != without:
                    lines.append(f"{method},{part},{metric},{int(part == 'corrupted')}.{k}2345,{mark}")
    return "\n".join(lines)


def test_every_method_of_the_quickstart_has_a_row() -> None:
    methods = [line.split(":")[0].strip() for line in (ROOT / "configs/study/quickstart.yaml").read_text().splitlines()]
    assert set(SCRIPT["METHODS"]) <= set(methods) and {"dropblock", "dropblock_03"} <= set(SCRIPT["METHODS"])
    lines = SCRIPT["table"](results()).splitlines()
    assert len(lines) == 2 + 4 and len({line.count("|") for line in lines}) == 1
    assert lines[2] == "| none | " + ".023/1.023 | " * 6 + ".023 |"
    assert lines[4] == "| DropBlock, p 0.3 | " + ".223/1.223 | " * 6 + ".223 |"


def test_one_seed_has_no_marks_and_nothing_may_be_missing() -> None:
    with pytest.raises(ValueError, match="marks"):
        SCRIPT["table"](results(mark="better"))
    with pytest.raises(ValueError, match="dropblock_03"):
        SCRIPT["table"](results(without="dropblock_03"))


def test_only_the_table_of_readme_changes() -> None:
    readme = (ROOT / "README.md").read_text()
    changed = SCRIPT["insert"](readme, "new")
    assert changed.split(SCRIPT["START"])[0] == readme.split(SCRIPT["START"])[0]
    assert changed.split(SCRIPT["END"])[1] == readme.split(SCRIPT["END"])[1]
    assert changed.split(SCRIPT["START"])[1].split(SCRIPT["END"])[0] == "\nnew\n"
    shown = readme.split(SCRIPT["START"])[1].split(SCRIPT["END"])[0]
    assert not set(shown) & set("✓✗±")


def test_the_first_table_has_the_numbers_of_the_kept_study() -> None:
    names = ("none", "dropblock-0.5", "gch-1", "gch-2", "label_smoothing", "mixup", "gch_mixup", "none ensemble x3")
    metrics = ("top1", "nll", "ece", "gap", "nll_T", "ece_T")
    with (ROOT / "results/cifar10_long/table.csv").open(encoding="utf-8", newline="") as file:
        kept = {
            (row["method"], row["part"], row["metric"]): float(row["mean"] or "nan") for row in csv.DictReader(file)
        }
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split("What it does to natural images")[1].split("\n\n")[1]
    for name, line in zip(names, shown.splitlines()[2:], strict=True):
        cells = [[float(number) for number in cell.split("/")] for cell in line.strip("|").split("|")[1:]]
        for metric, cell in zip(metrics, cells, strict=True):
            assert cell == [round(kept[name, part, metric], 3) for part in ("clean", "corrupted")], (name, metric)
