"""The YAML files of the data sets."""

import pytest
import yaml

import chaosgate.data
from chaosgate.data.imagenet_c import GROUPS
from tests.conftest import REPOSITORY

CONFIGS = REPOSITORY / "configs"
RECIPES = [CONFIGS / "recipe" / f"{name}.yaml" for name in ("pets_finetune", "imagenet_full")]
CELLS = {"fashion_mnist": 36, "imagenet_c": 35}


@pytest.mark.parametrize("path", [*CONFIGS.glob("data/*"), *RECIPES], ids=lambda path: path.stem)
def test_every_set_as_configured_agrees_with_what_it_tells_the_model(path, tmp_path):
    places = ["val", "cifar-10-batches-py", "cifar-100-python", "images", "annotations"]
    if path.stem == "image_folder":
        places = ["ant", "bee"]
    elif path.stem == "imagenet_c":
        cells = [f"{group}/{name}" for group, names in GROUPS.items() for name in names]
        places = [f"{cell}/{severity}" for cell in cells for severity in range(1, 6)]
    for place in places:
        (tmp_path / place).mkdir(parents=True)
    content = yaml.safe_load(path.read_text())
    _, _, name = content["data"]["class_path"].rpartition(".")
    settings = content["data"].get("init_args", {})
    if path.stem != "fashion_mnist":
        settings["root"] = str(tmp_path)
    data, model = getattr(chaosgate.data, name)(**settings), content.get("model", {})
    assert model.get("num_classes", data.num_classes) == data.num_classes
    assert model.get("in_chans", data.in_chans) == data.in_chans
    assert len(data.test_cells) == CELLS.get(path.stem, 1)
