"""A three-seed study, really run: its table recomputed from the kept outputs by code that shares
nothing with it."""

from typing import Any

import numpy as np
import pytest
import yaml

from chaosgate.__main__ import main
from chaosgate.cli.training import compose
from chaosgate.study import Run, Study, load_study, plan_runs
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import Results, results_of
from tests.study.real_studies import tiny

pytestmark = pytest.mark.slow
SEEDS = (0, 1, 2)
METRICS = ["top1", "nll", "ece", "gap"]
Done = tuple[Study, list[Run], Results]
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("recomputed")
    more = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 40}
    path = tiny(folder, "recomputed", {"none": "noise/none", "gch": "noise/gch"}, **more)
    keys = {"seeds": list(SEEDS), "metrics": METRICS, "ensemble": {"of": "none", "size": 3}}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys, "jobs": 2}))
    assert main(["study", "run", str(path), "--root", str(folder / "runs")]) == 0
    study = load_study(path)
    runs = plan_runs(study, folder / "runs", compose)
    return study, runs, results_of(study, collect(study, runs), runs)


def kept(run: Run) -> Arrays:
    """The one file of a test, images of every cell in the order of their numbers."""
    (path,) = (run.directory / "outputs").glob("*.npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    order = np.lexsort((arrays["index"], arrays["cell"]))
    return {k: v[order] if v.shape[:1] == order.shape else v for k, v in arrays.items()}


def ece(confidence: np.ndarray, correct: np.ndarray) -> float:
    total = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        total += abs(confidence[inside].astype(np.float64).sum() - correct[inside].sum())
    return total / len(confidence)


def by_cell(arrays: Arrays) -> list[tuple[str, dict[str, float]]]:
    """Corruption and metrics of every cell."""
    found = []
    for k, name in enumerate(arrays["corruption"].tolist()):
        own = {
            key: v[arrays["cell"] == k]
            for key, v in arrays.items()
            if len(v) == len(arrays["cell"])
        }
        correct = own["correct"]
        values = {"top1": correct.mean(), "nll": own["nll"].astype(np.float64).mean()}
        values["ece"] = ece(own["confidence"], correct)
        values["gap"] = own["confidence"].astype(np.float64).mean() - correct.mean()
        if "nll_T" in own:
            values["nll_T"] = own["nll_T"].astype(np.float64).mean()
            values["ece_T"] = ece(own["confidence_T"], correct)
        found.append((name, values))
    return found


def columns(arrays: Arrays) -> dict[tuple[str, str], float]:
    """Clean metrics, and corrupted ones as mean over corruptions of the mean over severities."""
    cells = by_cell(arrays)
    ((_, clean),) = [cell for cell in cells if cell[0] == "clean"]
    found = {("clean", metric): value for metric, value in clean.items()}
    names = {name for name, _ in cells} - {"clean"}
    for metric in clean:
        means = [
            np.mean([values[metric] for name, values in cells if name == corruption])
            for corruption in names
        ]
        found["corrupted", metric] = float(np.mean(means))
    return found


def test_table_is_recomputed_from_the_kept_outputs(done: Done) -> None:
    _, runs, results = done
    by_hand = {(run.method, run.seed): columns(kept(run)) for run in runs}
    compared = set()
    for row in results.lines(variants=("none", "gch")).to_dict("records"):
        column = (row["part"], row["metric"])
        if column not in by_hand["none", 0]:
            continue
        values = [by_hand[row["method"], seed][column] for seed in SEEDS]
        assert row["value"] == pytest.approx(np.mean(values), abs=1e-7), column
        assert row["sd"] == pytest.approx(np.std(values, ddof=1), abs=1e-7), column
        if row["method"] == "gch":
            differences = [
                by_hand["gch", seed][column] - by_hand["none", seed][column] for seed in SEEDS
            ]
            assert row["compared_to"] == "none"
            assert row["difference"] == pytest.approx(np.mean(differences), abs=1e-7), column
        compared.add((row["method"], *column))
    assert len(compared) == 2 * 2 * (len(METRICS) + 2)  # both parts, and +T of NLL and ECE


def test_ensemble_is_the_mean_of_the_probabilities_that_its_members_kept(done: Done) -> None:
    _, runs, results = done
    members = [run for run in runs if run.method == "none"]

    each = [kept(run) for run in members]
    exponentials = [np.exp(one["logits"].astype(np.float64)) for one in each]
    probabilities = [one / one.sum(1, keepdims=True) for one in exponentials]
    first, mean = each[0], np.mean(probabilities, axis=0)
    target = first["target"]
    arrays: dict[str, Any] = {name: first[name] for name in ("corruption", "cell", "target")}
    arrays |= {"confidence": mean.max(1).astype(np.float32), "correct": mean.argmax(1) == target}
    arrays |= {"nll": -np.log(mean[np.arange(len(mean)), target]), "logits": np.log(mean)}
    name = "none ensemble x3"
    assert results.rows[name].members == 3 and len(results.rows[name].seeds) == 1
    for column, value in columns(arrays).items():
        assert results.value(name, *column) == pytest.approx(value, abs=1e-7), column
    assert results.value(name, "clean", "nll") < results.value(
        "none", "clean", "nll"
    )  # by convexity
    assert np.isfinite(results.value(name, "clean", "ece_T"))
    assert np.isfinite(results.value(name, "validation", "temperature"))
