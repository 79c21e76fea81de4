"""Rows in a file, and their table on the terminal."""

from pathlib import Path

import pytest

from chaosgate.run.files import RunDirectory
from chaosgate.run.rows import merge_rows, print_results


def row(corruption="clean", severity=0, **more):
    metrics = {"top1": 0.9, "nll": 0.3, "ece": 0.02, "gap": 0.01, "brier": 0.1}
    scaled = {"nll_T": 0.2876, "ece_T": 0.0123, "temperature_split": "validation"}
    about = {"corruption": corruption, "severity": severity, "n": 10, "checkpoint_name": None}
    return {**about, **metrics, **scaled, **more}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_table_shows_means_over_severities_and_says_if_the_temperature_saw_the_test_images(
    split, capsys
):
    cells = [row("contrast", severity, nll=0.3) for severity in range(1, 6)]
    cells += [row("elastic_transform", severity) for severity in range(1, 6)]
    first = row(temperature_split=split)
    print_results([first, {**cells[0], "nll": 0.8}, *cells[1:]], Path("results.jsonl"))
    out = capsys.readouterr().out
    assert "ECE+T" in out and ("fitted on the test images" in out) == (split == "test")
    (line,) = [line for line in out.splitlines() if line.startswith("contrast ")]
    assert line.split()[1:3] == ["0.9000", "0.4000"]
    (mean,) = [line for line in out.splitlines() if line.startswith("mean of corruptions")]
    assert mean.split()[3:5] == ["0.9000", "0.3500"] and max(map(len, out.splitlines())) <= 80


def test_rows_are_replaced_by_cell(tmp_path):
    run = RunDirectory(tmp_path)
    merge_rows(run.results, [row(), row("fog", 1)])
    merge_rows(run.results, [row(nll=9.0)])
    assert [one["nll"] for one in run.rows()] == [0.3, 9.0]
    with open(run.results, "a") as file:
        file.write('{"half a li')
    before = run.results.read_text()
    with pytest.raises(ValueError, match="lines that cannot be read"):
        merge_rows(run.results, [row()])
    assert run.results.read_text() == before
