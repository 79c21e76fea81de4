"""The probe while a network trains: it measures, writes, and changes nothing."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from chaosgate.compat import CompatibilityProbe
from chaosgate.data import FashionMNIST
from chaosgate.gate import GaussianChaos
from chaosgate.inject import NoiseInjection
from chaosgate.train.task import ImageClassifier


def probe(**settings: Any) -> CompatibilityProbe:
    quick = {"every_n_steps": 3, "images": 6, "channels": 4, "draws": 1, "pairs": 32}
    quick |= {"methods": ["gch", "dropout"], "figures": False, "energy": 0.5}
    return CompatibilityProbe(**{**quick, **settings})


def train(
    folder: Path,
    *callbacks: Callback,
    steps: int = 5,
    noise: bool = True,
    resume: Path | None = None,
    logger: Any = False,
) -> dict[str, torch.Tensor]:
    seed_everything(3, verbose=False)
    model = ImageClassifier("resnet10_small", 10, 1, backbone_args={"channels": (8, 8, 8, 8)})
    gates = [NoiseInjection(GaussianChaos(log_std=1.0), ["L4"])] if noise else []
    quiet = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=logger,
        callbacks=[*gates, *callbacks],
        default_root_dir=folder,
        limit_val_batches=0,
        use_distributed_sampler=False,
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(model, FashionMNIST(corruptions=None, batch_size=16), ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return model.state_dict()


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "compatibility.jsonl").read_text().splitlines()]


def test_weights_are_bit_identical_with_and_without_the_probe(tmp_path: Path) -> None:
    plain, watched = train(tmp_path), train(tmp_path, probe(logit_draws=1))
    assert rows(tmp_path) and plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_rows_scalars_and_figures_are_written_at_every_measurement(tmp_path: Path) -> None:
    board = TensorBoardLogger(str(tmp_path), name="", version="")
    train(tmp_path, probe(figures=True, every_n_steps=100, energy=None), logger=board)
    found = rows(tmp_path)
    assert sorted({row["step"] for row in found}) == [0, 5]
    first = [row for row in found if row["step"] == 0]
    assert [row["stage"] for row in first if row["kind"] == "stage"] == ["L1", "L2", "L3", "L4"]
    methods = [(row["stage"], row["method"]) for row in first if row["kind"] == "method"]
    assert ("L4", "GaussianChaos (attached)") in methods and len(methods) == 9
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    for name in ("compat/L4/coherence", "compat/L1/dropout/ranking"):
        assert [event.step for event in events.Scalars(name)] == [0, 5]
    assert [event.step for event in events.Images("compat/depth")] == [0, 5]


def test_the_same_images_are_measured_every_time_and_after_a_restart(tmp_path: Path) -> None:
    first, resumed = probe(), probe()
    train(tmp_path, first, steps=4)
    seen = first.state_dict()["batch"]
    train(tmp_path, resumed, steps=8, resume=tmp_path / "last.ckpt")
    assert seen.shape == (6, 1, 28, 28) and torch.equal(resumed.state_dict()["batch"], seen)
    assert sorted({row["step"] for row in rows(tmp_path)}) == [0, 3, 4, 6, 8]
    count = len([row for row in rows(tmp_path) if row["step"] < 4])
    train(tmp_path, probe(), steps=3)  # a run that starts anew replaces the rows
    assert len(rows(tmp_path)) == count


def test_the_default_gate_or_a_given_one_sets_the_energy(tmp_path: Path) -> None:
    default = probe(energy=None)
    given = probe(stages=["L4"], gate=GaussianChaos(log_std=0.1), energy=None)
    train(tmp_path, default, given, steps=1, noise=False)
    for one, weak in ((default, False), (given, True)):
        assert one.reading is not None and one.reading.method_names() == ["gch", "dropout"]
        assert (one.reading.of("L4", "dropout").energy < 0.05) == weak
