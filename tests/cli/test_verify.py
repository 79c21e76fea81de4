"""``chaosgate verify`` in-process: formats, exit status, strengths; and operators by name."""

import json
from pathlib import Path

import pytest

from chaosgate.cli.commands import main
from chaosgate.cli.flags import parse_operator
from chaosgate.compat.verify import Makers
from chaosgate.gate import Dropout

QUICK = ["verify", "--grid", "2", "4", "--operator", "dirichlet", "--draws", "2048"]


def test_the_table_has_a_line_for_every_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    assert out.count(" pass ") == 25 and "all 25 checks passed" in out
    assert "False-alarm rate of the whole run below 1e-07" in out


def test_a_failure_gives_status_one_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Makers(chaos=lambda **settings: Dropout(0.5))
    monkeypatch.setattr("chaosgate.compat.verify.Makers", lambda: broken)
    assert main(QUICK) == 1
    assert "thm:samplewise_logratio" in capsys.readouterr().out.rsplit("FAILED", 1)[1]


def test_markdown_and_json_are_written_to_files(tmp_path: Path) -> None:
    for kind in ("markdown", "json", "table"):
        assert main([*QUICK, "--format", kind, "--details", "--output", str(tmp_path / kind)]) == 0
    assert (tmp_path / "markdown").read_text().count("| pass |") > 60
    content = json.loads((tmp_path / "json").read_text())
    (only,) = content["subjects"]
    assert content["passed"] is True and only["grid"] == [2, 4]
    assert only["log_std"] == pytest.approx(0.5) and len(only["statements"]) == 25
    assert "all 25 checks passed" in (tmp_path / "table").read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gamma", "0.3"], (0.3, 1.0)),
        (["--gamma", "0.3", "--beta", "2"], (0.3, 2.0)),
        (["--gamma", "0.3", "--epsilon", "16"], (0.3, 0.25)),
    ],
)
def test_strength_is_what_was_asked_for(
    options: list[str], expected: tuple[float, float], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    assert main([*QUICK, *options, "--format", "json", "--output", str(path)]) == 0
    (only,) = json.loads(path.read_text())["subjects"]
    assert (only["gamma"], only["beta"]) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beta", "2"], "--gamma with at most one of"),
        (["--gamma", "1", "--log_std", "1"], "--log_std alone"),
        (["--operator", "dirichle"], "Did you mean 'dirichlet'"),
        (["--draws", "3"], "at least 1024"),
        (["--grid", "7"], "height and width"),
    ],
)
def test_a_mistake_is_explained(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dirichlet", "DirichletLaplacian()"),
        ("massive:mu=2,operator=neumann", "Massive(Neumann(), mu=2.0)"),
        ("chaosgate.field.Massive:mu=0.25", "Massive(DirichletLaplacian(), mu=0.25)"),
        ("chaosgate.field.Periodic", "Periodic()"),
    ],
)
def test_operators_by_name(text: str, expected: str) -> None:
    assert repr(parse_operator(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("massive", "cannot be made.*mu"),
        ("massive:mu=-1", "must be positive"),
        ("massive:mu={", "cannot read"),
        ("nosuchpackage.Operator", "cannot read"),
        ("chaosgate.gate.Dropout", "not a subclass"),
    ],
)
def test_a_wrong_operator_is_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_operator(text)
