"""``chaosgate verify`` in-process: formats, exit status, options."""

import json
from pathlib import Path

import pytest

from chaosgate.cli import verify as cli_verify
from chaosgate.cli.flags import parse_operator
from chaosgate.cli.verify import main
from chaosgate.compat.verify import Check

QUICK = ["verify", "--grid", "2", "4", "--operator", "dirichlet", "--draws", "2048"]


def test_the_table_has_a_row_for_every_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    assert out.count(" pass") > 30 and "FAIL" not in out and "cor. green_forcing" in out


def test_a_failure_gives_status_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli_verify, "verify", lambda *given: [Check("a statement", 0.0, 1.0, 0.1)])
    assert main(QUICK) == 1
    assert "FAIL" in capsys.readouterr().out


def test_markdown_and_json_are_written_to_files(tmp_path: Path) -> None:
    for kind in ("markdown", "json", "table"):
        strength, output = ["--gamma", "0.3", "--beta", "2"], str(tmp_path / "new" / kind)
        assert main([*QUICK, *strength, "--format", kind, "--output", output]) == 0
    assert (tmp_path / "new" / "markdown").read_text().count("| pass |") > 30
    content = json.loads((tmp_path / "new" / "json").read_text())
    assert content["passed"] is True and "gamma 0.3, beta 2" in content["rows"][0]["gate"]
    assert "pass" in (tmp_path / "new" / "table").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beta", "2"], "go with --gamma"),
        (["--operator", "dirichle"], "Did you mean 'dirichlet'"),
        (["--grid", "0", "4"], "positive whole numbers"),
        (["--draws", "3"], "1024 draws"),
        (["--log-std", "0"], "log-std"),
        (["--gamma", "1", "--log-std", "1"], "not allowed with"),
        (["--grid", "3"], "four sites"),
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
    assert "massive:mu=0.1" in out and "exit status" in out


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
