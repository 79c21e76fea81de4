"""Fabric, a routine of torch-uncertainty, a SimCLR step of lightly."""

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import chaosgate as cg
from tests.programs.by_hand import batches, compare, descend, equal, gate, network, weights

pytestmark = pytest.mark.slow


def fabric_steps(fabric, model, optimizer, data):
    for images, labels in data:
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()


def set_up(model):
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    return fabric, *fabric.setup(
        model.train(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )


def test_fabric_equals_a_loop_with_a_gate_by_hand():
    def train(model):
        fabric_steps(*set_up(model), batches(3))
        return weights(model)

    attached_before = compare(train)
    model = network()
    fabric, wrapped, optimizer = set_up(model)
    with cg.attach(wrapped, gate(), "L4"):
        fabric_steps(fabric, wrapped, optimizer, batches(3))
    assert equal(weights(model), attached_before)


def test_fabric_resumes(tmp_path):
    model = network()
    with cg.attach(model, gate(), "L4") as handle:
        fabric, wrapped, optimizer = set_up(model)
        fabric_steps(fabric, wrapped, optimizer, batches(4)[:2])
        fabric.save(
            tmp_path / "state.ckpt", {"model": wrapped, "optimizer": optimizer, "noise": handle}
        )
        fabric_steps(fabric, wrapped, optimizer, batches(4)[2:])
    again = network()
    with cg.attach(again, gate(), "L4") as handle:
        fabric, wrapped, optimizer = set_up(again)
        fabric.load(
            tmp_path / "state.ckpt", {"model": wrapped, "optimizer": optimizer, "noise": handle}
        )
        fabric_steps(fabric, wrapped, optimizer, batches(4)[2:])
    assert equal(weights(model), weights(again))


@pytest.mark.filterwarnings("ignore")
def test_a_routine_of_torch_uncertainty():
    routines = pytest.importorskip("torch_uncertainty.routines", exc_type=ImportError)

    def train(model, *callbacks):
        lightning.seed_everything(0)
        routine = routines.ClassificationRoutine(
            model,
            num_classes=10,
            loss=nn.CrossEntropyLoss(),
            mixup_params={"mixtype": "mixup", "mixup_alpha": 0.2},
            optim_recipe=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        )
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        options = {"accelerator": "cpu", "max_epochs": 2, "enable_model_summary": False}
        options["callbacks"] = list(callbacks)
        data = [
            (x, y) for images, labels in batches(3) for x, y in zip(images, labels, strict=True)
        ]
        loader = DataLoader(data, batch_size=4)
        lightning.Trainer(**quiet, **options).fit(routine, loader, loader)
        return weights(model)

    attached = compare(train)
    assert equal(train(network(), cg.NoiseInjection(gate(), ["L4"], seed=0)), attached)


@pytest.mark.filterwarnings("ignore")
def test_a_simclr_step_of_lightly():
    lightly_loss = pytest.importorskip("lightly.loss")
    modules = pytest.importorskip("lightly.models.modules")

    def build():
        model = nn.Sequential(network(), modules.SimCLRProjectionHead(32, 32, 16))
        model[0].reset_classifier(0)
        return model

    def loss(model, images, labels):  # two forwards, two gates
        return lightly_loss.NTXentLoss(temperature=0.5)(model(images), model(images.flip(-1)))

    compare(lambda model: descend(model, batches(3), loss), build, "0.layer4")
