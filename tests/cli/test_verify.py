"""``chaosgate verify`` in-process: formats, exit status, strengths; and operators by name."""

import json

import pytest

from chaosgate.cli.commands import main
from chaosgate.cli.gates import parse_operator
from chaosgate.compat.verify import Check

QUICK = ["verify", "--grid", "2", "4", "--operator", "dirichlet", "--draws", "2048"]


def test_the_table_has_a_row_for_every_statement(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    assert out.count(" pass") > 30 and "FAIL" not in out and "cor. green_forcing" in out


def test_a_failure_gives_status_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [Check("a statement", 0.0, 1.0, 0.1)]
    monkeypatch.setattr("chaosgate.compat.verify.verify", lambda *given: failed)
    assert main(QUICK) == 1
    assert "FAIL" in capsys.readouterr().out


def test_json_has_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--log_std", "0.3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(row["passed"] for row in rows) and "log_std=0.3" in rows[0]["gate"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--operator", "dirichle"], "Did you mean 'dirichlet'"),
        (["--draws", "3"], "1024 draws"),
        (["--grid", "3"], "four sites"),
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
        ("massive", "required: mu"),
        ("massive:mu=-1", "must be positive"),
        ("massive:mu={", "NAME=VALUE"),
        ("nosuchpackage.Operator", "not allowed"),
        ("chaosgate.gate.Dropout", "subclass of Operator"),
    ],
)
def test_a_wrong_operator_is_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_operator(text)
