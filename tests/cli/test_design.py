"""``chaosgate design`` in-process: cards, refusals, the matrix and the committed page."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaosgate.cli.commands import main
from chaosgate.compat.desiderata_matrix import (
    COLUMNS,
    GateMeasurement,
    as_markdown,
    cell,
    desiderata_matrix,
)

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


@pytest.fixture(scope="module")
def rows() -> list[GateMeasurement]:
    return desiderata_matrix((7, 7), log_std=0.5, draws=1 << 17)


def marks(row: GateMeasurement) -> str:
    return "".join(cell(column, row)[0] for column in COLUMNS)


@pytest.mark.statistical
def test_only_gaussian_chaos_meets_all_desiderata_per_site_or_per_sample(
    rows: list[GateMeasurement],
) -> None:
    assert {row.name: marks(row) for row in rows} == MARKS


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"entropy_gap": 2e-6}, 0),
        ({"not_positive": 1e-5}, 1),
        ({"site_bias": 0.0051, "site_error": 0.001}, 2),
        ({"sample_bias": 2e-5}, 3),
        ({"roughness": 1.0}, 4),
        ({"roughness": float("nan")}, 4),
        ({"smallest_eigenvalue": 0.0}, 5),
        ({"smallest_eigenvalue": float("nan")}, 5),
    ],
)
def test_a_mark_follows_from_its_number_alone(change: dict[str, float], column: int) -> None:
    good = GateMeasurement("x", "x", 0.0, 0.0, 0.0049, 0.001, 0.0, 0.5, 0.1)
    assert marks(good) == "✓" * 6
    assert marks(replace(good, **change)) == "✓" * column + "✗" + "✓" * (5 - column)  # type: ignore[arg-type]


def _number(text: str) -> float:
    return float("nan") if text[2:] == "none" else float(text[2:])


def test_the_committed_page_has_these_marks_and_they_follow_from_the_numbers_shown() -> None:
    shown = [
        line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "✓" in line
    ]
    found = {
        cells[0].removeprefix("| "): [text.strip(" |") for text in cells[1:]] for cells in shown
    }
    assert {name: "".join(text[0] for text in cells) for name, cells in found.items()} == MARKS
    for cells in found.values():  # the rules again, on the numbers as printed
        gap, below, (bias, error), drift, rough, smallest = (
            tuple(float(word) for word in text[2:].split(" ± ")) if "±" in text else _number(text)
            for text in cells
        )
        holds = (
            gap < 1e-6,
            below == 0,
            bias <= 5.3 * error,
            drift < 1e-5,
            rough < 0.99,
            smallest > 0,
        )  # rounded error
        assert "".join("✓" if ok else "✗" for ok in holds) == "".join(text[0] for text in cells)


def test_markdown_shows_every_cell(rows: list[GateMeasurement]) -> None:
    text = as_markdown(rows, (7, 7), 0.5)
    pages = (text, PAGE.read_text(encoding="utf-8"))
    words = [
        [line for line in page.splitlines() if not line.startswith(("|", "- `"))] for page in pages
    ]
    assert words[0] == words[1]  # the committed page says the same around its numbers
    assert all(cell(column, row) in text for row in rows for column in COLUMNS)


def test_the_card_of_the_paper_s_gate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design"]) == 0
    plain = capsys.readouterr().out
    assert "prop. maxent_logfield" in plain and "log_std 1," in plain and "entropy 62.087" in plain


def test_kernel_and_pinned_gauge_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", "--operator", "chaosgate.field.Matern:length=2"]) == 0
    assert "K / beta with K = Matern(length=2.0" in capsys.readouterr().out
    assert main(["design", "--operator", "neumann", "--gauge", "pinned"]) == 0
    assert "Pinned(Neumann(), site=[0, 0])" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--operator", "neumann"], "D5 is missing"),
        (["--budget", "3"], "log_std and budget exclude each other"),
    ],
)
def test_what_cannot_be_designed_is_refused_with_the_reason(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["design", *words]) == 1
    assert message in capsys.readouterr().err
