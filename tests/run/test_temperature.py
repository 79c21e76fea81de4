"""The baseline +T in result rows: fitted on validation logits, measured on the test's own
logits."""

import copy
import json
from functools import cache
from itertools import islice

import pytest
import torch
from lightning.pytorch import Trainer
from torch.nn.functional import cross_entropy

import chaosgate as cg
from chaosgate.metrics import CellMetrics, temperature_scaling
from chaosgate.run.files import file_hash, write_lines
from chaosgate.run.rows import RecordTest

CELLS = {"corruptions": ["pixelate"], "severities": [1, 5]}
ORIGIN = {"noise": {"gate": None}}
METRICS = ("nll", "brier", "confidence", "gap", "ece")


class Few(cg.FashionMNIST):
    """101 validation images and 41 test images: no multiple of two or three."""

    def setup(self, stage):
        super().setup(stage)
        self.val_split = shortened(self.val_split, 101)
        self.test_splits = [shortened(split, 41) for split in self.test_splits]


def shortened(split, length):
    return type(split)(split.images[:length], split.targets[:length])


@cache
def trained():
    """A few steps on real images, so that it is better than chance; then sharpened:
    over-confident."""
    torch.manual_seed(0)
    data = cg.FashionMNIST(corruptions=None, batch_size=100)
    data.setup("fit")
    network = cg.ImageClassifier("resnet10_small", 10, 1, None, {"channels": [8, 8, 16, 16]})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for batch in islice(data.train_dataloader(), 12):
        optimizer.zero_grad()
        cross_entropy(network(data.normalize(batch.image)), batch.target).backward()
        optimizer.step()
    with torch.no_grad():
        network.model.get_classifier().weight.mul_(4)
    return network


def run_test(folder, network=None, data=None, callbacks=(), ckpt_path=None, **settings):
    record = RecordTest(ORIGIN)
    network = copy.deepcopy(trained()) if network is None else network
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    quiet |= {"accelerator": "cpu", "use_distributed_sampler": False, "default_root_dir": folder}
    trainer = Trainer(**quiet | settings, callbacks=[record, *callbacks])
    data = Few(**CELLS, eval_batch_size=17) if data is None else data
    trainer.test(network, data, ckpt_path=ckpt_path, verbose=False)
    return network, record


def outputs(network, loader, data):
    """Logits, targets and cells by the plain network."""
    network.eval()
    with torch.no_grad():
        parts = [
            (network(data.normalize(batch.image)), batch.target, batch.cell) for batch in loader
        ]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run_test(tmp_path_factory.mktemp("test"))


def test_rows_hold_the_metrics_of_the_scaled_test_logits(done):
    network, record = done
    data = Few(**CELLS)
    data.setup("test")
    fit = temperature_scaling(*outputs(network, data.val_dataloader(), data)[:2])
    temperature = record.fitted["temperature"]
    assert temperature == pytest.approx(fit.temperature, rel=1e-6) and temperature > 1
    assert record.fitted["temperature_split"] == "validation"
    logits, targets, cells = outputs(network, data.test_dataloader(), data)
    metric = CellMetrics(3)
    metric.update(logits.double() / temperature, targets, cells)
    expected, rows = metric.compute(), network.test_rows
    for i, row in enumerate(rows):
        assert row["n"] == 41 and row["temperature_n"] == 101 and "top1_T" not in row
        for name in METRICS:
            assert row[f"{name}_T"] == pytest.approx(float(expected[name][i]), rel=1e-5), name


def test_where_no_temperature_is_best_the_rows_say_why(tmp_path):
    network = copy.deepcopy(trained())
    with torch.no_grad():
        # the most likely class is now the least likely
        network.model.get_classifier().weight.neg_()
    (row,) = run_test(tmp_path, network, Few(corruptions=None))[0].test_rows
    assert row["temperature"] is None and row["temperature_split"] is None and "nll_T" not in row
    assert "no finite temperature is best" in row["temperature_missing"]


class ForTesting(Few):
    """Has no validation images, as the released ImageNet-C."""

    def setup(self, stage):
        if stage != "test":
            raise ValueError("these data are for testing")
        super().setup(stage)


def test_a_set_without_validation_images_takes_the_temperature_of_an_earlier_test(tmp_path):
    network, checkpoint = copy.deepcopy(trained()), tmp_path / "best.ckpt"
    trainer = Trainer(accelerator="cpu", logger=False)
    trainer.strategy.connect(network)
    trainer.save_checkpoint(checkpoint)
    known = {"checkpoint": file_hash(checkpoint), "temperature": 1.5, **ORIGIN}
    known |= {"temperature_split": "validation", "temperature_n": 7}
    others = {"checkpoint": "another"}, {"noise": {"gate": "another"}}
    for other, value in (({}, 1.5), *((other, None) for other in others)):
        write_lines(tmp_path / "results.jsonl", [known | other])
        run_test(tmp_path, network, ForTesting(corruptions=None), ckpt_path=checkpoint)
        assert network.test_rows[0]["temperature"] == value


def test_temperature_of_monte_carlo_averages_is_fitted_on_averages_of_validation_images(tmp_path):
    gate = cg.GaussianChaos(log_std=1.0)
    noise = cg.NoiseInjection(gate, stages=["L3"], monte_carlo=3, seed=5)
    data = Few(corruptions=None, eval_batch_size=64)
    network, record = run_test(tmp_path, data=data, callbacks=[noise])
    loader, parts = data.val_dataloader(), []
    network.eval()
    handle = cg.attach(network.model, copy.deepcopy(gate), stages=["L3"], seed=5)
    with torch.no_grad(), handle:
        for number, batch in enumerate(loader):
            with handle.monte_carlo(3, -1 - number):
                parts.append((network(data.normalize(batch.image)), batch.target))
    averaged, target = (torch.cat(part) for part in zip(*parts, strict=True))
    expected, found = temperature_scaling(averaged, target).temperature, record.fitted
    assert found["temperature"] == pytest.approx(expected, rel=1e-5)
    plain = temperature_scaling(*outputs(network, data.val_dataloader(), data)[:2]).temperature
    assert abs(expected - plain) > 0.01  # a network that is not averaged has another one


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:It is recommended to use .self.log")
def test_the_same_on_three_processes(tmp_path, done):
    run_test(tmp_path, devices=3, strategy="ddp_fork")
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    for line, alone in zip(lines, done[0].test_rows, strict=True):
        row = json.loads(line)
        assert row["n"] == 41 and row["temperature_n"] == 101
        for name in ("temperature", *(f"{metric}_T" for metric in METRICS)):
            assert row[name] == pytest.approx(alone[name], rel=1e-6, abs=1e-7)
