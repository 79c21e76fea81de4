"""The baseline +T in result rows: fitted on validation logits, measured on the test's own logits."""

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
from chaosgate.run.directory import RunDirectory, file_hash
from chaosgate.run.rows import SCALED, RecordTest, validation_loader
from tests.data.recorder import LIGHTNING_WARNINGS

pytestmark = [*LIGHTNING_WARNINGS]
ORIGIN = {"noise": {"gate": None}}
CELLS = {"corruptions": ["pixelate"], "severities": [1, 5]}


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
    """A few steps on real images, so that it is better than chance; then sharpened, so that it is over-confident."""
    torch.manual_seed(0)
    data = cg.FashionMNIST(corruptions=None, batch_size=100)
    data.setup("fit")
    network = cg.ImageClassifier(
        "resnet10_small", num_classes=10, in_chans=1, backbone_args={"channels": [8, 8, 16, 16]}
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for batch in islice(data.train_dataloader(), 12):
        optimizer.zero_grad()
        cross_entropy(network(data.normalise(batch.image)), batch.target).backward()
        optimizer.step()
    with torch.no_grad():
        network.model.get_classifier().weight.mul_(4)
    return network


def model():
    return copy.deepcopy(trained())


def run_test(folder, network=None, data=None, callback=None, **settings):
    callback = RecordTest(ORIGIN) if callback is None else callback
    network = model() if network is None else network
    options = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    options |= {
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
        "default_root_dir": folder,
    }
    callbacks = [callback, *settings.pop("callbacks", [])]
    trainer = Trainer(**options | settings, callbacks=callbacks)
    trainer.test(network, Few(**CELLS, eval_batch_size=17) if data is None else data, verbose=False)
    return network, callback


def outputs(network, loader, data):
    """Logits, targets and cells by the plain network, one image after the other."""
    network.eval()
    with torch.no_grad():
        parts = [
            (network(data.normalise(batch.image)), batch.target, batch.cell) for batch in loader
        ]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run_test(tmp_path_factory.mktemp("test"))


def test_rows_hold_the_metrics_of_the_scaled_test_logits(done):
    network, callback = done
    data = Few(**CELLS)
    data.setup("test")
    logits, targets, _ = outputs(network, data.val_dataloader(), data)
    fitted = temperature_scaling(logits, targets)
    temperature = fitted.temperature
    assert fitted.nll_after < fitted.nll_before and temperature > 1  # it is over-confident
    assert callback.fitted["temperature"] == pytest.approx(temperature, rel=1e-6)
    columns = {"temperature_split": "validation", "temperature_n": 101}
    assert callback.fitted == {"temperature": callback.fitted["temperature"], **columns}
    logits, targets, cells = outputs(network, data.test_dataloader(), data)
    metric = CellMetrics(3)
    metric.update(logits.double() / callback.fitted["temperature"], targets, cells)
    expected = metric.compute()
    for i, row in enumerate(network.test_rows):
        assert row["n"] == 41
        for name in ("nll", "brier", "confidence", "gap", "ece"):
            assert row[f"{name}_T"] == pytest.approx(float(expected[name][i]), rel=1e-5), name
    assert "top1_T" not in network.test_rows[0]
    logged = network.trainer.callback_metrics
    assert float(logged["test/clean/nll_T"]) == pytest.approx(
        network.test_rows[0]["nll_T"], rel=1e-6
    )
    mean = (network.test_rows[1]["ece_T"] + network.test_rows[2]["ece_T"]) / 2
    assert float(logged["test/corrupted/ece_T"]) == pytest.approx(mean, rel=1e-6)


def test_a_test_describes_the_same_data_with_and_without(tmp_path):
    data, plain = Few(**CELLS), Few(**CELLS)
    run_test(tmp_path, data=data)
    plain.setup("test")
    assert data.describe() == plain.describe()


def test_rows_say_when_the_validation_images_are_the_test_images(tmp_path):
    class SelectedOnTest(Few):
        validation_is_test = True

    network, _ = run_test(tmp_path, data=SelectedOnTest(corruptions=None))
    assert network.test_rows[0]["temperature_split"] == "test"


def test_where_no_temperature_is_best_the_rows_say_why(tmp_path):
    network = model()
    with torch.no_grad():
        network.model.get_classifier().weight.neg_()  # what it thought most likely is now least likely
    network, _ = run_test(tmp_path, network)
    row = network.test_rows[0]
    assert row["temperature"] is None and row["temperature_split"] is None and "nll_T" not in row
    assert "no finite temperature is best" in row["temperature_missing"]


class ForTesting(Few):
    """Has no validation images, as the released ImageNet-C."""

    def setup(self, stage):
        if stage != "test":
            raise ValueError("these data are for testing")
        super().setup(stage)


def test_a_set_without_validation_images_takes_the_temperature_of_an_earlier_test(tmp_path):
    network = model()
    checkpoint = tmp_path / "best.ckpt"
    trainer = Trainer(accelerator="cpu", logger=False, barebones=False)
    trainer.strategy.connect(network)
    trainer.save_checkpoint(checkpoint)
    mine = file_hash(checkpoint)
    about = {"temperature_split": "validation", "temperature_n": 7}
    rows = [
        {"checkpoint": mine, "temperature": 1.5, **about},
        {"checkpoint": "another", "temperature": 9.0, **about},
        {"checkpoint": mine, "temperature": None},
    ]
    options = {
        "logger": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
        "enable_checkpointing": False,
        "default_root_dir": tmp_path,
    }
    for known, value in ((rows, 1.5), (rows[1:], None)):
        callback = RecordTest(ORIGIN, known)
        Trainer(**options, callbacks=[callback]).test(
            network, ForTesting(corruptions=None), ckpt_path=checkpoint, verbose=False
        )
        assert callback.fitted["temperature"] == value
        assert network.test_rows[0]["temperature"] == value
    assert "these data are for testing" in network.test_rows[0]["temperature_missing"]


def test_temperature_of_monte_carlo_averages_is_fitted_on_averages_of_validation_images(tmp_path):
    gate = cg.GaussianChaos(log_std=1.0)
    noise = cg.NoiseInjection(gate, stages=["L3"], monte_carlo=3, seed=5)
    data = Few(corruptions=None, eval_batch_size=64)
    network, callback = run_test(tmp_path, data=data, callbacks=[noise])
    loader, parts = validation_loader(data), []
    network.eval()
    with (
        torch.no_grad(),
        cg.attach(network.model, copy.deepcopy(gate), stages=["L3"], seed=5) as handle,
    ):
        for number, batch in enumerate(loader):
            with handle.monte_carlo(3, -1 - number):
                parts.append((network(data.normalise(batch.image)), batch.target))
    averaged, target = (torch.cat(part) for part in zip(*parts, strict=True))
    assert callback.fitted["temperature"] == pytest.approx(
        temperature_scaling(averaged, target).temperature, rel=1e-5
    )
    plain = temperature_scaling(*outputs(network, validation_loader(data), data)[:2]).temperature
    assert (
        abs(callback.fitted["temperature"] - plain) > 0.01
    )  # a network that is not averaged has another one
    (row,) = network.test_rows
    assert row["temperature_n"] == 101 and row["nll_T"] < row["nll"]


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:It is recommended to use .self.log")
def test_the_same_on_three_processes(tmp_path, done):
    class Write(cg.ImageClassifier):
        def on_test_end(self):
            (tmp_path / f"{self.global_rank}.json").write_text(json.dumps(self.test_rows))

    network = model()
    network.__class__ = Write
    run_test(tmp_path, network, devices=3, strategy="ddp_fork")
    for rank in range(3):
        rows = json.loads((tmp_path / f"{rank}.json").read_text())
        for row, alone in zip(rows, done[0].test_rows, strict=True):
            assert row["n"] == 41 and row["temperature_n"] == 101
            assert row["temperature"] == pytest.approx(alone["temperature"], rel=1e-6)
            for name in SCALED:
                if f"{name}_T" in alone:
                    assert row[f"{name}_T"] == pytest.approx(alone[f"{name}_T"], rel=1e-6, abs=1e-7)


def test_the_command_line_writes_it_and_a_switch_turns_it_off(command, configs):
    files = configs("base", "data/fashion_mnist", "noise/none")
    quick = (
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
        "--run_dir=run",
    )
    quick += (
        "--model.backbone_args={channels: [8, 8, 16, 16]}",
        "--data.init_args.corruptions=null",
    )
    train = (
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=8",
        "--trainer.limit_val_batches=1",
    )
    assert command("fit", *files, *quick, *train)[0] == 0
    status, out, err = command("test", *files, *quick)
    assert status == 0, err
    (row,) = RunDirectory("run").rows()
    assert (
        row["temperature"] > 0
        and row["temperature_split"] == "validation"
        and row["temperature_n"] == 1000
    )
    assert row["nll_T"] != row["nll"] and 0 <= row["ece_T"] <= 1
    status, out, err = command("test", *files, *quick, "--temperature=false")
    assert status == 0, err
    (row,) = RunDirectory("run").rows()  # the same cell of the same checkpoint: replaced
    assert "temperature" not in row and "nll_T" not in row
