"""The torchmetrics classes: against references, over batches, casts, padding and bad input."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from chaosgate.metrics import (
    BrierScore,
    CalibrationError,
    CellMetrics,
    calibration_error,
)
from tests.metrics import reference


def batch(seed, n=400, classes=10):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, classes, generator=generator)
    other = torch.randint(0, classes, (n,), generator=generator)
    return logits, torch.where(torch.rand(n, generator=generator) < 0.5, logits.argmax(1), other)


def assert_same(ours, theirs):
    torch.testing.assert_close(dict(ours), dict(theirs), rtol=0, atol=1e-12, equal_nan=True)


def test_random_cases_agree_with_the_plain_reference():
    random = np.random.default_rng(0)
    for case in range(500):
        n, classes, num_bins = (int(random.integers(*ends)) for ends in ((1, 40), (2, 12), (1, 31)))
        # From nearly uniform to saturated: confidence exactly 1.
        logits = 10 ** random.uniform(-2, 4) * random.standard_normal((n, classes))
        if case % 3 == 0:
            logits = logits.astype(np.float32).astype(np.float64)
        if case % 4 == 0:
            logits = np.round(logits)  # ties
        target = random.integers(0, classes, n)
        metric = CellMetrics(num_bins=num_bins)
        metric.update(torch.from_numpy(logits), torch.from_numpy(target))
        ours = metric.compute()
        for name, value in reference.all_metrics(logits, target, num_bins).items():
            tolerance = 1e-12 * max(1.0, abs(value))
            expected = pytest.approx(value, abs=tolerance, nan_ok=True)
            assert float(ours[name]) == expected, (case, name)


def test_the_last_bin_contains_one():
    # torchmetrics#3510: an extra bin for exactly 1 would give (|1 - 0| + |.95 - 1|) / 2 = .525.
    metric = CalibrationError()
    metric.update(torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0]))
    assert float(metric.compute()) == pytest.approx(0.475, abs=1e-7)


def test_cells_are_counted_separately_and_like_single_metrics():
    logits, target = batch(1)
    cell = torch.arange(400) % 3
    together = CellMetrics(num_cells=4, num_bins=7, adaptive_bins=5)
    together.update(logits, target, cell)
    result = together.compute()
    for c in range(3):
        alone = CellMetrics(num_bins=7, adaptive_bins=5)
        alone.update(logits[cell == c], target[cell == c])
        assert_same({name: value[c] for name, value in result.items()}, alone.compute())
    assert result["n"][3] == 0
    assert all(value[3].isnan() for name, value in result.items() if name != "n")
    assert torch.equal(calibration_error(together.reliability())[:3], result["ece"][:3])


def test_padding_does_not_count_whatever_it_holds():
    logits, target = batch(3, n=50)
    cell = torch.arange(50) % 2
    plain, padded = CellMetrics(2, adaptive_bins=5), CellMetrics(2, adaptive_bins=5)
    plain.update(logits, target, cell)
    junk = torch.tensor([[math.nan] * 10, [math.inf] * 10, [0.0] * 10])
    padded.update(
        torch.cat((junk, logits)),
        torch.cat((torch.tensor([-1, 99, 0]), target)),
        torch.cat((torch.tensor([-1, 7, 0]), cell)),
        torch.arange(53) >= 3,
    )
    assert_same(padded.compute(), plain.compute())


def test_casts_pickles_and_reset_do_not_change_the_totals():
    """Why sums are integers: float states would be cast by ``precision="bf16-true"``."""
    logits, target = batch(4)
    metric, expected = CellMetrics(adaptive_bins=15), CellMetrics(adaptive_bins=15)
    expected.update(logits, target)
    first = metric(logits[:300].requires_grad_(), target[:300])
    assert first["n"] == 300 and not first["nll"].requires_grad
    metric = pickle.loads(pickle.dumps(metric))
    torch.nn.ModuleDict({"metric": metric}).to(torch.bfloat16)
    metric.update(logits[300:], target[300:])
    assert_same(metric.compute(), expected.compute())
    metric.reset()
    metric.update(logits[:300], target[:300])
    assert_same(metric.compute(), first)


def test_update_never_waits_for_the_device():
    metric = CellMetrics(num_cells=3, adaptive_bins=15, validate_args=False).to("meta")
    index = torch.empty(8, dtype=torch.long, device="meta")  # asking for a value raises
    logits = torch.empty(8, 10, device="meta")
    metric.update(logits, index, index, torch.empty(8, dtype=torch.bool, device="meta"))
    assert metric.sums.device.type == "meta"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_logits_make_their_cell_nan_and_no_other(bad):
    logits, target = batch(5, n=20)
    logits[3, 2] = bad
    metric = CellMetrics(num_cells=2, adaptive_bins=5)
    metric.update(logits, target, (torch.arange(20) >= 10).long())
    result = metric.compute()
    assert result.pop("n").tolist() == [10, 10]
    for name, value in result.items():
        assert value.isnan().tolist() == [True, False], name


@pytest.mark.parametrize(("scale", "num_bins"), [(0.0, 10), (0.1, 10), (2.0, 1), (50.0, 10)])
def test_brier_terms_agree_with_their_definition_and_add_up(scale, num_bins):
    generator = torch.Generator().manual_seed(1)
    probs = (scale * torch.randn(300, 4, generator=generator, dtype=torch.float64)).softmax(1)
    target = torch.multinomial(probs.sqrt(), 1, generator=generator).squeeze(1)
    metric = BrierScore(4, num_bins)
    metric.update(probs, target)
    found = metric.decomposition()
    p, y = probs.flatten().numpy(), np.eye(4)[target.numpy()].flatten()
    bins = np.ceil(p * num_bins).clip(1)  # (a, b], the first one with 0
    cases = pd.DataFrame({"k": np.tile(range(4), 300), "bin": bins, "p": p, "y": y})
    mean, rate = (
        cases.groupby(["k", "bin"]).transform("mean"),
        cases.groupby("k").y.transform("mean"),
    )
    expected = {
        "score": (p - y) ** 2,
        "reliability": (mean.p - mean.y) ** 2,
        "resolution": (mean.y - rate) ** 2,
        "uncertainty": rate * (1 - rate),
        "within_variance": (p - mean.p) ** 2,
        "within_covariance": 2 * (p - mean.p) * (y - mean.y),
    }
    for name, terms in expected.items():
        assert float(getattr(found, name)) == pytest.approx(terms.sum() / 300, abs=1e-13), name
    assert float(metric.compute()) == float(found.score)
    _, reliability, resolution, uncertainty, variance, covariance = map(float, found)
    total = reliability - resolution + uncertainty + variance - covariance
    assert total == pytest.approx(float(found.score), abs=1e-13)


@pytest.mark.parametrize("make", [CalibrationError, lambda: BrierScore(2)])
def test_anything_but_probabilities_is_refused(make):
    for row in ([0.2, 0.7], [2.0, -1.0], [math.nan, 1.0]):
        with pytest.raises(ValueError, match=r"row 1 is not a probability distribution.*softmax"):
            make().update(torch.tensor([[0.5, 0.5], row]), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="sample 1 has target 2"):
        make().update(torch.full((2, 2), 0.5), torch.tensor([0, 2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_softmax_of_a_thousand_classes_passes_in_every_precision(dtype):
    logits = 3 * torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    metric = CalibrationError()
    metric.update(logits.to(dtype).softmax(1), torch.zeros(64, dtype=torch.long))
    assert metric.compute().isfinite()


def test_bad_input_is_refused():
    metric = CellMetrics(num_cells=2)
    for target, cell, message in ((10, 0, "target 10"), (-1, 0, "target -1"), (0, 2, "cell 2")):
        with pytest.raises(ValueError, match=message):
            metric.update(torch.zeros(1, 10), torch.tensor([target]), torch.tensor([cell]))
    for logits in (torch.zeros(2, 2), torch.zeros(3, 2).long()):
        with pytest.raises(ValueError, match=r"logits must be floating-point \(B, K\)"):
            metric.update(logits, torch.zeros(3, dtype=torch.long))
    assert metric.compute()["n"].sum() == 0
    with pytest.raises(ValueError, match="2 classes; the metric was made for 3"):
        BrierScore(3).update(torch.full((1, 2), 0.5), torch.tensor([0]))
