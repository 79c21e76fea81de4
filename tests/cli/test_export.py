"""``chaosgate export`` of a trained run: the file is used without this library."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from chaosgate.__main__ import main

SETTINGS = """-c base -c data/image_folder -c noise/gch --trainer.max_epochs=2
    --trainer.enable_progress_bar=false --data.init_args.batch_size=8 --data.init_args.image_size=64
    --data.init_args.val_fraction=0.4 --model.backbone=resnet10t --model.num_classes=3
    --noise.stages=[L3]""".split()
CLASSES = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A network of timm, trained with a gate on images of three colors, a quarter of no class."""
    folder = tmp_path_factory.mktemp("export")
    random = np.random.default_rng(0)
    for channel, name in enumerate(CLASSES):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(0, 160, (48, 48, 3), dtype=np.uint8)
            pixels[..., channel] += 90 if i % 4 else 0  # never all right: there is a temperature
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    words = [*SETTINGS, f"--data.init_args.root={folder}/photos", f"--run_dir={folder}/run"]
    assert main(["fit", *words]) == 0 and main(["test", *words]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def images():
    return torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def expected(run, images):
    """Logits of the checkpoint, by plain torch and timm."""
    state = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    model = timm.create_model("resnet10t", num_classes=3)
    model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
    with torch.no_grad():
        return model.eval()(images)


def export(source, to):
    """Its JSON as any language reads it: nan is no JSON."""
    assert main(["export", str(source), "--to", str(to)]) == 0
    return json.loads(Path(f"{to}.json").read_text(), parse_constant=pytest.fail)


def test_timm_and_torch_load_the_weights(run, tmp_path, images, expected):
    for suffix in (".safetensors", ".pth"):
        network = export(run, file := tmp_path / f"model{suffix}")["network"]
        checkpoint = {"checkpoint_path": str(file)} if suffix == ".safetensors" else {}
        model = timm.create_model(network["timm_name"], **checkpoint, **network["arguments"])
        if not checkpoint:
            model.load_state_dict(torch.load(file, weights_only=True), strict=True)
        with torch.no_grad():
            assert torch.equal(model.eval()(images), expected)
    assert main(["export", str(run), "--to", str(file)]) == 1  # never overwritten


def test_onnxruntime_gives_the_same_logits_or_nothing_is_written(
    run, tmp_path, images, expected, monkeypatch, capsys
):
    kind = pytest.importorskip("onnxruntime").InferenceSession
    export(run, file := tmp_path / "model.onnx")
    session = kind(str(file), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, 64, 64]
    for size in (1, 5):
        (logits,) = session.run(["logits"], {"image": images[:size].numpy()})
        assert np.abs(logits - expected[:size].numpy()).max() < 1e-5
    true = kind.run
    monkeypatch.setattr(kind, "run", lambda *given: [true(*given)[0] + np.float32(0.01)])
    assert main(["export", str(run), "--to", str(tmp_path / "other.onnx")]) == 1
    assert "differs from the checkpoint" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 2


def test_the_json_has_what_was_measured_of_these_weights_only(run, tmp_path):
    about = export(run, tmp_path / "model.pth")
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert about["classes"] == sorted(CLASSES)  # in the order of the folders and of the logits
    assert about["normalisation"] == rows[0]["transform"]
    assert about["temperature"] == rows[0]["temperature"] is not None
    for cell, row in zip(about["test"], rows, strict=True):
        assert cell.items() <= row.items() and {"corruption", "n", "nll", "ece_T"} <= set(cell)
    content = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    content["state_dict"]["model.fc.bias"] += 1
    torch.save(content, other := run / "checkpoints" / "other.ckpt")
    about = export(other, tmp_path / "other.pth")
    assert about["test"] is None and about["temperature"] is None
    other.unlink()
