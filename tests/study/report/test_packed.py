"""A packed study gives the report of the study it was made from, whatever its files say today."""

import lzma
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from chaosgate.__main__ import main
from chaosgate.study import Run, load_study
from chaosgate.study.report.collect import IMAGES, ROWS, collect, is_packed, load_packed, pack
from chaosgate.study.report.frame import results_of
from chaosgate.study.report.write import report
from tests.study.made import finish, keep
from tests.study.toy_studies import Plan, Write

CELLS = [("clean", 0), ("fog", 1), ("fog", 5)]


@pytest.fixture
def runs(plan: Plan) -> list[Run]:
    """Three seeds of two methods with outputs for every image."""
    runs = plan(seeds=[0, 1, 2])
    generator = np.random.default_rng(0)
    for run in runs:
        confidence = generator.uniform(0.5, 1.0, (3, 100))
        correct, nll = generator.random((3, 100)) < confidence, generator.exponential(1, (3, 100))
        metrics = {"top1": 0.8, "nll": 0.6 + 0.01 * run.seed, "ece": 0.05 + 0.01 * run.seed**2}
        finish(run, {cell: {**metrics, "nll_T": 0.5, "ece_T": 0.04} for cell in CELLS})
        keep(run, CELLS, confidence, correct, nll)
    return runs


def test_report_of_a_packed_study_is_that_of_the_study(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    study = load_study(write_study(seeds=[0, 1, 2]))
    whole = results_of(study, collect(study, runs), runs)
    made = report(study, runs, tmp_path / "there", Console(quiet=True))
    folder = pack(study, runs, tmp_path / "packed")
    shutil.rmtree(runs[0].root)  # nothing of the runs is left
    (study.path.parent / "gch.yaml").unlink()  # nor of what the study names
    assert is_packed(folder) and folder == tmp_path / "packed" / study.name
    assert main(["study", "report", str(folder)]) == 0
    for name in ("table.md", "table.tex"):
        assert (folder / name).read_text() == (made / name).read_text()
    packed = results_of(*load_packed(folder))
    ends = ["lo", "hi", "p"]
    assert packed.frame.drop(columns=ends).equals(whole.frame.drop(columns=ends))
    assert whole.frame.over.str.contains("images").sum() > 20  # correlations have 16 bits
    np.testing.assert_allclose(packed.frame[ends], whole.frame[ends], rtol=1e-3, atol=1e-4)


def test_a_packed_study_is_read_without_this_library(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    import pandas as pd

    folder = pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [IMAGES, ROWS, "small.yaml"]
    lines = pd.read_json(folder / ROWS, lines=True)
    assert lines.variant.tolist() == ["none", "gch"] * 3 and lines.seed.tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert lines.rows[0][0]["nll"] == pytest.approx(0.6)
    with np.load(folder / IMAGES) as images:
        assert {"deviation", "correlation", "floors"} <= set(images.files)


def test_a_packed_study_names_no_place_of_the_machine(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    data = str(tmp_path / "photos")
    named = [replace(run, folders={"CHAOSGATE_PHOTOS": data, "WORD": "run"}) for run in runs]
    for run in named:
        config = run.directory / "config.yaml"
        more = f"\nrun_dir: {run.directory}\nroot: {data}\n"
        config.write_text(config.read_text() + more)
    folder = pack(load_study(write_study(seeds=[0, 1, 2])), named, tmp_path / "packed")
    text = lzma.decompress((folder / ROWS).read_bytes()).decode()
    assert str(tmp_path) not in text and "${CHAOSGATE_PHOTOS}" in text
    assert re.findall(r'"run_dir": "([^"]*)"', text) == [run.training for run in runs]


@pytest.mark.parametrize("name", [ROWS, IMAGES])
def test_a_damaged_file_is_named(
    runs: list[Run],
    write_study: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    folder = pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    assert main(["study", "report", str(folder)]) == 1
    assert re.search(f"{folder.name} is damaged.*pack it again", capsys.readouterr().err)


def test_an_unfinished_study_is_not_packed(
    runs: list[Run], write_study: Write, tmp_path: Path
) -> None:
    shutil.rmtree(runs[0].directory)
    with pytest.raises(ValueError, match="1 of 6 runs of .* are not finished"):
        pack(load_study(write_study(seeds=[0, 1, 2])), runs, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
