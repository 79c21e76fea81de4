"""``chaosgate verify`` in-process: formats, exit status, options."""

import json
from pathlib import Path

import pytest

from chaosgate.cli.flags import parse_operator
from chaosgate.cli.verify import main
from chaosgate.compat.verify import Makers
from chaosgate.gate import Dropout, Gate

QUICK = ["verify", "--grid", "2", "4", "--operator", "dirichlet", "--draws", "2048"]


def no_gate(**settings: object) -> Gate:
    return Dropout(0.5)


def test_the_table_has_a_line_for_every_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    assert out.count(" pass ") == 25 and "all 25 checks passed" in out
    assert "False-alarm rate of the whole run below 1e-07" in out
    lines = [line for line in out.splitlines() if line.lstrip().startswith(("prop:", "thm:", "cor:", "eq:", "rem:"))]
    assert len(lines) == 25


def test_a_failure_gives_status_one_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK, Makers(chaos=no_gate)) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "thm:samplewise_logratio" in out.rsplit("FAILED", 1)[1]


def test_details_show_more_than_one_comparison_per_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--details"]) == 0
    assert capsys.readouterr().out.count(" pass ") > 60


def test_markdown_json_and_html_are_written_to_files(tmp_path: Path) -> None:
    for kind in ("markdown", "json", "html", "table"):
        assert main([*QUICK, "--format", kind, "--output", str(tmp_path / "new" / kind)]) == 0
    markdown = (tmp_path / "new" / "markdown").read_text()
    assert markdown.count("| pass |") == 25 and "`prop:maxent_logfield`" in markdown
    widths = {line.replace("\\|", "").count("|") for line in markdown.splitlines() if line.startswith("|")}
    assert widths == {9}
    content = json.loads((tmp_path / "new" / "json").read_text())
    assert content["passed"] is True and content["false_alarm"] == 1e-7
    (only,) = content["subjects"]
    assert only["grid"] == [2, 4] and only["log_std"] == pytest.approx(0.5) and len(only["statements"]) == 25
    page = (tmp_path / "new" / "html").read_text()
    assert page.count('<td class="pass">') == 25 and "<script" not in page
    assert "all 25 checks passed" in (tmp_path / "new" / "table").read_text()


def test_a_failing_run_is_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "failed.json"
    assert main([*QUICK, "--format", "json", "--output", str(path)], Makers(chaos=no_gate)) == 1
    assert json.loads(path.read_text())["passed"] is False


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gamma", "0.3"], (0.3, 1.0)),
        (["--gamma", "0.3", "--beta", "2"], (0.3, 2.0)),
        (["--gamma", "0.3", "--epsilon", "16"], (0.3, 0.25)),
    ],
)
def test_strength_is_what_was_asked_for(options: list[str], expected: tuple[float, float], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert main([*QUICK, *options, "--format", "json", "--output", str(path)]) == 0
    (only,) = json.loads(path.read_text())["subjects"]
    assert (only["gamma"], only["beta"]) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beta", "2"], "go with --gamma"),
        (["--operator", "dirichle"], "Did you mean 'dirichlet'"),
        (["--grid", "0", "4"], "positive whole numbers"),
        (["--draws", "3"], "below 1024"),
        (["--log-std", "0"], "needs a strength"),
        (["--gamma", "1", "--log-std", "1"], "not allowed with"),
        (["--grid", "7"], "expected 2 arguments"),
    ],
)
def test_a_mistake_is_explained_with_status_two(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *options]) == 2
    assert message in capsys.readouterr().err


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--help"]) == 0
    out = capsys.readouterr().out
    assert "25 statements" in out and "massive:mu=0.1" in out and "exit status" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dirichlet", "DirichletLaplacian()"),
        ("massive:mu=2,operator=neumann", "Massive(Neumann(), mu=2.0)"),
        ("massive:operator=anisotropic", None),
        ("chaosgate.field.Massive:mu=0.25", "Massive(DirichletLaplacian(), mu=0.25)"),
        ("chaosgate.field.Periodic", "Periodic()"),
    ],
)
def test_operators_are_said_in_a_word(text: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="cannot be made"):
            parse_operator(text)
    else:
        assert repr(parse_operator(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("massive", "cannot be made.*mu"),
        ("massive:mu", "cannot read the arguments"),
        ("massive:mu=-1", "must be positive"),
        ("nosuchpackage.Operator", "no operator class"),
        ("chaosgate.gate.Dropout", "not a subclass"),
    ],
)
def test_what_is_wrong_with_an_operator_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_operator(text)
