"""Weights from files: of several writers, with a classifier for other classes, and refused where
they do not fit."""

import pytest
import timm
import torch
from safetensors.torch import save_file

from chaosgate.train.backbones import create_backbone, load_weights

SMALL = {"channels": (8, 8, 16, 16), "in_chans": 1}


def network(num_classes=10, seed=0):
    torch.manual_seed(seed)
    return create_backbone("resnet10_small", num_classes=num_classes, **SMALL)


@pytest.mark.parametrize("form", ["safetensors", "plain", "timm", "ema", "compiled", "ddp"])
def test_files_of_several_writers_load(form, tmp_path):
    state = network(seed=1).state_dict()
    other = {name: torch.zeros_like(value) for name, value in state.items()}
    path = tmp_path / ("file.safetensors" if form == "safetensors" else "file.pth")
    if form == "safetensors":
        save_file(state, path)
    else:
        content = {
            "plain": state,
            "timm": {"state_dict": state, "epoch": 3},
            "ema": {"state_dict": other, "state_dict_ema": state},
            "compiled": {
                "state_dict": {f"model._orig_mod.{name}": value for name, value in state.items()}
            },
            "ddp": {"model": {f"module.{name}": value for name, value in state.items()}},
        }
        torch.save(content[form], path)
    model = network(seed=2)
    assert load_weights(model, path, "resnet10_small") == []
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_torchvision_file_loads_into_timm(tmp_path):
    from torchvision.models import resnet18

    state = resnet18(num_classes=5).state_dict()
    torch.save(state, tmp_path / "tv.pth")
    model = timm.create_model("resnet18", num_classes=5)
    assert load_weights(model, tmp_path / "tv.pth", "resnet18") == []
    assert torch.equal(model.state_dict()["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])


def test_classifier_for_other_classes_starts_fresh_and_a_line_says_so(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("chaosgate.train.backbones.rank_zero_info", said.append)
    state = network(7, seed=1).state_dict()
    torch.save(state, tmp_path / "seven.pth")
    fresh = network(10, seed=2)
    head = fresh.state_dict()["fc.weight"].clone()
    found = load_weights(fresh, tmp_path / "seven.pth", "resnet10_small")
    assert found == ["fc.weight", "fc.bias"] and "has 7 classes: fc.weight" in said[0]
    after = fresh.state_dict()
    assert torch.equal(after["fc.weight"], head)
    assert torch.equal(after["conv1.weight"], state["conv1.weight"])
