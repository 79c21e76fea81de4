"""``chaosgate explore``: the page in a real browser, its sliders moved, its numbers compared with
the library's."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from chaosgate.__main__ import main
from chaosgate.cli.explore import feature_map, stored_features
from chaosgate.cli.gates import parse_operator
from chaosgate.compat.exploration import explore

OPERATORS = ["dirichlet", "identity", "massive:mu=2"]
GRIDS = [5, 7]
LOG_STDS = [0.5, 1.0]
FLAGS = ["--operators", *OPERATORS, "--grids", "7", "5", "--log_std", "1", "0.5"]
NUMBERS = (
    "expected_energy",
    "energy",
    "ranking",
    "ranking_predicted",
    "finite",
    "smallest",
    "largest",
)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explore") / "page.html"
    assert main(["explore", *FLAGS, "--to", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """The same from the library alone."""
    _, maps = stored_features()
    return explore(
        {n: feature_map(maps, n) for n in GRIDS},
        {n: parse_operator(n) for n in OPERATORS},
        LOG_STDS,
    )


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as play:
        yield (started := play.chromium.launch(executable_path=chromium, args=["--no-sandbox"]))
        started.close()


@pytest.mark.slow
def test_sliders_show_the_numbers_of_the_library(
    browser, page_file: Path, expected: dict[str, Any]
) -> None:
    page = browser.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: request.url.startswith(("file:", "data:")) or wrong.append(request.url),
    )
    page.goto(page_file.as_uri())
    gates = set()
    for o, operator in enumerate(OPERATORS):
        for g, grid in enumerate(map(str, GRIDS)):
            for s, log_std in enumerate(("0.5", "1")):
                for r, realization in enumerate(("samplewise", "wick")):
                    for name, value in (
                        ("operator", o),
                        ("grid", g),
                        ("log_std", s),
                        ("realization", r),
                    ):
                        page.locator(f"#{name}").fill(
                            str(value)
                        )  # moves the slider; the page hears an input event
                    shown = page.evaluate(
                        "Object.fromEntries([...document.querySelectorAll('[data-number]')].map("
                        "cell => [cell.dataset.number, cell.dataset.exact]))"
                    )
                    methods = expected["settings"][operator][grid][log_std][realization]
                    assert page.text_content("#operator-value") == operator
                    for method, reading in methods.items():
                        strength = reading["strength"]["tau" if method == "gch" else "p"]
                        assert (
                            float(shown[f"{method}.strength"]) == strength
                        )  # stored and shown without rounding
                        for key in NUMBERS:
                            text = shown[f"{method}.{key}"]
                            assert (float(text) if text else None) == reading[key], (
                                operator,
                                grid,
                                method,
                                key,
                            )
                    assert float(shown["gch.mean"]) == methods["gch"]["mean"]
                    gates.add(page.evaluate("document.getElementById('gate').toDataURL()"))
    assert (
        len(gates) == 24 and wrong == []
    )  # every setting has a picture of its own; nothing was fetched


def test_the_page_refers_to_nothing_outside(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    assert (
        not re.search(r"""(?:src|href)=["'](?!data:)""", text)
        and "@import" not in text
        and "url(" not in text
    )


def test_an_existing_page_stays(page_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = page_file.read_bytes()
    assert main(["explore", *FLAGS, "--to", str(page_file)]) == 1
    assert "exists already" in capsys.readouterr().err and page_file.read_bytes() == before
