"""The documentation: its code runs, its cards are complete, its site builds without a warning and fetches nothing."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from benchmarks import alternatives
from benchmarks.gate import measure_stage

from chaosgate import gate
from chaosgate.__main__ import main

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
CARDS = sorted(path for path in (DOCS / "methods").glob("*.md") if path.name != "index.md")
HEADINGS = [
    "Formula",
    "Where it comes from",
    "When to use it",
    "Suggested strength",
    "Cost",
    "Desiderata",
]
HEADINGS += ["Known failure", "Use it"]
PAGES = [DOCS / "index.md", *sorted((DOCS / "howto").glob("*.md")), *CARDS]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```",
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )


@pytest.mark.parametrize(
    "path", [page for page in PAGES if blocks(page, "python")], ids=lambda path: path.stem
)
def test_python_of_a_page_runs(path: Path) -> None:
    for code in blocks(path, "python"):
        exec(compile(code, str(path), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_a_card_has_every_heading_and_something_to_use(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == HEADINGS
    assert "$$" in text and blocks(path, "python")
    assert re.search(r"\{\{ config \S+ \}\}", text) or blocks(path, "yaml")


def test_every_noise_and_alternative_has_a_card_and_the_index_names_every_card() -> None:
    asked = {
        name
        for path in CARDS
        for name in re.findall(r"\{\{ config (\S+) \}\}", path.read_text(encoding="utf-8"))
    }
    shipped = {
        f"alternative/{path.stem}"
        for path in (REPOSITORY / "configs" / "alternative").glob("*.yaml")
    }
    gates = {"gch", "gch_wick", "dropout", "dropblock", "iid_gaussian", "correlated_gaussian"}
    assert asked == shipped | {f"noise/{name}" for name in gates}
    used = "".join(code for path in CARDS for code in blocks(path, "python"))
    gates = {
        name
        for name, one in vars(gate).items()
        if isinstance(one, type) and issubclass(one, gate.Gate)
    }
    assert {name for name in gates if not re.search(rf"\b{name}\(", used)} == {
        "Gate",
        "Mechanism",
    }  # of any law
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


def test_every_cost_of_a_card_is_a_row_of_the_bench() -> None:
    asked = {
        name
        for path in CARDS
        for name in re.findall(r"\{\{ cost ([\w ]+) \}\}", path.read_text(encoding="utf-8"))
    }
    assert len(asked) == 8 and asked <= {
        row["what"] for row in measure_stage("L4", (2, 4, 7, 7), 1)
    }


def test_every_ratio_of_a_card_is_a_row_of_the_bench() -> None:
    """Every card has a measured cost, of one kind or the other."""
    costs = {
        path.stem: re.findall(r"\{\{ (cost|ratio) ([\w ]+) \}\}", path.read_text("utf-8"))
        for path in CARDS
    }
    assert [name for name, found in costs.items() if len(found) != 1] == []
    measured = {row["what"] for row in alternatives.run(repeats=1, batch=4, side=32)}
    assert {name for ((kind, name),) in costs.values() if kind == "ratio"} == measured - {"plain"}


ELSEWHERE = {  # why a line of the pages is not run by the test below
    "--launcher slurm": "tests/study/execute/test_slurm.py, where SLURM runs",
    "--size smoke": "tests/study/plan/test_paper_studies.py",
}


def shell_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    shell = "".join(
        re.findall(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    ).replace("\\\n", " ")
    return [line for line in shell.splitlines() if line.strip()]


LINES = [line for path in PAGES for line in shell_lines(path)]


def test_lines_that_are_not_run_are_known() -> None:
    for part in ELSEWHERE:
        assert any(part in line for line in LINES), f"no page says {part!r} any more"
    rest = [line for line in LINES if not any(part in line for part in ELSEWHERE)]
    assert rest and all(line.startswith("chaosgate ") for line in rest), rest


@pytest.mark.slow
def test_commands_of_the_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other line as it stands, in one folder; trainings are cut short; MY_RUN and the probed one are theirs."""
    monkeypatch.chdir(tmp_path)
    exec(blocks(DOCS / "start.md", "python")[0], {"__name__": "page"})  # the folder of photos
    short = [
        "--trainer.limit_train_batches=2",
        "--trainer.limit_val_batches=2",
        "--trainer.max_epochs=1",
    ]
    done = []
    for number, line in enumerate(
        line for line in LINES if not any(part in line for part in ELSEWHERE)
    ):
        words = shlex.split(line, comments=True)
        probed = [i for i, word in enumerate(words) if "*" in word]
        run = max(Path("runs").glob("*/results.jsonl"), default=Path("none/x")).parent
        words = [
            word.replace("MY_RUN", run.name).replace("model.onnx", f"model{number}.onnx")
            for word in words
        ]
        for i in probed:
            words[i] = str(run / "checkpoints" / "last.ckpt")
        assert main([*words[1:], *(short if words[1] in ("fit", "test") else [])]) == 0, line
        done.append(words[1])
    assert {
        "fit",
        "test",
        "export",
        "verify",
        "probe",
        "explore",
        "sites",
        "study",
        "configs",
        "data",
    } == set(done)


def test_messages_of_the_page_on_errors_are_those_of_the_code() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py")
    )
    rows = re.findall(
        r"^\| (.*?) \|", (DOCS / "howto" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows[0] == "message" and len(rows) > 3
    for row in rows[1:]:
        for part in filter(None, (part.strip() for part in row.split("..."))):
            assert part in source, f"no message says {part!r}"


def test_every_configuration_stands_under_its_folder() -> None:
    pytest.importorskip("mkdocs")
    text = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))["configs_page"]()
    folder = ""
    for level, name in re.findall(
        r"^(##+) ([\w/.-]+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    ):
        if level == "##":
            folder = name
        else:
            assert name.startswith(folder), f"{name} stands under {folder}"


def test_outputs_of_a_notebook_stand_in_their_order(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    from nbformat import v4, write

    page = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))["notebook_page"]
    outputs = [
        v4.new_output("stream", text="first"),
        v4.new_output("display_data", data={"image/png": "eA=="}),
        v4.new_output("stream", name="stderr", text="noise"),
        v4.new_output("stream", text="second"),
        v4.new_output("display_data", data={"text/markdown": "- third"}),
    ]
    write(
        v4.new_notebook(cells=[v4.new_code_cell("code", outputs=outputs)]), tmp_path / "one.ipynb"
    )
    text, pictures = page(tmp_path / "one.ipynb", execute=False)
    found = re.findall(r"first|!\[output\]|second|third|noise", text)
    assert found == ["first", "![output]", "second", "third"] and pictures == {"one-0.png": b"x"}


def test_differences_of_a_table_stand_below_their_number() -> None:
    pytest.importorskip("mkdocs")
    stacked = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))["stacked"]
    row = stacked(
        "| gch | **0.9** ± 0.1 (+.1, -.2 to +.4; floor 0.3) ✓ |\n\n- ± and (1, 2) in a sentence"
    )
    below = "<br><small>+.1<br>-.2 to +.4<br>floor 0.3</small>"
    assert row == f"| gch | **0.9**&nbsp;±&nbsp;0.1{below} ✓ |\n\n- ± and (1, 2) in a sentence"
    assert (
        stacked("| 1.1 (1.2) | 75% (76%) |") == "| 1.1 (1.2) | 75% (76%) |"
    )  # predictions of the probe


def test_an_error_in_an_example_stays_in_its_block() -> None:
    pytest.importorskip("griffe")
    as_markdown = runpy.run_path(str(REPOSITORY / "scripts" / "site_docstrings.py"))["as_markdown"]
    example = ">>> f()\nTraceback (most recent call last):\n    ...\nValueError: no"
    assert (
        as_markdown(f"Say.\n\n{example}\n\nMore.") == f"Say.\n\n```pycon\n{example}\n```\n\nMore."
    )


def test_the_reference_has_no_names_of_other_packages() -> None:
    """An alias such as ``Grid`` has the qualified name of what it stands for."""
    pytest.importorskip("mkdocs")
    pages = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))
    for package in pages["PACKAGES"]:
        names = re.findall(r"^::: (\S+)", pages["api_page"](package), flags=re.MULTILINE)
        assert names and all(name.startswith("chaosgate.") for name in names), names
        first = pages["FIRST"].get(package, ())
        assert [name.rpartition(".")[2] for name in names[: len(first)]] == list(first)


def test_a_formula_that_cannot_be_shown_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mkdocs")
    render = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))["on_page_content"]
    assert (
        "<mi>x</mi>" in render(r'<span class="arithmatex">\(\mathrm{arg}\,x\)</span>')
        and not caplog.records
    )
    render(r'<span class="arithmatex">\(\arg x\)</span>')
    assert "unknown to latex2mathml" in caplog.text


def test_formulas_have_their_alphabets_and_spaces() -> None:
    """Browsers ignore ``mathvariant`` of letters, and latex2mathml gives a relation and functions no space."""
    pytest.importorskip("mkdocs")
    render = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))["on_page_content"]
    made = render(
        r'<span class="arithmatex">\(\psi\sim\mathcal N, \mathcal E, \mathbf 1, \log x\)</span>'
    )
    assert all(
        part in made
        for part in ("<mo>&#x0223C;</mo>", "<mi>𝒩</mi>", "<mi>ℰ</mi>", "<mn>𝟏</mn>", ">log</mo>")
    )
    assert "mathvariant" not in made


def test_flags_and_numbers_stay_on_one_line() -> None:
    pytest.importorskip("mkdocs")
    pages = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))
    assert '<span class="flag">--json</span> FILE' in pages["on_page_content"](
        "<code>bench gate --json FILE</code>"
    )
    assert (
        pages["on_page_markdown"]("| ✓ 0.1 ± 0.2 |\n\na ± b")
        == "| ✓\u00a00.1\u00a0±\u00a00.2 |\n\na ± b"
    )


def test_a_table_of_a_docstring_becomes_a_list() -> None:
    pytest.importorskip("griffe")
    as_markdown = runpy.run_path(str(REPOSITORY / "scripts" / "site_docstrings.py"))["as_markdown"]
    table = "==== =====\n``n``  samples counted\n``long`` the ``n`` again\n==== ====="
    assert as_markdown(table) == "- ``n``: samples counted\n- ``long``: the ``n`` again"


def test_results_are_one_page_with_their_pictures(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pages = runpy.run_path(str(REPOSITORY / "scripts" / "site_pages.py"))
    page = pages["results_page"]
    page.__globals__["REPOSITORY"] = tmp_path
    assert "No study with several seeds" in page()
    (tmp_path / "results" / "one").mkdir(parents=True)
    (tmp_path / "results" / "README.md").write_text(
        "# Evidence\n\n[one](one/table.md), [rows](one/rows.csv)\n"
    )
    (tmp_path / "results" / "one" / "table.md").write_text(
        "# One\n\n![curve](curve.png) [site](https://a.b)\n"
    )
    for name in ("curve.png", "rows.csv"):
        (tmp_path / "results" / "one" / name).write_text("x")
    text = page()
    assert "No study" not in text and text.index("\n# Evidence") < text.index(
        "## One: all numbers {: #one-table }"
    )
    assert "![curve](results/one/curve.png)" in text and "[rows](results/one/rows.csv)" in text
    assert "[one](#one-table)" in text and "[site](https://a.b)" in text


def test_every_yaml_of_the_pages_is_yaml() -> None:
    for path in [REPOSITORY / "README.md", DOCS / "start.md", *PAGES]:
        for text in re.findall(
            r"^```yaml[^\n]*\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            assert isinstance(yaml.safe_load(text), dict), path


def test_yaml_of_the_pages_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files belong to the walks; methods make a study that can be planned, other keys a configuration."""
    study = {
        "base": ["base", "data/fashion_mnist"],
        "reference": "none",
        "seeds": [0],
        "metrics": ["top1", "ece"],
    }
    given = [yaml.safe_load(text) for path in PAGES for text in blocks(path, "yaml")]
    given = [content for content in given if not {"name", "data", "planned"} & set(content)]
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


def test_an_unexpected_error_says_how_to_report_it(tmp_path: Path) -> None:
    broken = "import sys, chaosgate.cli.configs as c\ndef fail(action: str, name: str):\n    1 / 0\nc.configs = fail\n"
    code = (
        broken
        + "sys.argv = ['chaosgate', 'configs', 'show', 'a b']\nfrom chaosgate.__main__ import main\nmain()"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    said = done.stderr.partition("ZeroDivisionError")[2]
    assert (
        "Please report it" in said
        and "command   chaosgate configs show 'a b'" in said
        and "torch " in said
    )
    form = yaml.safe_load(
        (REPOSITORY / ".github" / "ISSUE_TEMPLATE" / "bug.yaml").read_text(encoding="utf-8")
    )
    assert f"'{form['name']}'" in said


@pytest.mark.slow
def test_the_site_builds_in_strict_mode_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"""<(?:script|img|iframe)[^>]+src=["'](https?:)?//""", text)
        styles = re.findall(
            r"""<link[^>]+rel=["'](?:stylesheet|preconnect|preload)["'][^>]+href=["']https?:""",
            text,
        )
        assert not loaded and not styles, page
        assert 'class="arithmatex"' not in text  # every formula became MathML
