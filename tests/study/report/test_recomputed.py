"""A three-seed study, really run: its table recomputed from the kept outputs by code that shares
nothing with it."""

import numpy as np
import pytest
import yaml

from chaosgate.__main__ import main
from chaosgate.study import Run, load_study
from chaosgate.study.report.collect import collect
from chaosgate.study.report.frame import Results, results_of
from tests.study.real_studies import runs_of, tiny

pytestmark = pytest.mark.slow
METRICS = ["top1", "nll", "ece", "gap"]
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Run], Results]:
    folder = tmp_path_factory.mktemp("recomputed")
    more = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 40}
    path = tiny(folder, "recomputed", {"none": "noise/none", "gch": "noise/gch"}, **more)
    keys = {"seeds": [0, 1, 2], "metrics": METRICS, "ensemble": {"of": "none", "size": 3}}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys, "jobs": 2}))
    assert main(["study", "run", str(path), "--root", str(folder)]) == 0
    study, runs = load_study(path), runs_of(path)
    return runs, results_of(study, collect(study, runs), runs)


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


def columns(arrays: Arrays) -> dict[tuple[str, str], float]:
    """Clean metrics, and corrupted ones as mean over corruptions of the mean over severities."""
    found: dict[str, list[dict[str, float]]] = {}
    for k, name in enumerate(arrays["corruption"].tolist()):
        inside = arrays["cell"] == k
        own = {key: v[inside] for key, v in arrays.items() if v.shape[:1] == inside.shape}
        values = {"top1": own["correct"].mean()}
        for suffix in ("", "_T") if "nll_T" in own else ("",):
            values[f"nll{suffix}"] = own[f"nll{suffix}"].astype(np.float64).mean()
            values[f"ece{suffix}"] = ece(own[f"confidence{suffix}"], own["correct"])
        values["gap"] = own["confidence"].astype(np.float64).mean() - values["top1"]
        found.setdefault(name, []).append(values)
    (clean,) = found.pop("clean")
    by_name = [{m: np.mean([one[m] for one in own]) for m in clean} for own in found.values()]
    corrupted = {("corrupted", m): float(np.mean([one[m] for one in by_name])) for m in clean}
    return {("clean", metric): value for metric, value in clean.items()} | corrupted


def test_table_is_recomputed_from_the_kept_outputs(done: tuple[list[Run], Results]) -> None:
    runs, results = done
    by_hand = {(run.method, run.seed): columns(kept(run)) for run in runs}
    compared = set()
    for row in results.lines(variants=("none", "gch")).to_dict("records"):
        column = (row["part"], row["metric"])
        if column in by_hand["none", 0]:
            values = np.array([by_hand[row["method"], seed][column] for seed in range(3)])
            assert row["value"] == pytest.approx(values.mean(), abs=1e-7), column
            assert row["sd"] == pytest.approx(values.std(ddof=1), abs=1e-7), column
            if row["method"] == "gch":
                change = values - [by_hand["none", seed][column] for seed in range(3)]
                assert row["difference"] == pytest.approx(change.mean(), abs=1e-7), column
            compared.add((row["method"], *column))
    assert len(compared) == 2 * 2 * (len(METRICS) + 2)  # both parts, and +T of NLL and ECE


def test_ensemble_is_the_mean_of_the_probabilities_that_its_members_kept(
    done: tuple[list[Run], Results],
) -> None:
    runs, results = done
    each = [kept(run) for run in runs if run.method == "none"]
    exponentials = [np.exp(one["logits"].astype(np.float64)) for one in each]
    mean = np.mean([one / one.sum(1, keepdims=True) for one in exponentials], axis=0)
    arrays = {name: each[0][name] for name in ("corruption", "cell", "target")}
    arrays |= {"confidence": mean.max(1).astype(np.float32)}
    arrays |= {"correct": mean.argmax(1) == arrays["target"]}
    arrays |= {"nll": -np.log(mean[np.arange(len(mean)), arrays["target"]])}
    name = "none ensemble x3"
    assert results.rows[name].members == 3 and len(results.rows[name].seeds) == 1
    for column, value in columns(arrays).items():
        assert results.value(name, *column) == pytest.approx(value, abs=1e-7), column
    nll = [results.value(one, "clean", "nll") for one in (name, "none")]
    assert nll[0] < nll[1]  # by convexity
    assert np.isfinite(results.value(name, "clean", "ece_T"))
    assert np.isfinite(results.value(name, "validation", "temperature"))
