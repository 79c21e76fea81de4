"""``chaosgate export`` of a run that was really trained: the file is used as a stranger would, without this library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from chaosgate.__main__ import main
from chaosgate.cli.commands import main as export
from chaosgate.train.backbones import network_weights

SETTINGS = (
    "--trainer.max_epochs=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--data.init_args.num_workers=0",
    "--data.init_args.batch_size=8",
)
CLASSES = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of timm, trained with a gate on noisy images of three colours, a quarter of no class."""
    folder = tmp_path_factory.mktemp("export")
    random = np.random.default_rng(0)
    for channel, name in enumerate(CLASSES):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(0, 160, (48, 48, 3), dtype=np.uint8)
            pixels[..., channel] += (
                90 if i % 4 else 0
            )  # nobody is always right: there is a temperature
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    words = ["-c", "base", "-c", "data/image_folder", "-c", "noise/gch", *SETTINGS]
    words += [f"--data.init_args.root={folder / 'photos'}", "--data.init_args.image_size=64"]
    words += ["--data.init_args.val_fraction=0.4"]
    words += [
        "--model.backbone=resnet10t",
        "--model.num_classes=3",
        f"--run_dir={folder / 'run'}",
        "--noise.stages=[L3]",
    ]
    assert main(["fit", *words]) == 0
    assert main(["test", *words]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def expected(run: Path, images: torch.Tensor) -> torch.Tensor:
    """Logits of the checkpoint, by plain torch and timm."""
    content = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    model = timm.create_model("resnet10t", num_classes=3)
    model.load_state_dict(network_weights(content))
    with torch.no_grad():
        return model.eval()(images)


def read(path: Path) -> dict[str, Any]:
    """As any language reads it: nan is no JSON."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return found


def test_timm_loads_the_safetensors_by_checkpoint_path(
    run: Path, tmp_path: Path, images, expected
) -> None:
    file = tmp_path / "model.safetensors"
    assert export(["export", str(run), "--to", str(file)]) == 0
    network = read(Path(f"{file}.json"))["network"]
    assert network["needs"] is None
    model = timm.create_model(
        network["timm_name"], checkpoint_path=str(file), **network["arguments"]
    )
    with torch.no_grad():
        assert torch.equal(model.eval()(images), expected)  # the same weights: no rounding anywhere


def test_the_pth_is_a_plain_state_dict(run: Path, tmp_path: Path, images, expected) -> None:
    file = tmp_path / "model.pth"
    assert export(["export", str(run / "checkpoints" / "best.ckpt"), "--to", str(file)]) == 0
    model = timm.create_model("resnet10t", num_classes=3)
    model.load_state_dict(torch.load(file, weights_only=True), strict=True)
    with torch.no_grad():
        assert torch.equal(model.eval()(images), expected)


def test_onnxruntime_gives_the_same_logits_for_any_batch_size(
    run: Path, tmp_path: Path, images, expected
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    assert export(["export", str(run), "--to", str(file)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.onnx",
        "model.onnx.json",
    ]  # no external data
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", 3, 64, 64]
    for size in (1, 2, 5):
        (logits,) = session.run(["logits"], {"image": images[:size].numpy()})
        assert np.abs(logits - expected[:size].numpy()).max() < 1e-5


def test_the_json_has_what_one_needs_and_what_was_measured(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.pth"
    assert export(["export", str(run), "--to", str(file)]) == 0
    about = read(tmp_path / "model.pth.json")
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert about["classes"] == sorted(
        CLASSES
    )  # in the order of the folders, which is that of the logits
    assert about["normalisation"]["mean"] == rows[0]["transform"]["mean"]
    assert about["normalisation"]["image_size"] == 64
    assert about["temperature"] == rows[0]["temperature"] is not None
    tested = {(cell["corruption"], cell["severity"]): cell for cell in about["test"]}
    assert len(tested) == len(rows)
    for row in rows:
        cell = tested[row["corruption"], row["severity"]]
        assert all(cell[name] == row[name] for name in ("n", "top1", "nll", "ece", "ece_T"))
        assert "top5" not in cell  # three classes
    assert str(tmp_path) not in json.dumps(about["source"])


def test_numbers_of_another_checkpoint_are_not_given(run: Path, tmp_path: Path) -> None:
    """The rows are of best.ckpt; the weights before it get none of its numbers, nor its temperature."""
    other = run / "checkpoints" / "other.ckpt"
    content = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    content["state_dict"]["model.fc.bias"] += 1
    torch.save(content, other)
    assert export(["export", str(other), "--to", str(tmp_path / "model.pth")]) == 0
    about = read(tmp_path / "model.pth.json")
    assert (
        about["test"] is None
        and about["temperature"] is None
        and about["classes"] == sorted(CLASSES)
    )
    other.unlink()


@pytest.mark.parametrize("there", ["model.pth", "model.pth.json"])
def test_nothing_is_overwritten(
    run: Path, tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / there).write_text("mine")
    assert export(["export", str(run), "--to", str(tmp_path / "model.pth")]) == 1
    assert f"{there} exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [there] and (
        tmp_path / there
    ).read_text() == "mine"


def test_an_onnx_file_that_differs_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    true = onnxruntime.InferenceSession.run
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "run", lambda *given: [true(*given)[0] + np.float32(0.01)]
    )
    assert export(["export", str(run), "--to", str(tmp_path / "model.onnx")]) == 1
    assert "differs from the checkpoint" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_small_image_networks_say_what_registers_their_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = timm.create_model("resnet10_small", num_classes=10, in_chans=1)
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    given = ["--backbone", "resnet10_small", "--in_chans", "1", "--num_classes", "10"]
    to = tmp_path / "model.safetensors"
    assert export(["export", str(tmp_path / "weights.pth"), *given, "--to", str(to)]) == 0
    about = read(Path(f"{to}.json"))
    assert "chaosgate.train.backbones" in about["network"]["needs"]
    assert about["classes"] is None and about["normalisation"] is None
    assert "no classes, no normalisation, no temperature, no test" in capsys.readouterr().out
