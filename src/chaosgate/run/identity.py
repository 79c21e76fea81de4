"""Which run a configuration belongs to: a readable name, and a hash of the settings that shape the result.

Every function takes a **parsed** configuration as plain data: what ``chaosgate fit ... --print_config`` prints, what
``config.yaml`` in a run directory holds, what :func:`chaosgate.cli.fit.parsed` returns. Defaults are in it, so the name
does not depend on how the configuration is split into files.

The hash covers what is listed here, so that a new argument of Lightning renames no run. Keys whose value is null do not
count: an optional argument that is added to a class later leaves earlier runs as they are.
"""

from collections.abc import Mapping
from typing import Any

from chaosgate.run.directory import RunDirectory
from chaosgate.run.provenance import config_hash

_TRAINER = (
    "max_epochs",
    "max_steps",
    "max_time",
    "min_epochs",
    "min_steps",
    "precision",
    "devices",
    "num_nodes",
) + (
    "limit_train_batches",
    "limit_val_batches",
    "overfit_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "sync_batchnorm",
)
"""The trainer's keys that shape a training."""
_LOADING = (
    "cache_dir",
    "channels_last",
    "download",
    "eval_batch_size",
    "index_dir",
    "num_workers",
    "seed",
    "unpack",
)
"""Keys of the data that say how images are loaded; the seed is that of the run."""
_TEST_DATA = (
    "corruption_jpeg",
    "corruption_table",
    "corruptions",
    "frost_textures",
    "released",
    "severities",
)
_TEST_NOISE = ("class_axis", "monte_carlo", "reestimate_bn")
"""Keys that matter for a test only."""
_PUBLISHED = (
    "CIFAR10",
    "CIFAR100",
    "FashionMNIST",
    "ImageNet",
    "ImageNetC",
    "ImageNetVariant",
    "OxfordPets",
)
_PLACES = (
    "root",
    "clean",
    "released",
    "val_folder",
    "val_labels",
)  # a published set is the same in any folder
_WATCHING = ("Checkpoint", "Monitor", "Probe", "ProgressBar", "Summary")
"""Callbacks whose class name ends like this do not change a training."""
_STRENGTHS = ("gamma", "epsilon", "beta", "log_std", "p", "sigma")


def training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`training_hash` hashes, as dotted keys with values."""
    trainer = config.get("trainer") or {}
    chosen: dict[str, Any] = {
        "seed_everything": config.get("seed_everything"),
        "model": _without(config.get("model") or {}, ("data",)),
        "data": _data(config.get("data") or {}, (*_LOADING, *_TEST_DATA)),
        "noise": _without((config.get("noise") or {}), ("check", *_TEST_NOISE)),
        "trainer": {key: trainer.get(key) for key in _TRAINER},
        "saving": {"tolerance": (config.get("saving") or {}).get("tolerance")},
    }
    if not chosen["noise"].get("gate"):  # the stages of a gate that is not there do not matter
        del chosen["noise"]
    acting = [one for one in _callbacks(config) if not class_name(one).endswith(_WATCHING)]
    chosen["trainer"]["callbacks"] = acting or None
    return _flat(chosen)


def training_hash(config: Mapping[str, Any]) -> str:
    """A short hash of the settings that shape the trained network.

    >>> one = {"seed_everything": 0, "trainer": {"max_epochs": 2, "logger": None}, "data": {"init_args": {"seed": 0}}}
    >>> two = {"seed_everything": 0, "trainer": {"max_epochs": 2.0, "logger": False}, "run_dir": "elsewhere"}
    >>> training_hash(one) == training_hash(two), training_hash(one) == training_hash({"trainer": {"max_epochs": 3}})
    (True, False)
    """
    return config_hash(training_settings(config))


def test_hash(training: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """A short hash of the settings that shape the result of a test, except which checkpoint of the run is tested.

    Args:
        training: The parsed configuration of the ``fit``.
        test: The parsed configuration of the ``test``.
    """
    noise = {key: (test.get("noise") or {}).get(key) for key in _TEST_NOISE}
    more = {"noise": noise, "temperature": test.get("temperature")}
    more["data"] = _data(test.get("data") or {}, _LOADING)
    return config_hash([training_hash(training), {**training_settings(test), **_flat(more)}])


def run_name(config: Mapping[str, Any]) -> str:
    """Name of a run directory: backbone, data, noise and seed for the reader, :func:`training_hash` for the rest."""
    return f"{readable_name(config)}-{training_hash(config)}"


def readable_name(config: Mapping[str, Any]) -> str:
    """The part of :func:`run_name` before the hash.

    >>> gate = {"class_path": "chaosgate.GaussianChaos", "init_args": {"log_std": 1.0, "gamma": None}}
    >>> config = {"seed_everything": 3, "model": {"backbone": "resnet18"}, "data": {"class_path": "a.Pets"}}
    >>> readable_name({**config, "noise": {"gate": gate, "stages": ["L3", "L4"]}})
    'resnet18-Pets-GaussianChaos-log_std1-L3+L4-seed3'
    """
    model, data = config.get("model") or {}, config.get("data") or {}
    noise = [word for one in noises(config) for word in _noise_words(one)] or ["none"]
    words = [str(model.get("backbone", "")), class_name(data), *noise]
    return "-".join([*filter(None, words), f"seed{config.get('seed_everything')}"])


def noises(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The arguments of every ``NoiseInjection`` with a gate: of the key ``noise`` and of ``trainer.callbacks``."""
    listed = [one for one in _callbacks(config) if class_name(one) == "NoiseInjection"]
    every = [config.get("noise") or {}, *(one.get("init_args") or {} for one in listed)]
    return [one for one in every if one.get("gate")]


def _callbacks(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = (config.get("trainer") or {}).get("callbacks") or []
    return [found] if isinstance(found, Mapping) else found


def check_resume(run: RunDirectory, config: Mapping[str, Any]) -> None:
    """Raise an error if the run was started with other settings: the checkpoint would silently decide some of them."""
    before = (
        training_settings(run.settings()) if run.config.is_file() else training_settings(config)
    )
    now = training_settings(config)
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if changed:
        said = "; ".join(
            f"{key} was {_said(before.get(key))}, now {_said(now.get(key))}" for key in changed
        )
        raise ValueError(
            f"{run.path} was started with other settings: {said}. Use the old ones (they are in {run.config}), or "
            f"start another run from its state: --run_dir OTHER --ckpt_path {run.last}. Nothing was changed."
        )


def _said(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _data(data: Mapping[str, Any], left_out: tuple[str, ...]) -> dict[str, Any]:
    """The data's settings; of a published set it only matters whether a folder is given, not which."""
    given = _without(data.get("init_args") or {}, left_out)
    published = (
        str(data.get("class_path")).startswith("chaosgate.") and class_name(data) in _PUBLISHED
    )
    if published:
        given |= {key: True for key in _PLACES if given.get(key) is not None}
    return {**data, "init_args": given}


def _without(node: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys with their values, where they are not null."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[f"{prefix}{key}"] = _plain(value, key)
    return found


def _plain(value: Any, key: Any = None) -> Any:
    """One spelling for each value: 1 and 1.0, tuples and lists, the paths of a class of this package."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v, k) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if str(key).endswith("class_path") and str(value).startswith("chaosgate."):
        return f"chaosgate.{str(value).rsplit('.', 1)[-1]}"
    return value


def _noise_words(noise: Mapping[str, Any]) -> list[str]:
    """Class, strength and stages of a gate."""
    gate = noise["gate"]
    if "class_path" not in gate:  # a gate for every stage
        return [
            word
            for stage, one in gate.items()
            for word in _noise_words({"gate": one, "stages": [stage]})
        ]
    named = [
        f"{key}{value:g}"
        for key, value in strengths(gate).items()
        if key not in ("epsilon", "beta")
    ]
    return [class_name(gate), *named, "+".join(stages_of(noise))]


def strengths(gate: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in the configuration of a gate that say how strong it is, by their names."""
    given = gate.get("init_args") or {}
    return {key: given[key] for key in _STRENGTHS if isinstance(given.get(key), int | float)}


def stages_of(noise: Mapping[str, Any]) -> list[str]:
    """The stages of the configured gates: of one gate, or of a mapping from stages to gates."""
    if "class_path" not in noise["gate"]:
        return list(noise["gate"])
    stages = noise.get("stages") or ["L4"]
    return [stages] if isinstance(stages, str) else list(stages)


def class_name(node: Mapping[str, Any]) -> str:
    """The last part of a ``class_path``; empty without one."""
    return str(node.get("class_path") or "").rsplit(".", 1)[-1]
