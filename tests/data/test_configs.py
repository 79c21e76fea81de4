"""The YAML files of the data sets, through the parser that the command line uses."""

from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

from chaosgate.data import ImageData
from chaosgate.data.imagenet_c import GROUPS

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = [CONFIGS / "recipe" / f"{name}.yaml" for name in ("pets_finetune", "imagenet_full")]
FILES = [*(CONFIGS / "data").glob("*.yaml"), *RECIPES]
CELLS = {"fashion_mnist": 36, "imagenet_c": 35}


def build(content: dict[str, dict], **init_args: object) -> ImageData:
    entry = content["data"]
    entry["init_args"] = {**entry.get("init_args", {}), **init_args}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(ImageData, "data")
    # jsonargparse 4.49 renamed it
    instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes
    return instantiate(parser.parse_object({"data": entry})).data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_set_as_configured_agrees_with_what_it_tells_the_model(path: Path, tmp_path: Path):
    places = ["val", "cifar-10-batches-py", "cifar-100-python", "images", "annotations"]
    if path.stem == "image_folder":
        places = ["ant", "bee"]
    elif path.stem == "imagenet_c":
        cells = [(group, name) for group, names in GROUPS.items() for name in names]
        places = [f"{group}/{name}/{severity}" for group, name in cells for severity in range(1, 6)]
    for place in places:
        (tmp_path / place).mkdir(parents=True)
    content = yaml.safe_load(path.read_text())
    root = {} if path.stem == "fashion_mnist" else {"root": str(tmp_path)}
    data, model = build(content, **root), content.get("model", {})
    assert model.get("num_classes", data.num_classes) == data.num_classes
    assert model.get("in_chans", data.in_chans) == data.in_chans
    assert len(data.test_cells) == CELLS.get(path.stem, 1)
