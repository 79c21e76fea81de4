"""``chaosgate design`` and ``verify`` in-process: cards, marks of the desiderata, tables."""

from pathlib import Path

import pytest

from chaosgate.__main__ import main
from chaosgate.cli.gates import parse_operator
from chaosgate.compat.desiderata_matrix import COLUMNS, cell, desiderata_matrix

PAGE = Path(__file__).parents[2] / "docs" / "desiderata.md"
MARKS = {  # D1, D2, D3 per site, D3 per sample, D4, D5
    "none": "✗✓✓✓✗✗",
    "dropout": "✗✗✓✗✗✗",
    "dropout_element": "✗✗✓✗✗✗",
    "dropblock": "✗✗✓✗✗✗",
    "iid_gaussian": "✗✗✓✗✗✓",
    "correlated_gaussian": "✓✗✓✗✓✓",
    "signed_correlated": "✓✗✓✗✓✓",
    "iid_lognormal": "✗✓✓✗✗✓",
    "gch_wick": "✓✓✓✗✓✓",
    "gch": "✓✓✗✓✓✓",
}


@pytest.mark.statistical
def test_only_gaussian_chaos_meets_all_desiderata_here_and_on_the_committed_page():
    rows = desiderata_matrix((7, 7), log_std=0.5, draws=1 << 17)
    marks = {row.name: "".join(cell(column, row)[0] for column in COLUMNS) for row in rows}
    assert marks == MARKS
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "✓" in line]
    shown = {line[2:].partition(" | ")[0]: "".join(c for c in line if c in "✓✗") for line in lines}
    assert shown == MARKS


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], ["prop. maxent_logfield", "log_std 1,", "entropy 62.087"]),
        (["chaosgate.field.Matern:length=2"], ["K / beta with K = Matern(length=2.0"]),
        (["neumann", "--gauge", "pinned"], ["Pinned(Neumann(), site=(0, 0))"]),
    ],
)
def test_a_gate_is_derived(words, facts, capsys):
    assert main(["design", *(["--operator"] if words else []), *words]) == 0
    card = capsys.readouterr().out
    assert all(fact in card for fact in facts)


def test_verify_prints_a_table(capsys):
    assert main("verify --grid 2 4 --draws 2048 --log_std 0.3".split()) == 0
    out = capsys.readouterr().out
    assert out.count(" pass") > 30 and "FAIL" not in out and "log_std=0.3" in out


def test_operators_by_name_and_by_path():
    for text, expected in {
        "dirichlet": "DirichletLaplacian()",
        "massive:mu=2": "Massive(DirichletLaplacian(), mu=2.0)",
        "chaosgate.field.Anisotropic:vertical=2,horizontal=1": "Anisotropic(vertical=2.0, horizontal=1.0)",
    }.items():
        assert repr(parse_operator(text)) == expected
