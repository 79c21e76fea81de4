"""The documentation: its code runs, its cards are complete, its site builds without a warning and fetches nothing."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
CARDS = sorted(path for path in (DOCS / "methods").glob("*.md") if path.name != "index.md")
HEADINGS = ["Formula", "Where it comes from", "When to use it", "Suggested strength", "Cost", "Desiderata"]
HEADINGS += ["Known failure", "Use it"]
PAGES = [DOCS / "index.md", *sorted((DOCS / "howto").glob("*.md")), *CARDS]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", [page for page in PAGES if blocks(page, "python")], ids=lambda path: path.stem)
def test_python_of_a_page_runs(path: Path) -> None:
    for code in blocks(path, "python"):
        exec(compile(code, str(path), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_a_card_has_every_heading_and_something_to_use(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == HEADINGS
    assert "$$" in text and blocks(path, "python")
    assert re.search(r"\{\{ config \S+ \}\}", text) or blocks(path, "yaml") or path.stem == "temperature"


def test_every_noise_and_alternative_has_a_card_and_the_index_names_every_card() -> None:
    asked = {name for path in CARDS for name in re.findall(r"\{\{ config (\S+) \}\}", path.read_text(encoding="utf-8"))}
    shipped = {f"alternative/{path.stem}" for path in (REPOSITORY / "configs" / "alternative").glob("*.yaml")}
    gates = {"gch", "gch_wick", "dropout", "dropblock", "iid_gaussian", "correlated_gaussian"}
    assert asked == shipped | {f"noise/{name}" for name in gates}
    index = (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
    assert [path.name for path in CARDS if f"({path.name})" not in index] == []


def test_numbers_of_cards_come_from_files(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pages = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))
    for path in CARDS:
        filled = pages["on_page_markdown"](path.read_text(encoding="utf-8"))
        assert "{{" not in filled
    row = pages["desiderata_row"]("gch").splitlines()[2]
    assert row in (DOCS / "desiderata.md").read_text(encoding="utf-8")


def test_every_yaml_of_the_pages_is_yaml() -> None:
    for path in [DOCS / "start.md", *PAGES]:
        for text in re.findall(
            r"^```yaml[^\n]*\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            assert isinstance(yaml.safe_load(text), dict), path


def test_an_unexpected_error_says_how_to_report_it(tmp_path: Path) -> None:
    broken = "import sys, chaosgate.commands.configs as c\nc.main = lambda words: 1 / 0\n"
    code = broken + "sys.argv = ['chaosgate', 'configs', 'show', 'a b']\nfrom chaosgate.__main__ import main\nmain()"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    said = done.stderr.partition("ZeroDivisionError")[2]
    assert "Please report it" in said and "command   chaosgate configs show 'a b'" in said and "torch " in said
    form = yaml.safe_load((REPOSITORY / ".github" / "ISSUE_TEMPLATE" / "bug.yaml").read_text(encoding="utf-8"))
    assert f"'{form['name']}'" in said


@pytest.mark.slow
def test_the_site_builds_in_strict_mode_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"""<(?:script|img|iframe)[^>]+src=["'](https?:)?//""", text)
        styles = re.findall(r"""<link[^>]+rel=["'](?:stylesheet|preconnect|preload)["'][^>]+href=["']https?:""", text)
        assert not loaded and not styles, page
        assert 'class="arithmatex"' not in text  # every formula became MathML
