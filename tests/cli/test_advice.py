"""``chaosgate strength`` and ``study run sweep``, in this process."""

from pathlib import Path

import pytest
import torch

import chaosgate as cg
from chaosgate.cli import study
from chaosgate.study import load_study
from tests.data.photos import write_val
from tests.inject.networks import small_resnet


def test_strength_measures_what_the_callback_measures():
    torch.manual_seed(0)
    model = small_resnet()[0]
    batch = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = cg.suggest_strength(model, batch, "L4", log_std=(0.1, 1.0, 2.0))
    with cg.attach(model, cg.GaussianChaos(log_std=2.0), "L4") as handle:
        (report,) = handle.check(batch)
    weak, one, two = found.table.to_dict("records")
    assert two["energy"] == pytest.approx(report.energy, rel=1e-3)
    assert two["logits"] == pytest.approx(report.logit_change, rel=1e-3)
    assert weak["logits"] < one["logits"] < two["logits"]
    assert weak["orderings"] > one["orderings"] > two["orderings"] > 0.5


def test_the_advice_is_the_strongest_that_keeps_most_predictions():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1), torch.nn.Flatten())  # the largest site
    batch = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = cg.suggest_strength(model, batch, "0", (0.02, 1.0))
    weak, one = found.table.predictions
    assert weak < 0.5 < one and "Start with log_std 0.02;" in str(found)


def test_the_command_prints_a_table_and_draws_it(command):
    write_val(Path("photos"), 4, size=(90, 80))
    status, out, err = command("strength", "resnet10t", "--images", "photos")
    assert status == 0 and "orderings" in out and Path("strength.png").is_file(), err


def sweep(command, *words):
    Path("mine.yaml").write_text(
        "trainer: {max_epochs: 1, limit_train_batches: 3, limit_val_batches: 2}\n"
        "data: {init_args: {corruptions: null, per_class: {train: 30, val: 30}}}\n"
        "model: {backbone_args: {channels: [4, 4, 8, 8]}}\n"
    )
    return command("study", "run", "sweep", "-c", "base", "-c", "data/fashion_mnist",
                   "-c", "mine.yaml", *words)  # fmt: skip


KEYS = {"gch": "log_std", "dropblock": "p", "iid_gaussian": "match.init_args.log_std"}


@pytest.mark.parametrize("gate", KEYS)
def test_a_sweep_is_a_study_file(gate, command, monkeypatch):
    asked = []
    monkeypatch.setattr(study, "run", lambda file, **options: asked.append((file, options)) or 0)
    assert sweep(command, f"--gate=noise/{gate}", "--values=0.5,0.1,0.3", "--jobs=2")[0] == 0
    ((file, options),) = asked
    found = load_study(file)
    (strength,) = found.strength.values()
    assert strength.key == f"noise.gate.init_args.{KEYS[gate]}"
    assert strength.values == (0.1, 0.3, 0.5) and found.seeds == (0, 1, 2) and options["jobs"] == 2


@pytest.mark.slow
def test_a_sweep_trains_selects_and_flags_an_edge(command):
    status, out, err = sweep(command, "--values", "0.3,1", "--seeds", 1)
    assert status == 0, err
    assert "every strength" in out and "gch-0.3" in out and "edge" in out
