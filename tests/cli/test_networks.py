"""``chaosgate probe``, ``sites`` and ``audit`` in-process: runs, checkpoints, timm models, folders
of images.
"""

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

import chaosgate.train.backbones  # noqa: F401 - registers resnet10_small
from chaosgate.__main__ import main
from chaosgate.cli.sources import find_images, find_network

QUICK = "--count 3 --channels 4 --draws 1 --methods gch dropout --energy 0.5".split()
NARROW = {"channels": (4, 4, 8, 8)}


@pytest.fixture
def run_directory(tmp_path):
    """What a run leaves behind: a checkpoint with its network, a configuration with its data."""
    run = tmp_path / "my-run"
    (run / "checkpoints").mkdir(parents=True)
    known = {"num_classes": 10, "in_chans": 1}
    state = timm.create_model("resnet10_small", **known, **NARROW).state_dict()
    content = {"state_dict": {f"model.{name}": value for name, value in state.items()}}
    content["hyper_parameters"] = {"backbone": "resnet10_small", **known, "backbone_args": NARROW}
    torch.save(content, run / "checkpoints" / "best.ckpt")
    data = {"class_path": "chaosgate.FashionMNIST", "init_args": {"batch_size": 8}}
    (run / "config.yaml").write_text(yaml.safe_dump({"data": data}))
    return run


def test_a_run_is_probed_on_its_own_images_and_the_figure_lies_in_it(run_directory, capsys):
    assert main(["probe", str(run_directory), *QUICK]) == 0
    out = capsys.readouterr().out
    assert all(f"| L{k} | {name} |" in out for k in (1, 2, 3, 4) for name in ("gch", "dropout"))
    figure = run_directory / "compatibility.png"
    assert str(figure) in out and figure.read_bytes().startswith(b"\x89PNG")


def test_images_are_evenly_spaced_normalised_and_of_the_size_asked_for(tmp_path, run_directory):
    (folder := tmp_path / "photos" / "deep").mkdir(parents=True)
    random = np.random.default_rng(0)
    for i, size in enumerate([(40, 60), (80, 50), (64, 64), (33, 90)]):
        pixels = random.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (folder / "notes.txt").write_text("no image")
    source, own = find_network("resnet18"), find_network(str(run_directory))
    few, every = (find_images(source, tmp_path / "photos", count, 32) for count in (2, 100))
    assert few.shape == (2, 3, 32, 32) and every.shape == (4, 3, 32, 32)
    assert torch.equal(few, every[[0, 2]])
    assert find_images(own, None, 7, None).shape == (7, 1, 28, 28)
    with pytest.raises(ValueError, match="--images FOLDER"):
        find_images(source, None, 5)


def test_sites_lists_every_place(capsys):
    words = ["sites", "resnet18", "--image_size", "64"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert any(line.split()[:3] == ["L4", "layer4", "2x2"] for line in out.splitlines())


def test_audit_lists_every_source_of_noise(capsys):
    words = ["audit", "resnet10t", "--image_size", "64", "--arguments", "drop_rate=0.5"]
    assert main([*words, "drop_path_rate=0.1", "--require"]) == 0
    assert "acts" in capsys.readouterr().out
    assert main(["audit", "torchvision.models:vgg11_bn", "--image_size", "64"]) == 0
    assert "Dropout" in capsys.readouterr().out
