"""README: its Python runs in one process, its commands run in an empty folder, its numbers come
from kept rows."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chaosgate.__main__ import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


NOT_RUN = ("make ", "study run quickstart")  # set up an environment; more than a minute


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the reader's own files: photographs, and the YAML that README shows."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for channel, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            pixels = random.integers(0, 150, (72, 80, 3), dtype=np.uint8)
            pixels[..., channel] += 100
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.jpg")
    for text in blocks("yaml"):
        (tmp_path / text.split()[1]).write_text(text)
    return tmp_path


@pytest.mark.filterwarnings("ignore")  # Lightning's hints about a tiny training
def test_python_blocks_run_in_order_in_one_process(folder, capsys):
    names = {"__name__": "readme"}
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out.startswith("1\n")  # handle.fired


@pytest.mark.slow
def test_commands_run_in_an_empty_folder(folder):
    shell = "".join(blocks("bash")).replace("\\\n", " ")
    for line in shell.splitlines():
        if line and not any(part in line for part in NOT_RUN):
            command, *words = shlex.split(line, comments=True)
            assert command == "chaosgate" and main(words) == 0, line


def test_links_and_pictures_exist():
    linked = re.findall(r"\]\(([^)#]+)|src=\"([^\"]+)\"", README)
    assert all((ROOT / (link or picture)).exists() for link, picture in linked)


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_tables_of_a_page_are_those_of_the_kept_studies(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / "scripts" / "results_page.py"))["filled"](text) == text
