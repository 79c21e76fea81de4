"""Which settings make another run, and which do not."""

from typing import Any

import pytest

from chaosgate.run import identity

GATE = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0, "gamma": None}}
IMAGES = {"root": "/a", "batch_size": 4, "severities": [1]}
CONFIG: dict[str, Any] = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 3, "logger": None, "callbacks": None},
    "model": {"backbone": "resnet18", "backbone_args": {"a": [1, 2]}},
    "data": {"class_path": "chaosgate.ImageNet", "init_args": IMAGES},
    "noise": {"gate": GATE, "stages": ["L4"], "monte_carlo": 0},
    "temperature": True,
}
NAME = identity.run_name(CONFIG)


def changed(key: str, value: Any, config: dict[str, Any] = CONFIG) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {**config, first: changed(rest, value, config.get(first) or {}) if rest else value}


def same_training(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return identity.training_hash(one) == identity.training_hash(two)


def test_names_of_existing_runs_stay() -> None:
    assert NAME == "resnet18-ImageNet-GaussianChaos-log_std1-L4-seed0-7c9993cc"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.max_epochs", 4),
        ("trainer.callbacks", [{"class_path": "my.Callback"}]),
        ("model.backbone_args", {"a": [1, 3]}),
        ("data.init_args.batch_size", 8),
        ("data.class_path", "chaosgate.ImageFolder"),
        ("noise.stages", ["L3"]),
        ("noise.gate", None),
        ("noise.gate.init_args.operator", {"class_path": "mine.Operator"}),
        ("saving.tolerance", 0.1),
        ("seed_everything", 1),
    ],
)
def test_setting_that_shapes_the_network_is_another_training(key: str, value: Any) -> None:
    assert not same_training(changed(key, value), CONFIG)
    assert identity.test_hash(changed(key, value), CONFIG) != identity.test_hash(CONFIG, CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.logger", {"class_path": "lightning.pytorch.loggers.CSVLogger"}),
        ("trainer.callbacks", [{"class_path": "lightning.pytorch.callbacks.RichProgressBar"}]),
        ("trainer.argument_of_a_later_release", 7),
        ("trainer.accelerator", "cpu"),
        ("data.init_args.num_workers", 8),
        ("data.init_args.root", "/b"),
        ("data.class_path", "chaosgate.data.imagenet.ImageNet"),
        ("data.init_args.seed", 7),
        ("trainer.max_epochs", 3.0),
        ("labels", {"study": "s"}),
        ("model.added_later", None),
    ],
)
def test_setting_that_does_not_is_the_same_training_and_the_same_test(key: str, value: Any) -> None:
    assert same_training(changed(key, value), CONFIG)
    assert identity.test_hash(CONFIG, changed(key, value)) == identity.test_hash(CONFIG, CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.init_args.severities", [2]),
        ("data.init_args.released", "/c"),
        ("noise.monte_carlo", 4),
        ("temperature", False),
    ],
)
def test_setting_of_the_test_is_another_test_of_the_same_training(key: str, value: Any) -> None:
    assert same_training(changed(key, value), CONFIG)
    assert identity.test_hash(CONFIG, changed(key, value)) != identity.test_hash(CONFIG, CONFIG)


@pytest.mark.parametrize("own", ["chaosgate.ImageFolder", "my_sets.ImageNet"])
def test_folder_of_own_images_counts(own: str) -> None:
    folder = changed("data.class_path", own)
    assert not same_training(folder, changed("data.init_args.root", "/b", folder))


def test_the_embedded_subset_is_not_the_whole_set() -> None:
    fashion = changed("data.class_path", "chaosgate.FashionMNIST")
    assert not same_training(fashion, changed("data.init_args.root", None, fashion))


def test_noise_in_the_callbacks_is_part_of_name_and_hash() -> None:
    arguments = {"gate": GATE, "stages": ["L3"]}
    callback = {"class_path": "chaosgate.NoiseInjection", "init_args": arguments}
    none = changed("noise.gate", None)
    listed = changed("trainer.callbacks", [callback], none)
    assert "-GaussianChaos-log_std1-L3-" in identity.run_name(listed)
    assert "-none-" in identity.run_name(none)
    assert not same_training(listed, none)
    assert same_training(none, changed("noise.stages", ["L1"], none))
