"""Advice from a baseline: constructed values, the calibration, and a run."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import chaosgate as cg
from chaosgate.compat.advice import TABLE
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("train", "use", "outside"),
    [(0.05, True, False), (0.55, None, False), (0.8, False, False), (1.2, False, True)],
)
def test_advice_follows_the_over_fitting(train, use, outside):
    table = json.loads(TABLE.read_text())
    found = cg.advise(train, 1.0)
    assert found.r == pytest.approx(1 - train) and found.r_interval == (found.r, found.r)
    assert found.change == pytest.approx(table["intercept"] + table["slope"] * found.r)
    assert found.use is use and found.outside is outside
    assert ("do not rely on this" in str(found)) is outside
    away = [abs(np.mean(one["r"]) - found.r) for one in table["settings"].values()]
    assert found.distance == pytest.approx(min(away)) and found.nearest in str(found)


def test_the_interval_of_r_is_that_of_the_ratio_of_means():
    dice = np.random.default_rng(0)
    train, val = dice.exponential(0.3, 2000), dice.exponential(1.0, 800)
    found = cg.advise(train, val)
    again = [
        1 - dice.choice(train, 2000).mean() / dice.choice(val, 800).mean() for _ in range(2000)
    ]
    half = (found.r_interval[1] - found.r_interval[0]) / 2
    assert half == pytest.approx(1.96 * np.std(again), rel=0.05)
    assert np.subtract(*found.interval) < np.subtract(*cg.advise(0.3, 1.0).interval)  # wider


def test_the_calibration_is_what_the_script_makes_of_the_kept_rows():
    path = REPOSITORY / "scripts" / "calibrate_advice.py"
    spec = importlib.util.spec_from_file_location("calibrate_advice", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    table = json.loads(TABLE.read_text())
    assert script.pairs() == table["settings"]
    assert script.line(list(table["settings"].values())) == pytest.approx(
        [table["slope"], table["intercept"]], abs=1e-4
    )


def test_a_run_gets_its_advice(command, configs):
    small = ("--model.backbone_args={channels: [4, 4, 8, 8]}", "--trainer.max_epochs=1")
    small += ("--data.init_args.per_class={train: 20, val: 20}",)
    for noise in ("none", "gch"):
        files = configs("base", "data/fashion_mnist", f"noise/{noise}")
        assert command("fit", *files, *small, f"--run_dir={noise}")[0] == 0
    status, out, err = command("advise", "none")
    assert status == 0 and "without noise" in out, err
    (curve,) = Path("none/curves.jsonl").read_text().splitlines()
    assert f"validation NLL {json.loads(curve)['val/nll']:.3f}" in out
    status, _, err = command("advise", "gch")
    assert status == 1 and "was trained with noise" in err
