import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from chaosgate.metrics import CellMetrics, calibration_bins, calibration_error
from tests.metrics import reference


def batch(seed: int, n: int = 400, classes: int = 10, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=generator)
    target = torch.where(
        torch.rand(n, generator=generator) < 0.5,
        logits.argmax(1),
        torch.randint(0, classes, (n,), generator=generator),
    )
    return logits, target


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=0, atol=1e-12, equal_nan=True, msg=name
        )


def test_a_thousand_random_cases_agree_with_the_plain_reference():
    random = np.random.default_rng(0)
    for case in range(1000):
        n, classes, num_bins = (int(random.integers(*ends)) for ends in ((1, 40), (2, 12), (1, 31)))
        scale = 10 ** random.uniform(
            -2, 4
        )  # from nearly uniform to saturated: confidence exactly 1
        logits = scale * random.standard_normal((n, classes))
        if case % 3 == 0:
            logits = logits.astype(np.float32).astype(np.float64)
        if case % 7 == 0:
            logits = np.round(logits)  # ties
        target = random.integers(0, classes, n)
        metric = CellMetrics(num_bins=num_bins)
        metric.update(torch.from_numpy(logits), torch.from_numpy(target))
        ours = metric.compute()
        for name, value in reference.all_metrics(logits, target, num_bins).items():
            # Rounding of float64: a few units in the last place of the largest term.
            tolerance = 1e-12 * max(1.0, abs(value))
            assert float(ours[name]) == pytest.approx(value, abs=tolerance, nan_ok=True), (
                case,
                name,
            )


def test_cells_are_counted_separately_and_like_single_metrics():
    logits, target = batch(1)
    cell = torch.arange(400) % 3
    together = CellMetrics(num_cells=4, num_bins=7)
    together.update(logits, target, cell)
    result = together.compute()
    for c in range(3):
        alone = CellMetrics(num_bins=7)
        alone.update(logits[cell == c], target[cell == c])
        assert_same({name: value[c : c + 1] for name, value in result.items()}, alone.compute())
    assert result["n"][3] == 0
    assert all(value[3].isnan() for name, value in result.items() if name != "n")


@pytest.mark.parametrize("classes", [10, 1001])
@pytest.mark.parametrize(
    "sizes", [[400], [1] * 400, [7, 393], [399, 1], [0, 400]], ids=lambda sizes: f"{len(sizes)}"
)
def test_batch_split_and_order_change_nothing(sizes, classes):
    logits, target = batch(2, classes=classes)
    cell = torch.arange(400) % 5
    whole = CellMetrics(num_cells=5, adaptive_bins=15)
    whole.update(logits, target, cell)
    split = CellMetrics(num_cells=5, adaptive_bins=15)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    for part in order.split(sizes):
        split.update(logits[part], target[part], cell[part])
    assert_same(split.compute(), whole.compute())


def test_padding_does_not_count_whatever_it_holds():
    logits, target = batch(3, n=50)
    plain = CellMetrics(num_cells=2, adaptive_bins=5)
    cell = torch.arange(50) % 2
    plain.update(logits, target, cell)
    padded = CellMetrics(num_cells=2, adaptive_bins=5)
    junk = torch.tensor([[math.nan] * 10, [math.inf] * 10, [0.0] * 10])
    padded.update(
        torch.cat((junk, logits)),
        torch.cat((torch.tensor([-1, 99, 0]), target)),
        torch.cat((torch.tensor([-1, 7, 0]), cell)),
        torch.arange(53) >= 3,
    )
    assert_same(padded.compute(), plain.compute())


def test_casting_the_enclosing_module_does_not_round_the_sums():
    logits, target = batch(4)
    expected, cast = CellMetrics(adaptive_bins=15), CellMetrics(adaptive_bins=15)
    module = torch.nn.ModuleDict({"metric": cast})
    for metric in (expected, cast):
        metric.update(logits[:300], target[:300])
        module.to(torch.bfloat16)  # what Lightning's precision="bf16-true" does
        metric.update(logits[300:], target[300:])
    assert_same(cast.compute(), expected.compute())


def test_update_never_waits_for_the_device():
    metric = CellMetrics(num_cells=3, adaptive_bins=15, validate_args=False).to("meta")
    on_meta = {"dtype": torch.long, "device": "meta"}  # holds no values: asking for one raises
    metric.update(
        torch.empty(8, 10, device="meta"),
        torch.empty(8, **on_meta),
        torch.empty(8, **on_meta),
        torch.empty(8, dtype=torch.bool, device="meta"),
    )
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


def test_a_true_class_ruled_out_makes_the_nll_infinite_and_nothing_else():
    metric = CellMetrics()
    metric.update(torch.tensor([[0.0, 0.0, -math.inf]]), torch.tensor([2]))
    result = metric.compute()
    assert result["nll"] == math.inf
    assert result["brier"] == 1.5
    assert result["confidence"] == 0.5


def test_top5_is_nan_with_fewer_than_five_classes():
    metric = CellMetrics()
    metric.update(torch.eye(4), torch.arange(4))
    assert metric.compute()["top5"].isnan()
    assert metric.compute()["top1"] == 1


def test_reliability_gives_the_ece_of_compute():
    logits, target = batch(6)
    metric = CellMetrics(num_cells=2, num_bins=15)
    metric.update(logits, target, torch.arange(400) % 2)
    reliability = metric.reliability()
    assert torch.equal(calibration_error(reliability), metric.compute()["ece"])
    assert reliability.count.shape == (2, 15)
    assert reliability.edges.shape == (16,)
    odd = torch.arange(400) % 2 == 1
    confidence, predicted = logits[odd].double().softmax(1).max(1)
    alone = calibration_bins(confidence, predicted == target[odd])
    for ours, expected in zip(reliability.of_cell(1), alone, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_forward_returns_the_batch_and_accumulates_the_total():
    logits, target = batch(7, n=100)
    metric, expected = CellMetrics(adaptive_bins=5), CellMetrics(adaptive_bins=5)
    first = metric(logits[:60], target[:60])
    metric(logits[60:], target[60:])
    expected.update(logits, target)
    assert first["n"] == 60
    assert_same(metric.compute(), expected.compute())
    metric.reset()
    metric.update(logits[:60], target[:60])
    assert_same(metric.compute(), first)


def test_a_metric_and_its_result_survive_pickling():
    logits, target = batch(9, n=30)
    metric = CellMetrics(adaptive_bins=5)
    metric.update(logits[:10], target[:10])
    copy = pickle.loads(pickle.dumps(metric))
    for each in (metric, copy):
        each.update(logits[10:], target[10:])
    assert_same(pickle.loads(pickle.dumps(copy.compute())), metric.compute())


def test_gradients_and_inputs_are_left_alone():
    logits, target = batch(8, n=10)
    before = logits.clone()
    logits.requires_grad_()
    metric = CellMetrics()
    metric.update(logits, target)
    assert torch.equal(logits, before)
    assert not metric.compute()["nll"].requires_grad


@pytest.mark.parametrize("target, cell, message", [
    (10, 0, "sample 1 has target 10, but targets run from 0 to 9"),
    (-1, 0, "sample 1 has target -1, but targets run from 0 to 9"),
    (0, 2, "sample 1 has cell 2, but cells run from 0 to 1"),
])  # fmt: skip
def test_indices_out_of_range_are_refused(target, cell, message):
    metric = CellMetrics(num_cells=2)
    with pytest.raises(ValueError, match=message):
        metric.update(torch.zeros(2, 10), torch.tensor([0, target]), torch.tensor([0, cell]))
    assert metric.compute()["n"].sum() == 0


@pytest.mark.parametrize("logits, target", [
    (torch.zeros(3), torch.zeros(3, dtype=torch.long)),
    (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long)),
    (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, dtype=torch.long)),
    (torch.zeros(3, 0), torch.zeros(3, dtype=torch.long)),
])  # fmt: skip
def test_wrong_shapes_are_refused(logits, target):
    with pytest.raises(ValueError, match=r"logits must be floating-point \(B, K\).*found logits"):
        CellMetrics().update(logits, target)


@pytest.mark.parametrize("arguments", [{"num_cells": 0}, {"num_bins": 0}, {"adaptive_bins": 0}])
def test_fewer_than_one_cell_or_bin_is_refused(arguments):
    with pytest.raises(ValueError, match="at least 1 is needed"):
        CellMetrics(**arguments)
