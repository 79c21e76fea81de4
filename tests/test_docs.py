"""README and documentation: the code runs, numbers come from kept rows, the site fetches nothing."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chaosgate.__main__ import main
from tests.data.photos import write_classes

REPOSITORY = Path(__file__).parents[1]
README = REPOSITORY / "README.md"
NOT_RUN = ("make ", "study run quickstart")  # set up an environment; more than a minute
DOCS = REPOSITORY / "docs"
CARDS = sorted(path for path in (DOCS / "methods").glob("*.md") if path.name != "index.md")
PAGES = [DOCS / "index.md", *sorted((DOCS / "howto").glob("*.md")), *CARDS]
ELSEWHERE = ("--launcher slurm", "--size smoke", "chaosgate init", "cd ", "segment.yaml")


def blocks(path, language):
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the reader's own files: photographs, and the YAML that README shows."""
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "photos", 40, ("cat", "dog"), (80, 72))
    for text in blocks(README, "yaml"):
        (tmp_path / text.split()[1]).write_text(text)


@pytest.mark.filterwarnings("ignore")  # Lightning's hints about a tiny training
def test_python_of_readme_runs_in_order_in_one_process(folder, capsys):
    names = {"__name__": "readme"}
    for code in blocks(README, "python"):
        exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out.startswith("1\n")  # handle.fired


@pytest.mark.slow
def test_commands_of_readme_run_in_an_empty_folder(folder):
    for line in "".join(blocks(README, "bash")).replace("\\\n", " ").splitlines():
        if line and not any(part in line for part in NOT_RUN):
            command, *words = shlex.split(line, comments=True)
            assert command == "chaosgate" and main(words) == 0, line


def test_links_and_pictures_of_readme_exist():
    linked = re.findall(r"\]\(([^)#]+)|src=\"([^\"]+)\"", README.read_text(encoding="utf-8"))
    assert linked and all((REPOSITORY / (link or picture)).exists() for link, picture in linked)


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_tables_of_a_page_are_those_of_the_kept_studies(page):
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    script = runpy.run_path(str(REPOSITORY / "scripts" / "results_page.py"))
    assert script["filled"](text) == text


@pytest.mark.parametrize(
    "path", [page for page in PAGES if blocks(page, "python")], ids=lambda path: path.stem
)
def test_python_of_a_page_runs(path):
    for code in blocks(path, "python"):
        exec(compile(code, str(path), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_a_card_is_linked_and_has_its_numbers(path):
    text = path.read_text(encoding="utf-8")
    assert f"({path.name})" in (DOCS / "methods" / "index.md").read_text(encoding="utf-8")
    pytest.importorskip("mkdocs")
    pages = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))
    filled = pages["on_page_markdown"](text)
    cost = filled.split("## Cost")[1].split("## Desiderata")[0]
    assert "{{" not in filled and (re.search(r"\d", cost) or "free" in cost.lower())


@pytest.mark.slow
def test_commands_of_the_pages_run(tmp_path, monkeypatch):
    """Every line as it stands, in one folder; trainings are cut short."""
    monkeypatch.chdir(tmp_path)
    exec(blocks(DOCS / "start.md", "python")[0], {"__name__": "page"})  # the folder of photos
    short = [f"--trainer.{key}" for key in ("limit_train_batches=2", "limit_val_batches=2")]
    shell = "chaosgate fit -c base -c data/fashion_mnist -c noise/none\n"  # a first run
    shell += shell.replace("fit", "test")
    shell += "".join(block for path in PAGES for block in blocks(path, "bash"))
    lines = shell.replace("\\\n", " ").splitlines()
    for number, line in enumerate(lines):
        if not line.strip() or any(part in line for part in ELSEWHERE):
            continue
        run = max(Path("runs").glob("*/results.jsonl"), default=Path("none/x")).parent
        line = line.replace("MY_RUN", run.name).replace("model.onnx", f"model{number}.onnx")
        words = shlex.split(line, comments=True)
        words = [str(run / "checkpoints" / "last.ckpt") if "*" in word else word for word in words]
        more = [*short, "--trainer.max_epochs=1"] if words[1] in ("fit", "test") else []
        assert words[0] == "chaosgate" and main([*words[1:], *more]) == 0, line


def test_yaml_of_the_pages_is_accepted(tmp_path, capsys):
    study = {"base": ["base", "data/fashion_mnist"], "reference": "none", "seeds": [0]}
    study["metrics"] = ["top1", "ece"]
    given = [yaml.safe_load(text) for path in PAGES for text in blocks(path, "yaml")]
    given = [content for content in given if not {"name", "data", "planned"} & set(content)]
    assert given
    for number, content in enumerate(given):
        (file := tmp_path / f"given{number}.yaml").write_text(yaml.safe_dump(content))
        if "methods" in content:
            file.write_text(yaml.safe_dump({**study, **content}))
            assert main(["study", "plan", str(file), "--root", str(tmp_path)]) == 0
            assert list(content["methods"])[-1] in capsys.readouterr().out
        else:
            words = ["-c", "base", "-c", "data/fashion_mnist", "-c", str(file), "--print_config"]
            assert main(["test", *words]) == 0
            assert yaml.safe_dump(content) in capsys.readouterr().out


@pytest.mark.slow
def test_the_segmentation_example_trains_and_reports(tmp_path):
    page = (DOCS / "howto" / "your_repository.md").read_text(encoding="utf-8")
    for name, text in re.findall(r'title="(segment\.\w+)"\n(.*?)^```', page, re.M | re.DOTALL):
        (tmp_path / name).write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PATH": path}
    words = "-m chaosgate study run segment.yaml --allow command".split()
    subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True)
    report = (tmp_path / "runs" / "studies" / "segment" / "table.md").read_text()
    assert "ECE" in report and "gch" in report


def test_an_unexpected_error_says_how_to_report_it():
    code = (
        "import sys, chaosgate.cli.configs as c\n"
        "def fail(action: str, name: str):\n    1 / 0\n"
        "c.configs = fail\n"
        "sys.argv = ['chaosgate', 'configs', 'show', 'a b']\n"
        "from chaosgate.__main__ import main\nmain()"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    assert "report" in done.stderr and "chaosgate configs show 'a b'" in done.stderr


@pytest.mark.slow
def test_the_site_builds_in_strict_mode_and_fetches_nothing(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    fetched = r"""<(?:script|img|iframe)[^>]+src=["'](?:https?:)?//"""
    fetched += r"""|<link[^>]+rel=["'](?:stylesheet|pre\w+)["'][^>]+="https?:"""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(fetched, text), page
        assert 'class="arithmatex"' not in text  # every formula became MathML
