"""Which settings make another run, and which do not."""

import pytest

from chaosgate.run.identity import run_name, test_hash, training_hash

test_hash.__test__ = False  # not a test
GATE = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0, "gamma": None}}
IMAGES = {"root": "/a", "batch_size": 4, "severities": [1]}
CONFIG = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 3, "logger": None, "callbacks": None},
    "model": {"backbone": "resnet18", "backbone_args": {"a": [1, 2]}},
    "data": {"class_path": "chaosgate.ImageNet", "init_args": IMAGES},
    "noise": {"gate": GATE, "stages": ["L4"], "monte_carlo": 0},
    "temperature": True,
}


def changed(key, value, config=CONFIG):
    first, _, rest = key.partition(".")
    return {**config, first: changed(rest, value, config.get(first) or {}) if rest else value}


def test_names_of_existing_runs_stay():
    assert run_name(CONFIG) == "resnet18-ImageNet-GaussianChaos-log_std1-L4-seed0-7c9993cc"


TRAINING = [  # another training, and so another test
    ("trainer.max_epochs", 4),
    ("trainer.callbacks", [{"class_path": "my.Callback"}]),
    ("data.init_args.batch_size", 8),
    ("data.class_path", "chaosgate.ImageFolder"),
    ("noise.stages", ["L3"]),
    ("noise.gate", None),
    ("saving.tolerance", 0.1),
    ("seed_everything", 1),
]
TEST = [  # another test of the same training
    ("data.init_args.severities", [2]),
    ("data.init_args.released", "/c"),
    ("noise.monte_carlo", 4),
    ("temperature", False),
]
NOTHING = [
    ("trainer.logger", {"class_path": "lightning.pytorch.loggers.CSVLogger"}),
    ("trainer.callbacks", [{"class_path": "lightning.pytorch.callbacks.RichProgressBar"}]),
    ("trainer.argument_of_a_later_release", 7),
    ("data.init_args.num_workers", 8),
    ("data.init_args.root", "/b"),
    ("data.class_path", "chaosgate.data.imagenet.ImageNet"),
    ("data.init_args.seed", 7),
    ("trainer.max_epochs", 3.0),
    ("model.added_later", None),
]


@pytest.mark.parametrize("change", [*TRAINING, *TEST, *NOTHING], ids=lambda change: change[0])
def test_a_setting_makes_another_training_or_test_or_none(change):
    other = changed(*change)
    assert (training_hash(other) != training_hash(CONFIG)) == (change in TRAINING)
    assert (test_hash(CONFIG, other) != test_hash(CONFIG, CONFIG)) == (change not in NOTHING)
    assert (test_hash(other, CONFIG) != test_hash(CONFIG, CONFIG)) == (change in TRAINING)


def test_the_folder_counts_for_own_images_and_for_an_embedded_subset():
    for own in ("chaosgate.ImageFolder", "my_sets.ImageNet"):
        folder = changed("data.class_path", own)
        other = changed("data.init_args.root", "/b", folder)
        assert training_hash(folder) != training_hash(other)
    fashion = changed("data.class_path", "chaosgate.FashionMNIST")
    embedded = changed("data.init_args.root", None, fashion)
    assert training_hash(fashion) != training_hash(embedded)


def test_noise_in_the_callbacks_is_part_of_name_and_hash():
    arguments = {"gate": GATE, "stages": ["L3"]}
    callback = {"class_path": "chaosgate.NoiseInjection", "init_args": arguments}
    none = changed("noise.gate", None)
    listed = changed("trainer.callbacks", [callback], none)
    assert "-GaussianChaos-log_std1-L3-" in run_name(listed) and "-none-" in run_name(none)
    assert training_hash(listed) != training_hash(none)
    assert training_hash(none) == training_hash(changed("noise.stages", ["L1"], none))
