"""Which settings make another run, and which do not."""

from typing import Any

import pytest

from chaosgate.run import identity

GATE = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0, "gamma": None}}
CONFIG: dict[str, Any] = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 3, "logger": None, "callbacks": None},
    "model": {"backbone": "resnet18", "backbone_args": {"a": [1, 2]}},
    "data": {
        "class_path": "chaosgate.ImageNet",
        "init_args": {"root": "/a", "batch_size": 4, "severities": [1]},
    },
    "noise": {"gate": GATE, "stages": ["L4"], "monte_carlo": 0},
    "temperature": True,
}


def changed(key: str, value: Any, config: dict[str, Any] = CONFIG) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {**config, first: changed(rest, value, config.get(first) or {}) if rest else value}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.max_epochs", 4),
        ("trainer.accumulate_grad_batches", 2),
        ("trainer.callbacks", [{"class_path": "my.Callback"}]),
        ("model.backbone_args", {"a": [1, 3]}),
        ("data.init_args.batch_size", 8),
        ("data.class_path", "chaosgate.ImageFolder"),
        ("noise.stages", ["L3"]),
        ("noise.gate", None),
        ("noise.gate.init_args.log_std", 0.5),
        ("noise.gate.init_args.operator", {"class_path": "mine.Operator"}),
        ("saving.tolerance", 0.1),
        ("seed_everything", 1),
    ],
)
def test_setting_that_shapes_the_network_is_another_training(key: str, value: Any) -> None:
    assert identity.training_hash(changed(key, value)) != identity.training_hash(CONFIG)
    assert identity.test_hash(changed(key, value), CONFIG) != identity.test_hash(CONFIG, CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.logger", {"class_path": "lightning.pytorch.loggers.CSVLogger"}),
        ("trainer.callbacks", [{"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}]),
        ("trainer.callbacks", [{"class_path": "lightning.pytorch.callbacks.RichProgressBar"}]),
        ("trainer.argument_of_a_later_release", 7),
        ("trainer.accelerator", "cpu"),
        ("data.init_args.num_workers", 8),
        ("data.init_args.cache_dir", "somewhere"),
        ("data.init_args.root", "/b"),
        ("data.class_path", "chaosgate.data.imagenet.ImageNet"),
        ("data.init_args.seed", 7),
        ("trainer.max_epochs", 3.0),
        ("run_dir", "elsewhere"),
        ("labels", {"study": "s"}),
        ("model.added_later", None),
    ],
)
def test_setting_that_does_not_is_the_same_training_and_the_same_test(key: str, value: Any) -> None:
    assert identity.training_hash(changed(key, value)) == identity.training_hash(CONFIG)
    assert identity.test_hash(CONFIG, changed(key, value)) == identity.test_hash(CONFIG, CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.init_args.severities", [2]),
        ("noise.monte_carlo", 4),
        ("noise.reestimate_bn", 9),
        ("temperature", False),
    ],
)
def test_setting_of_the_test_is_another_test_of_the_same_training(key: str, value: Any) -> None:
    assert identity.training_hash(changed(key, value)) == identity.training_hash(CONFIG)
    assert identity.test_hash(CONFIG, changed(key, value)) != identity.test_hash(CONFIG, CONFIG)


@pytest.mark.parametrize(
    "own", ["chaosgate.ImageFolder", "chaosgate.data.HuggingFace", "my_sets.ImageNet"]
)
def test_folder_of_own_images_counts(own: str) -> None:
    folder = changed("data.class_path", own)
    assert identity.training_hash(folder) != identity.training_hash(
        changed("data.init_args.root", "/b", folder)
    )


@pytest.mark.parametrize(
    "name", ["CIFAR10", "CIFAR100", "FashionMNIST", "ImageNetC", "ImageNetVariant", "OxfordPets"]
)
def test_place_of_a_published_set_counts_only_in_whether_it_is_given(name: str) -> None:
    here = changed("data.class_path", f"chaosgate.data.{name}")
    there = changed("data.init_args.root", "/b", here)
    assert identity.training_hash(here) == identity.training_hash(there)
    assert identity.test_hash(here, here) == identity.test_hash(there, there)


def test_released_corruptions_are_another_test_of_the_same_training_wherever_they_are() -> None:
    made = changed("data.class_path", "chaosgate.data.CIFAR10")
    here, there = (changed("data.init_args.released", place, made) for place in ("/a/c", "/b/c"))
    assert identity.training_hash(made) == identity.training_hash(here)
    assert (
        identity.test_hash(made, made)
        != identity.test_hash(made, here)
        == identity.test_hash(made, there)
    )


def test_the_embedded_subset_is_not_the_whole_set() -> None:
    fashion = changed(
        "data.class_path", "chaosgate.FashionMNIST"
    )  # without a root: the embedded subset
    assert identity.training_hash(fashion) != identity.training_hash(
        changed("data.init_args.root", None, fashion)
    )


def test_without_a_gate_it_does_not_matter_where_it_would_stand() -> None:
    none = changed("noise.gate", None)
    assert identity.training_hash(none) == identity.training_hash(
        changed("noise.stages", ["L1"], none)
    )


def test_noise_in_the_callbacks_is_part_of_name_and_hash() -> None:
    callback = {
        "class_path": "chaosgate.NoiseInjection",
        "init_args": {"gate": GATE, "stages": ["L3"]},
    }
    none = changed("noise.gate", None)
    listed = changed("trainer.callbacks", [callback], none)
    assert "-GaussianChaos-log_std1-L3-" in identity.run_name(
        listed
    ) and "-none-" in identity.run_name(none)
    assert identity.training_hash(listed) != identity.training_hash(none)


def test_what_is_not_plain_data_is_refused() -> None:
    with pytest.raises(TypeError):
        identity.training_hash(changed("model.optimizer", lambda parameters: parameters))
