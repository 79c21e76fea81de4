"""The YAML files of the data sets, through the parser that the command line uses."""

from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

from chaosgate.data import ImageData
from chaosgate.data.imagenet_c import GROUPS

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = [CONFIGS / "recipe" / f"{name}.yaml" for name in ("pets_finetune", "imagenet_full")]
FILES = [*sorted((CONFIGS / "data").glob("*.yaml")), *RECIPES]
CELLS = {"fashion_mnist": 36, "imagenet_c": 35}


def build(path: Path, **init_args: object) -> ImageData:
    entry = yaml.safe_load(path.read_text())["data"]
    entry["init_args"] = {**entry.get("init_args", {}), **init_args}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(ImageData, "data")
    # jsonargparse 4.49 renamed it
    instantiate = (
        parser.instantiate if hasattr(parser, "instantiate") else parser.instantiate_classes
    )
    return instantiate(parser.parse_object({"data": entry})).data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_set_as_configured_agrees_with_what_it_tells_the_model(path: Path, tmp_path: Path):
    folders = ("val", "cifar-10-batches-py", "cifar-100-python", "images", "annotations")
    for name in ("ant", "bee") if path.stem == "image_folder" else folders:
        (tmp_path / name).mkdir()
    text = path.read_text()
    settings: dict[str, object] = (
        {} if path.stem == "fashion_mnist" else {"root": str(tmp_path), "seed": 3}
    )
    for group, names in GROUPS.items() if path.stem == "imagenet_c" else ():
        for place in (f"{name}/{severity}" for name in names for severity in range(1, 6)):
            (tmp_path / group / place).mkdir(parents=True)
    data = build(path, **settings)
    model = yaml.safe_load(text).get("model", {})
    assert model.get("num_classes", data.num_classes) == data.num_classes
    assert model.get("in_chans", data.in_chans) == data.in_chans
    assert len(data.test_cells) == CELLS.get(path.stem, 1) and data.seed == settings.get("seed", 0)


@pytest.mark.parametrize(
    "bad",
    [
        {"batch_sise": 3},
        {"batch_size": 0},
        {"corruptions": "papers"},
        {"severities": [6]},
        {"per_class": {"trian": 3}},
    ],
)
def test_a_misspelled_setting_or_a_bad_value_is_refused(bad: dict[str, object]):
    with pytest.raises(Exception, match=str(next(iter(bad)))):
        build(CONFIGS / "data" / "fashion_mnist.yaml", **bad)
