"""The HTML report: whole, self-contained, and opened in a real browser where there is one."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from chaosgate.study import load_study, plan_runs
from chaosgate.study.report.write import report
from tests.study.made import finish, keep
from tests.study.toy_studies import study_writer, toy_compose

CELLS = [("clean", 0), ("glass_blur", 1), ("glass_blur", 5), ("pixelate", 1), ("pixelate", 5)]
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
SWEEP = {"gch": {"key": "noise.gate.init_args.log_std", "values": [0.5, 1.0], "paper": 1.0}}


@pytest.fixture(scope="module", params=["one seed", "two seeds, swept strength"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    keys: dict[str, object] = {"paper": ["imagenet_clean_main", "imagenetc_breakdown"]}
    if request.param != "one seed":
        keys |= {"seeds": [0, 1], "strength": SWEEP}
    study = load_study(study_writer(folder)(**keys))
    runs = plan_runs(study, folder / "runs", toy_compose)
    for i, run in enumerate(runs):
        generator = np.random.default_rng(i)
        confidence = generator.uniform(0.2, 1.0, (5, 100))
        correct = generator.random((5, 100)) < confidence - 0.05
        metrics = {
            cell: {
                "top1": correct[k].mean(),
                "nll": 0.5 + 0.1 * k,
                "ece": 0.05 + 0.01 * k + 0.001 * i,
                "confidence": confidence[k].mean(),
            }
            for k, cell in enumerate(CELLS)
        }
        finish(run, metrics, energies=[0.3] if run.method != "none" else [])
        keep(run, CELLS, confidence, correct, np.ones_like(confidence))
    return report(study, runs, folder / "runs", Console(quiet=True)) / "report.html"


class Checker(HTMLParser):
    """Open elements, and what attributes refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img", "br", "wbr"):
            self.open.append(tag)
        self.refers += [value or "" for name, value in attrs if name in ("src", "href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_refers_to_nothing_outside(page: Path) -> None:
    checker = Checker()
    text = page.read_text()
    checker.feed(text)
    assert checker.open == []
    outside = [value for value in checker.refers if not value.startswith(("data:", "#"))]
    assert outside == [] and "@import" not in text and not re.search(r"url\((?!data:)", text)
    assert {value[1:] for value in checker.refers if value.startswith("#")} == set(checker.ids)


def test_page_shows_tables_pictures_and_configuration(page: Path) -> None:
    text = page.read_text()
    for title in (
        "Results",
        "Beside the paper",
        "Reliability, clean",
        "Injected energy",
        "Corruption",
        "Severity",
    ):
        assert f"<h2>{title}</h2>" in text
    assert "Study file" in text and "reference: none" in text
    assert "0.020 ± 0.001" in text  # the paper's GCh


def test_same_results_give_the_same_page(page: Path) -> None:
    root = page.parents[1]
    study = load_study(root.parent / "small.yaml")
    before = page.read_bytes()
    report(study, plan_runs(study, root, toy_compose), root, Console(quiet=True))
    assert page.read_bytes() == before
