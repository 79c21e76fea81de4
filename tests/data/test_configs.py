"""The YAML files of the data layer, through the parser that the command line uses."""

from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

from chaosgate.data import (
    CIFAR10,
    CIFAR100,
    FashionMNIST,
    ImageData,
    ImageFolder,
    ImageNet,
    ImageNetC,
    ImageNetVariant,
    OxfordPets,
)

CONFIGS = Path(__file__).parents[2] / "configs" / "data"


def build(path: Path, **init_args: object) -> ImageData:
    entry = yaml.safe_load(path.read_text())["data"]
    entry["init_args"] |= init_args
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(ImageData, "data")
    # jsonargparse 4.49 renamed it
    instantiate = parser.instantiate if hasattr(parser, "instantiate") else parser.instantiate_classes
    return instantiate(parser.parse_object({"data": entry})).data


def test_fashion_mnist_as_configured_agrees_with_what_it_tells_the_model():
    data = build(CONFIGS / "fashion_mnist.yaml")
    model = yaml.safe_load((CONFIGS / "fashion_mnist.yaml").read_text())["model"]
    assert isinstance(data, FashionMNIST)
    assert model == {"num_classes": data.num_classes, "in_chans": data.in_chans}
    assert len(data.test_cells) == 36


@pytest.mark.parametrize(("name", "module"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_cifar_as_configured_agrees_with_what_it_tells_the_model(name: str, module: type[CIFAR10], tmp_path: Path):
    data = build(CONFIGS / f"{name}.yaml", root=str(tmp_path), download=True)
    model = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["model"]
    assert type(data) is module and data.crop_padding == 4 and len(data.test_cells) == 1
    assert model == {"num_classes": data.num_classes, "in_chans": data.in_chans}
    corrupted = build(CONFIGS / f"{name}_c.yaml", root=str(tmp_path), released=str(tmp_path), download=True)
    assert type(corrupted) is module and len(corrupted.test_cells) == 36
    assert model == yaml.safe_load((CONFIGS / f"{name}_c.yaml").read_text())["model"]


@pytest.mark.parametrize("name", ["data/pets", "recipe/pets_finetune"])
def test_pets_as_configured_agree_with_what_they_tell_the_model(name: str, tmp_path: Path):
    for folder in ("images", "annotations"):
        (tmp_path / "oxford-iiit-pet" / folder).mkdir(parents=True)
    data = build(CONFIGS.parent / f"{name}.yaml", root=str(tmp_path), seed=3)
    model = yaml.safe_load((CONFIGS.parent / f"{name}.yaml").read_text())["model"]
    assert isinstance(data, OxfordPets) and data.seed == 3 and data.image_size == 224
    assert (model["num_classes"], model["in_chans"]) == (data.num_classes, data.in_chans)


@pytest.mark.parametrize("name", ["data/imagenet", "recipe/imagenet_full"])
def test_imagenet_as_configured_agrees_with_what_it_tells_the_model(name: str, tmp_path: Path):
    (tmp_path / "val").mkdir()
    data = build(CONFIGS.parent / f"{name}.yaml", root=str(tmp_path))
    model = yaml.safe_load((CONFIGS.parent / f"{name}.yaml").read_text())["model"]
    assert isinstance(data, ImageNet) and data.validation == "official"
    assert (model["num_classes"], model["in_chans"]) == (data.num_classes, data.in_chans)
    assert data.recipe == ("full" if name == "recipe/imagenet_full" else "standard")
    assert data.eval_resize == 256


@pytest.mark.parametrize("variant", ["a", "r", "sketch", "v2"])
def test_the_variants_of_imagenet_as_configured_test_a_network_of_1000_classes(variant: str, tmp_path: Path):
    data = build(CONFIGS / f"imagenet_{variant}.yaml", root=str(tmp_path), download=True)
    model = yaml.safe_load((CONFIGS / f"imagenet_{variant}.yaml").read_text())["model"]
    assert isinstance(data, ImageNetVariant) and data.name == f"imagenet_{variant}" and model["num_classes"] == 1000
    assert data.num_classes == (200 if variant in "ar" else 1000)


def test_imagenet_c_as_configured_takes_clean_images_as_well(tmp_path: Path):
    (tmp_path / "val").mkdir()
    data = build(CONFIGS / "imagenet_c.yaml", root=str(tmp_path), source="generated", seed=4)
    assert isinstance(data, ImageNetC) and len(data.test_cells) == 36 and data.seed == 4 and data.corruption_jpeg
    with pytest.raises(Exception, match="lacks 35 of 35 cells"):
        build(CONFIGS / "imagenet_c.yaml", root=str(tmp_path))


def test_every_setting_can_be_written_in_yaml(tmp_path: Path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    settings = {
        "root": str(tmp_path),
        "corruptions": ["pixelate", "fog"],
        "severities": [1, 3],
        "train_scale": [0.25, 1],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "decoder": "pil",
        "corruption_table": "small",
        "eval_batch_size": None,
        "channels_last": True,
    }
    data = build(CONFIGS / "image_folder.yaml", **settings)
    assert isinstance(data, ImageFolder)
    assert data.train_scale == (0.25, 1) and len(data.test_cells) == 5


@pytest.mark.parametrize("bad", [{"batch_sise": 3}, {"batch_size": "many"}, {"corruptions": "papers"}])
def test_a_misspelt_setting_is_refused(bad: dict[str, object]):
    with pytest.raises(Exception, match=str(next(iter(bad)))):
        build(CONFIGS / "fashion_mnist.yaml", **bad)
