"""Names and hashes of runs, and the provenance of their numbers. Needs no torch.

A run has a readable name and a hash of what shapes its result. Functions of a configuration take a
**parsed** configuration as plain data: what ``fit ... --print_config`` prints, what ``config.yaml``
of a run directory holds, what :func:`chaosgate.cli.training.compose` returns. Defaults are in it,
so the name does not depend on how the configuration is split into files.

The hash covers what is listed here, so that a new argument of Lightning renames no run. Keys whose
value is null do not count: an optional argument that is added to a class renames no run either.
"""

import platform
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from chaosgate import __version__
from chaosgate.run.files import RunDirectory, config_hash, file_hash

Config = Mapping[str, Any]
_TRAINER = """max_epochs max_steps max_time min_epochs min_steps precision devices num_nodes
    limit_train_batches limit_val_batches overfit_batches val_check_interval check_val_every_n_epoch
    accumulate_grad_batches gradient_clip_val gradient_clip_algorithm sync_batchnorm""".split()
"""Keys of the trainer that shape a training."""
_LOADING = """cache_dir channels_last download eval_batch_size index_dir num_workers seed
    unpack""".split()
"""Keys of the data that say how images are loaded; the seed is that of the run."""
_TEST_DATA = """corruption_jpeg corruption_table corruptions frost_textures released
    severities""".split()
_TEST_NOISE = ["class_axis", "monte_carlo", "reestimate_bn"]
"""Keys that matter for a test only; the last one was an option of earlier versions."""
_PUBLISHED = "CIFAR10 CIFAR100 FashionMNIST ImageNet ImageNetC ImageNetVariant OxfordPets".split()
"""Data sets that do not depend on the folder; only whether these keys are set counts."""
_PLACES = "root clean released val_folder val_labels".split()
_WATCHING = ("Checkpoint", "Monitor", "Probe", "ProgressBar", "Summary")
"""Callbacks whose class name ends like this do not change a training."""
_STRENGTHS = ("gamma", "log_std", "p", "sigma")  # in the name of a run
_PACKAGES = ("torch", "torchvision", "timm", "lightning", "torchmetrics", "numpy")
_TRANSFORM = ("mean", "std", "image_size", "eval_resize", "interpolation", "decoder")


def training_settings(config: Config) -> dict[str, Any]:
    """What :func:`training_hash` hashes, as dotted keys with values."""
    noise, trainer = config.get("noise") or {}, config.get("trainer") or {}
    saving = config.get("saving") or {}
    acting = [one for one in _callbacks(config) if not _class_name(one).endswith(_WATCHING)]
    return _flat(
        {
            "seed_everything": config.get("seed_everything"),
            "model": _without(config.get("model"), ["data"]),
            "data": _data(config, _LOADING + _TEST_DATA),
            "noise": _without(noise, ["check", *_TEST_NOISE]) if noise.get("gate") else None,
            "trainer": {**{key: trainer.get(key) for key in _TRAINER}, "callbacks": acting or None},
            "saving": {"tolerance": saving.get("tolerance")},
        }
    )


def training_hash(config: Config) -> str:
    """A short hash of the settings that shape the trained network.

    >>> one = {"trainer": {"max_epochs": 2, "logger": None}, "data": {"init_args": {"seed": 0}}}
    >>> two = {"trainer": {"max_epochs": 2.0, "logger": False}, "run_dir": "elsewhere"}
    >>> training_hash(one) == training_hash(two) != training_hash({"trainer": {"max_epochs": 3}})
    True
    """
    return config_hash(training_settings(config))


def test_hash(training: Config, test: Config) -> str:
    """A short hash of the settings that shape a test, except which network of the run is tested.

    Args:
        training: The parsed configuration of the ``fit``.
        test: The parsed configuration of the ``test``.
    """
    noise = {"reestimate_bn": 0, **(test.get("noise") or {})}
    more = {
        "noise": {key: noise.get(key) for key in _TEST_NOISE},
        "data": _data(test, _LOADING),
        "temperature": test.get("temperature"),
    }
    return config_hash([training_hash(training), {**training_settings(test), **_flat(more)}])


def run_name(config: Config) -> str:
    """Name of a run directory: :func:`readable_name` and :func:`training_hash`."""
    return f"{readable_name(config)}-{training_hash(config)}"


def readable_name(config: Config) -> str:
    """Backbone, data, noise and seed.

    >>> arguments = {"log_std": 1.0, "gamma": None}
    >>> gate = {"class_path": "chaosgate.GaussianChaos", "init_args": arguments}
    >>> config = {"seed_everything": 3, "model": {"backbone": "vit"}}
    >>> config["data"] = {"class_path": "a.Pets"}
    >>> readable_name({**config, "noise": {"gate": gate, "stages": ["L3", "L4"]}})
    'vit-Pets-GaussianChaos-log_std1-L3+L4-seed3'
    """
    backbone = str((config.get("model") or {}).get("backbone", ""))
    noise = [word for one in noises(config) for word in _noise_words(one)] or ["none"]
    words = [backbone, _class_name(config.get("data") or {}), *noise]
    return "-".join([*filter(None, words), f"seed{config.get('seed_everything')}"])


def noises(config: Config) -> list[Config]:
    """The arguments of each ``NoiseInjection`` with a gate: of ``noise``, of the callbacks."""
    listed = [one for one in _callbacks(config) if _class_name(one) == "NoiseInjection"]
    every = [config.get("noise") or {}, *(one.get("init_args") or {} for one in listed)]
    return [one for one in every if one.get("gate")]


def _noise_words(noise: Config) -> list[str]:
    """Class, strength and stages of the gate, or of the gate of every stage."""
    gate, stages = noise["gate"], noise.get("stages") or ["L4"]
    if "class_path" not in gate:
        by_stage = [{"gate": one, "stages": [stage]} for stage, one in gate.items()]
        return [word for one in by_stage for word in _noise_words(one)]
    given = gate.get("init_args") or {}
    known = [key for key in _STRENGTHS if isinstance(given.get(key), int | float)]
    return [_class_name(gate), *(f"{key}{given[key]:g}" for key in known), "+".join(stages)]


def check_resume(run: RunDirectory, config: Config) -> None:
    """Raise an error if the run was started with settings that differ."""
    now, before = training_settings(config), training_settings(run.settings())
    changed = [
        f"{key} was {before.get(key)}, now {now.get(key)}"
        for key in sorted({**before, **now})
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise ValueError(
            f"{run.path} was started with other settings: {'; '.join(changed)}. Use those, or "
            f"start another run from its state: --run_dir OTHER --ckpt_path {run.last}."
        )


def _class_name(node: Config) -> str:
    """The last part of a ``class_path``; empty without one."""
    return str(node.get("class_path") or "").rpartition(".")[2]


def _callbacks(config: Config) -> list[Config]:
    found = (config.get("trainer") or {}).get("callbacks") or []
    return [found] if isinstance(found, Mapping) else found


def _data(config: Config, left_out: list[str]) -> dict[str, Any]:
    """The settings of the data; for published sets, whether a folder is given, not which."""
    data = config.get("data") or {}
    given = _without(data.get("init_args"), left_out)
    if _class_name(data) in _PUBLISHED and str(data["class_path"]).startswith("chaosgate."):
        given |= {key: True for key in _PLACES if given.get(key) is not None}
    return {**data, "init_args": given}


def _without(node: Config | None, keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in (node or {}).items() if key not in keys}


def _flat(node: Config, prefix: str = "") -> dict[str, Any]:
    """Dotted keys with their values, where they are not null."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[f"{prefix}{key}"] = _plain(value, key)
    return found


def _plain(value: Any, key: Any = None) -> Any:
    """One spelling for each value: 1 and 1.0, tuples and lists, paths of classes of chaosgate."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v, k) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if key == "class_path" and str(value).startswith("chaosgate."):
        return f"chaosgate.{_class_name({key: value})}"
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


# -- where numbers came from ---------------------------------------------------------------------


@lru_cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a number."""
    own = {"python": platform.python_version(), "chaosgate": __version__}
    return own | {name: version(name) for name in _PACKAGES}


@lru_cache
def processor() -> str:
    """Model of the processor: the last digits of sums differ between processors."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(": ")[2]
    return platform.processor() or platform.machine()


@lru_cache
def commit() -> str | None:
    """Commit of this source tree, with ``+`` if files differ from it; None outside of git."""
    words = "describe --always --abbrev=40 --exclude=* --dirty=+".split()
    command = ["git", "-C", str(Path(__file__).parent), *words]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def weights_of(checkpoint: Any, module: Any) -> dict[str, str | None]:
    """Name and SHA-256 of the tested weights: of the checkpoint, else of the model's file."""
    if (file := checkpoint or getattr(module, "weights", None)) in (None, "timm"):
        return {"checkpoint": file, "checkpoint_name": file}
    return {"checkpoint": file_hash(file), "checkpoint_name": Path(file).name}


def transform_of(data: Any) -> dict[str, Any]:
    """Preprocessing of the images, as far as the data module states it."""
    found = {name: getattr(data, name, None) for name in _TRANSFORM}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in found.items() if v is not None}
    return {name: getattr(value, "value", value) for name, value in plain.items()}
