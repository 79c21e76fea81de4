"""The probe while a network trains: it measures, writes, and changes nothing."""

import json

import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chaosgate.compat import CompatibilityProbe
from chaosgate.data import FashionMNIST
from chaosgate.gate import GaussianChaos
from chaosgate.inject import NoiseInjection
from chaosgate.train.task import ImageClassifier
from tests.data.recorder import trainer


def probe(**settings):
    quick = {"every_n_steps": 3, "images": 6, "channels": 4, "draws": 1, "pairs": 32}
    quick |= {"methods": ["gch", "dropout"], "figures": False, "energy": 0.5}
    return CompatibilityProbe(**{**quick, **settings})


def train(folder, *callbacks, steps=5, resume=None, logger=False):
    seed_everything(3, verbose=False)
    model = ImageClassifier("resnet10_small", 10, 1, backbone_args={"channels": (8, 8, 8, 8)})
    given = {"max_steps": steps, "limit_val_batches": 0, "enable_checkpointing": False}
    given["callbacks"] = [NoiseInjection(GaussianChaos(log_std=1.0), ["L4"]), *callbacks]
    run = trainer(folder, logger=logger, use_distributed_sampler=False, **given)
    run.fit(model, FashionMNIST(corruptions=None, batch_size=16), ckpt_path=resume)
    run.save_checkpoint(folder / "last.ckpt")
    return model.state_dict()


def rows(folder):
    return [json.loads(line) for line in (folder / "compatibility.jsonl").read_text().splitlines()]


def test_weights_are_bit_identical_with_and_without_the_probe(tmp_path):
    plain, watched = train(tmp_path), train(tmp_path, probe(logit_draws=1))
    assert rows(tmp_path) and plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_rows_scalars_and_figures_are_written_at_every_measurement(tmp_path):
    board = TensorBoardLogger(str(tmp_path), name="", version="")
    train(tmp_path, probe(figures=True, every_n_steps=100, energy=None), logger=board)
    found = rows(tmp_path)
    assert sorted({row["step"] for row in found}) == [0, 5]
    first = [row for row in found if row["step"] == 0]
    assert [row["stage"] for row in first if row["kind"] == "stage"] == ["L1", "L2", "L3", "L4"]
    methods = [(row["stage"], row["method"]) for row in first if row["kind"] == "method"]
    assert ("L4", "GaussianChaos (attached)") in methods
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    for name in ("compat/L4/coherence", "compat/L1/dropout/ranking"):
        assert [event.step for event in events.Scalars(name)] == [0, 5]
    assert [event.step for event in events.Images("compat/depth")] == [0, 5]


def test_the_same_images_are_measured_every_time_and_after_a_restart(tmp_path):
    first, resumed = probe(), probe()
    train(tmp_path, first, steps=4)
    seen = first.state_dict()["batch"]
    train(tmp_path, resumed, steps=8, resume=tmp_path / "last.ckpt")
    assert seen.shape == (6, 1, 28, 28) and torch.equal(resumed.state_dict()["batch"], seen)
    assert sorted({row["step"] for row in rows(tmp_path)}) == [0, 3, 4, 6, 8]
    count = len([row for row in rows(tmp_path) if row["step"] < 4])
    train(tmp_path, probe(), steps=3)  # a run that starts anew replaces the rows
    assert len(rows(tmp_path)) == count
