"""Every benchmark runs, on little work, and compares like with like."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import alternatives, corruptions, data, field, fit, gate, metrics, study

from chaosgate.corruptions import PAPER


def test_field_gate_metrics_and_corruptions(monkeypatch):
    rows = gate.measure_stage("L4", (2, 4, 7, 7), 1)
    assert {"GaussianChaos", "broadcast multiply"} <= {row["what"] for row in rows}
    monkeypatch.setattr(metrics, "CLASSES", 10)
    monkeypatch.setattr(metrics, "SAMPLES", 500)
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    found = corruptions.run(repeats=1, images=[picture])
    assert [row["what"] for row in found] == [*PAPER, "sum"]
    for row in [*field.run(repeats=1, grids=((5, 4),)), *metrics.run(repeats=1), *found]:
        assert row["ratio"] == row["reference_ms"] / row["ours_ms"] > 0


def test_every_shipped_alternative_has_a_row():
    rows = alternatives.run(repeats=1, batch=4, side=32)
    folder = Path(__file__).parents[1] / "configs" / "alternative"
    shipped = {path.stem for path in folder.glob("*.yaml")}
    steps = {row["what"] for row in rows if row["of"] == "training step"}
    assert shipped - {"swa"} <= steps


def test_data_compares_the_same_pixels():
    _, evaluation = data.run(repeats=1)
    assert evaluation["within_1"] > 0.99


@pytest.mark.slow
def test_fit_and_the_plain_loop_train_the_same_network(monkeypatch):
    monkeypatch.setenv("CHAOSGATE_ALLOW", "benchmarks")
    (row,) = fit.run(repeats=1, more="--trainer.limit_train_batches=2")
    assert row["same_weights"] is True and 0 < row["smallest"] <= row["throughput"]


@pytest.mark.slow
def test_a_study_and_the_loop_give_the_same_rows():
    (row,) = study.run(repeats=2)
    assert row["same_rows"] is True and row["study_s"] > 0 < row["loop_s"]
