"""Every benchmark runs, on little work, and compares like with like."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import alternatives, corruptions, data, field, fit, gate, metrics, study
from benchmarks.__main__ import main

from chaosgate.corruptions import PAPER
from tests.data.photos import write_photo


def test_the_command_prints_a_table_and_writes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        field, "run", lambda threads, repeats: [{"grid": "5x4", "ratio": repeats / 3}]
    )
    main(["field", "--repeats", "1", "--json", str(tmp_path / "rows.json")])
    assert "0.333" in capsys.readouterr().out and "5x4" in (tmp_path / "rows.json").read_text()


def test_field_gate_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = field.run(repeats=1, grids=((5, 4),))
    assert row["ratio"] == row["ours_ms"] / row["scipy_ms"] > 0
    rows = gate.measure_stage("L4", (2, 4, 7, 7), 1)
    assert {"GaussianChaos", "broadcast multiply"} <= {row["what"] for row in rows}
    monkeypatch.setattr(metrics, "CLASSES", 10)
    monkeypatch.setattr(metrics, "SAMPLES", 500)
    assert all(row["ratio"] > 0 for row in metrics.run(repeats=1))


def test_corruptions() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    rows = corruptions.run(repeats=1, images=[picture])
    assert [row["corruption"] for row in rows] == [*PAPER, "sum"]
    assert all(row["ratio"] == row["reference_ms"] / row["ours_ms"] for row in rows)


def test_every_shipped_alternative_has_a_row() -> None:
    rows = alternatives.run(repeats=1, batch=4, side=32)
    folder = Path(__file__).parents[1] / "configs" / "alternative"
    shipped = {path.stem for path in folder.glob("*.yaml")}
    steps = {row["what"] for row in rows if row["of"] == "training step"}
    assert shipped - {"swa"} <= steps


def test_data_compares_the_same_pixels_of_unchanged_photographs(tmp_path: Path) -> None:
    write_photo(tmp_path / "a" / "one.JPEG", 1, size=(300, 260))
    quick = {
        "repeats": 1,
        "images_per_cell": 2,
        "workers": 0,
        "corruptions": ["pixelate", "contrast"],
    }
    rows = {row["what"]: row for row in data.run(**quick, folder=str(tmp_path))}
    assert all(row["ratio"] == row["reference_ms"] / row["ours_ms"] > 0 for row in rows.values())
    assert rows["eval transform"]["within_1"] > 0.99 and rows["eval transform"]["pil_equal"]
    assert rows["train transform"]["photographs"] == "one.JPEG 300x260"


@pytest.mark.slow
@pytest.mark.parametrize("case", fit.CASES)
def test_fit_and_the_plain_loop_train_the_same_network(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOSGATE_ALLOW", "benchmarks")
    more = ("--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1")
    (row,) = fit.run(repeats=1, cases=[case], more=(*more, "--data.batch_size=4"))
    assert row["same_weights"] is True and 0 < row["smallest"] <= row["throughput"]


@pytest.mark.slow
def test_a_study_and_the_loop_give_the_same_rows() -> None:
    (row,) = study.run(repeats=2, folders=False)
    assert row["same_rows"] is True and row["study_s"] > 0 < row["loop_s"]
