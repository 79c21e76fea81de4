"""``chaosgate explore``: the page in a real browser, its sliders moved, its numbers compared with
the library's."""

import re
import shutil
from itertools import product

import pytest

from chaosgate.__main__ import main
from chaosgate.cli.explore import feature_map, stored_features
from chaosgate.cli.gates import parse_operator
from chaosgate.compat.exploration import explore

OPERATORS, GRIDS, LOG_STDS = ["dirichlet", "identity", "massive:mu=2"], [5, 7], [0.5, 1.0]
FLAGS = ["--operators", *OPERATORS, "--grids", "7", "5", "--log_std", "1", "0.5"]
NUMBERS = "expected_energy energy ranking ranking_predicted finite smallest largest".split()
READ = """Object.fromEntries([...document.querySelectorAll('[data-number]')].map(
    cell => [cell.dataset.number, cell.dataset.exact]))"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explore") / "page.html"
    assert main(["explore", *FLAGS, "--to", str(path)]) == 0
    return path


@pytest.mark.slow
def test_sliders_show_the_numbers_of_the_library(page_file):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    features = {n: feature_map(stored_features()[1], n) for n in GRIDS}
    expected = explore(features, {n: parse_operator(n) for n in OPERATORS}, LOG_STDS)["settings"]
    wrong, gates = [], set()
    with playwright.sync_playwright() as play:
        page = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url))
        page.goto(page_file.as_uri())
        keys = [OPERATORS, list(map(str, GRIDS)), ["0.5", "1"], ["samplewise", "wick"]]
        for places in product(*(range(len(names)) for names in keys)):
            sliders = ("operator", "grid", "log_std", "realization")
            for slider, place in zip(sliders, places, strict=True):
                page.locator(f"#{slider}").fill(str(place))  # the page hears an input event
            shown, methods = page.evaluate(READ), expected
            for names, place in zip(keys, places, strict=True):
                methods = methods[names[place]]
            for method, reading in methods.items():
                for key in NUMBERS:
                    text = shown[f"{method}.{key}"]
                    assert (float(text) if text else None) == reading[key], (places, method, key)
            gates.add(page.evaluate("document.getElementById('gate').toDataURL()"))
    assert len(gates) == 24  # every setting has its own picture
    assert all(url.startswith(("file:", "data:")) for url in wrong)  # nothing was fetched


def test_the_page_refers_to_nothing_outside_and_is_not_overwritten(page_file, capsys):
    text = page_file.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:)|@import|url\(""", text)
    assert main(["explore", *FLAGS, "--to", str(page_file)]) == 1
    assert "exists already" in capsys.readouterr().err and page_file.read_text() == text
