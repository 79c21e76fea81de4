"""A packed study gives the report of the study it was made from, also after its files are gone."""

import lzma
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from chaosgate.__main__ import main
from chaosgate.study import Run, Study, load_study
from chaosgate.study.execute.state import record_of, write_record
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import results_of
from chaosgate.study.report.names import ROWS
from chaosgate.study.report.packed import IMAGES, load_packed, pack
from chaosgate.study.report.write import report
from tests.study.made import finish, keep
from tests.study.toy_studies import Plan, Write

CELLS = [("clean", 0), ("fog", 1), ("fog", 5)]
Made = tuple[Study, list[Run], Callable[[], Path]]


@pytest.fixture
def made(plan: Plan, write_study: Write, tmp_path: Path) -> Made:
    """Three seeds of two methods with outputs for every image; and a function that packs them."""
    runs = plan(seeds=[0, 1, 2])
    generator = np.random.default_rng(0)
    for run in runs:
        confidence = generator.uniform(0.5, 1.0, (3, 100))
        correct, nll = generator.random((3, 100)) < confidence, generator.exponential(1, (3, 100))
        metrics = {"top1": 0.8, "nll": 0.6 + 0.01 * run.seed, "ece": 0.05 + 0.01 * run.seed**2}
        finish(run, {cell: {**metrics, "nll_T": 0.5, "ece_T": 0.04} for cell in CELLS})
        keep(run, CELLS, confidence, correct, nll)
    study = load_study(write_study(seeds=[0, 1, 2]))
    return study, runs, lambda: pack(study, runs, tmp_path / "packed")


def test_report_of_a_packed_study_is_that_of_the_study(made: Made, tmp_path: Path) -> None:
    (study, runs, packed), there = made, tmp_path / "there"
    whole = results_of(study, collect(study, runs), runs).frame
    report(study, collect(study, runs), there, Console(quiet=True), runs)
    folder = packed()
    shutil.rmtree(runs[0].root)  # nothing of the runs is left
    with pytest.raises(ValueError, match="6 of 6 runs of .* are not finished"):
        pack(study, runs, tmp_path / "nothing")
    (study.path.parent / "gch.yaml").unlink()  # nor of the files that the study names
    assert sorted(path.name for path in folder.iterdir()) == [IMAGES, ROWS, "small.yaml"]
    assert main(["study", "report", str(folder)]) == 0
    for name in ("table.md", "table.tex"):
        assert (folder / name).read_text() == (there / name).read_text()
    frame, ends = results_of(*load_packed(folder)).frame, ["lo", "hi", "p"]
    assert frame.drop(columns=ends).equals(whole.drop(columns=ends))
    assert whole.over.str.contains("images").sum() > 20  # correlations have 16 bits
    np.testing.assert_allclose(frame[ends], whole[ends], rtol=1e-3, atol=1e-4)


def test_a_packed_study_names_no_place_of_the_machine(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, (_, runs, packed) = str(tmp_path / "photos"), made
    monkeypatch.setenv("CHAOSGATE_PHOTOS", data)
    monkeypatch.setenv("CHAOSGATE_WORD", "run")
    for run in runs:
        with open(run.directory / "config.yaml", "a") as file:
            file.write(f"\nrun_dir: {run.directory}\nroot: {data}\n")
        for test, outputs in run.test_outputs.items():
            write_record(run.directory, test, record_of(run.directory, test)["rows"], outputs)
    text = lzma.decompress((packed() / ROWS).read_bytes()).decode()
    assert str(tmp_path) not in text and "${CHAOSGATE_PHOTOS}" in text
    assert re.findall(r'"run_dir": "([^"]*)"', text) == [run.training for run in runs]


@pytest.mark.parametrize("name", [ROWS, IMAGES])
def test_a_damaged_file_is_named(made: Made, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = made[2]() / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert main(["study", "report", str(path.parent)]) == 1
    assert re.search("small is damaged.*pack it again", capsys.readouterr().err)
