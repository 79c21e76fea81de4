"""Weights from files: of several writers, with a classifier for other classes, and refused where
they do not fit."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from chaosgate.train.backbones import (
    create_backbone,
    load_weights,
    network_weights,
    read_checkpoint,
    require_fit,
)
from chaosgate.train.task import ImageClassifier

SMALL = {"channels": (8, 8, 16, 16), "in_chans": 1}


def network(num_classes: int = 10, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return create_backbone("resnet10_small", num_classes=num_classes, **SMALL)


@pytest.mark.parametrize("form", ["safetensors", "plain", "timm", "ema", "compiled", "ddp"])
def test_files_of_several_writers_load(form: str, tmp_path: Path) -> None:
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


def test_torchvision_file_loads_into_timm(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    state = resnet18(num_classes=5).state_dict()
    torch.save(state, tmp_path / "tv.pth")
    model = timm.create_model("resnet18", num_classes=5)
    assert load_weights(model, tmp_path / "tv.pth", "resnet18") == []
    assert torch.equal(model.state_dict()["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])


def test_classifier_for_other_classes_starts_fresh_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = network(7, seed=1).state_dict()
    torch.save(state, tmp_path / "seven.pth")
    fresh = network(10, seed=2)
    head = fresh.state_dict()["fc.weight"].clone()
    with caplog.at_level("INFO"):
        assert load_weights(fresh, tmp_path / "seven.pth", "resnet10_small") == [
            "fc.weight",
            "fc.bias",
        ]
    assert (
        "has 7 classes: fc.weight, fc.bias of resnet10_small start from fresh weights"
        in caplog.text
    )
    after = fresh.state_dict()
    assert torch.equal(after["fc.weight"], head) and torch.equal(
        after["conv1.weight"], state["conv1.weight"]
    )


def test_another_network_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "other.pth")
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="is not of resnet10_small"):
        load_weights(model, tmp_path / "other.pth", "resnet10_small")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_error_names_the_settings_that_differ(tmp_path: Path) -> None:
    path = tmp_path / "seven.pth"
    torch.save(network(7).state_dict(), path)
    wider = create_backbone("resnet10_small", num_classes=10, in_chans=1)
    with pytest.raises(ValueError, match="Use the model.backbone, .* it was trained with"):
        load_weights(wider, path, "resnet10_small")
    with pytest.raises(ValueError, match="2 of another shape .*num_classes"):  # here all must fit
        require_fit(network(10), torch.load(path, weights_only=True), path, "resnet10_small")


def test_whole_model_is_refused_without_torch_s_advice_to_load_it_anyway(tmp_path: Path) -> None:
    torch.save(network(), tmp_path / "model.pth")
    with pytest.raises(
        ValueError, match="cannot be read safely .* instead of its state_dict"
    ) as told:
        read_checkpoint(tmp_path / "model.pth")
    assert "\x1b" not in str(told.value) and "two options" not in str(told.value)


def test_without_a_network_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*unused: object, **also: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(ValueError, match="cannot build.*unreachable"):
        create_backbone("resnet18", pretrained=True)


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{not json")
    with pytest.raises(ValueError, match="cannot be read safely"):
        read_checkpoint(tmp_path / "bad.safetensors")


def test_lightning_checkpoint_is_not_taken_for_averaged_weights() -> None:
    state = {"model.fc.weight": torch.ones(2)}
    assert network_weights({"state_dict": state, "callbacks": {}}) == {
        "fc.weight": state["model.fc.weight"]
    }


def test_untrained_classifier_is_not_tested(tmp_path: Path) -> None:
    torch.save(network(7).state_dict(), tmp_path / "seven.pth")
    args = {"channels": (8, 8, 16, 16)}
    module = ImageClassifier("resnet10_small", 10, 1, str(tmp_path / "seven.pth"), args)
    with pytest.raises(ValueError, match="no classifier for 10 classes.*chaosgate fit"):
        module.on_test_start()
    module.on_load_checkpoint({})  # of a trained network
    module.on_predict_start()
