"""One definition of "the same training" and "the same test", used by ``fit``, ``test`` and studies.

It also decides what a continued run may change. An optimiser that is restored from a checkpoint keeps its learning
rate, a gate its counters; a changed configuration would be written down and not be followed. So ``--resume`` compares
the stored configuration with the present one (:func:`check_resume`).

Every function takes a **parsed** configuration as plain data: what ``chaosgate fit ... --print_config`` prints, what
``config.yaml`` in a run directory holds, what :func:`chaosgate.cli.fit.parsed` returns. Defaults are in it, so a
default that changes in the code is another run, however the configuration is cut into files.

What does not shape the result is listed here and nowhere else. Keys whose value is null do not count either: an
optional argument that is added to a class later leaves earlier runs what they were.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from chaosgate.run.directory import RunDirectory
from chaosgate.run.provenance import config_hash

_DATA = "data.init_args."
_COMMAND = {
    "checkpoints",
    "ckpt_path",
    "config",
    "labels",
    "output",
    "outputs",
    "logits",
    "ood",
    "resume",
    "return_predictions",
    "run_dir",
    "verbose",
    "weights_only",
}
_TRAINER = {
    "accelerator",
    "benchmark",
    "default_root_dir",
    "detect_anomaly",
    "enable_autolog_hparams",
    "enable_checkpointing",
    "enable_model_summary",
    "enable_progress_bar",
    "inference_mode",
    "log_every_n_steps",
    "logger",
    "model_registry",
    "num_sanity_val_steps",
    "profiler",
}
NEUTRAL = frozenset(
    {
        *_COMMAND,
        *(f"trainer.{key}" for key in _TRAINER),
        *(
            f"{_DATA}{key}"
            for key in ("cache_dir", "download", "eval_batch_size", "index_dir", "num_workers", "unpack")
        ),
        f"{_DATA}seed",  # a copy of seed_everything
        f"{_DATA}channels_last",
        "model.channels_last",
        "noise.check",
        "saving.every_n_steps",
    }
)
"""Keys that say where, how fast and how visibly; a run is the same run with other values of them."""
AT_TEST = frozenset(
    {
        *(f"{_DATA}{key}" for key in ("corruption_jpeg", "corruption_table", "corruptions", "frost_textures")),
        *(f"{_DATA}{key}" for key in ("released", "severities")),
        "noise.class_axis",
        "noise.monte_carlo",
        "noise.reestimate_bn",
        "temperature",
        "trainer.limit_predict_batches",
        "trainer.limit_test_batches",
    }
)
"""Keys that say how a trained network is tested; they have no part in the training."""
_PUBLISHED = {  # the same images wherever they are; a set of one's own is its folder
    f"chaosgate.{name}"
    for name in ("CIFAR10", "CIFAR100", "FashionMNIST", "ImageNet", "ImageNetC", "ImageNetVariant", "OxfordPets")
}
_PLACES = tuple(f"{_DATA}{key}" for key in ("root", "clean", "released", "val_folder", "val_labels"))
_ONLY_SHOWING = {  # callbacks
    "CompatibilityProbe",
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelSummary",
    "RichModelSummary",
    "RichProgressBar",
    "TQDMProgressBar",
}
_STRENGTHS = ("gamma", "epsilon", "beta", "log_std", "p", "sigma")
_LENGTH = tuple(f"trainer.{key}" for key in ("max_epochs", "max_steps", "max_time", "min_epochs", "min_steps"))
_SHOWN = 12  # differences in one message


def training_hash(config: Mapping[str, Any]) -> str:
    """A short hash of everything in the parsed configuration of a ``fit`` or ``test`` that shapes the trained network.

    >>> one = {"seed_everything": 0, "trainer": {"max_epochs": 2, "logger": None}, "data": {"init_args": {"seed": 0}}}
    >>> two = {"seed_everything": 0, "trainer": {"max_epochs": 2.0, "logger": False}, "run_dir": "elsewhere"}
    >>> training_hash(one) == training_hash(two), training_hash(one) == training_hash({"trainer": {"max_epochs": 3}})
    (True, False)
    """
    return config_hash(training_settings(config))


def test_hash(training: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """A short hash of everything that shapes the result of a test, except which checkpoint of the run is tested.

    Args:
        training: The parsed configuration of the ``fit``.
        test: The parsed configuration of the ``test``.
    """
    return config_hash([training_hash(training), _settings(test, NEUTRAL)])


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
    model, data, noise = ((config.get(key) or {}) for key in ("model", "data", "noise"))
    words = [str(model.get("backbone", "")), class_name(data), *_noise_words(noise)]
    return "-".join([*filter(None, words), f"seed{config.get('seed_everything')}"])


def runs_alike(run: RunDirectory, config: Mapping[str, Any]) -> list[RunDirectory]:
    """Runs beside the asked one whose names begin alike; a start that failed has left nothing but a lock."""
    names = {readable_name(config), _name_before(config)}
    others = [RunDirectory(path) for path in sorted(run.path.parent.glob("*/")) if path.name != run.path.name]
    begun = [other for other in others if other.config.is_file() or other.checkpoints.is_dir()]
    return [other for other in begun if other.path.name.rpartition("-")[0] in names]


def _name_before(config: Mapping[str, Any]) -> str:
    """How run directories were called before: without the strength, and with a hash that left the trainer out."""
    short = {**config, "noise": {**config["noise"]}}
    if (gate := config["noise"]["gate"]) is not None:
        short["noise"]["gate"] = {"class_path": gate["class_path"]} if "class_path" in gate else gate
    return readable_name(short)


def training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`training_hash` hashes: dotted keys with values, for a comparison key by key."""
    settings = _settings(config, NEUTRAL | AT_TEST)
    if (config.get("noise") or {}).get("gate") is None:  # without a gate it does not matter where it would stand
        settings = {key: value for key, value in settings.items() if not key.startswith("noise.")}
    return settings


def check_resume(run: RunDirectory, config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Refuse to continue a run whose training began with other settings; return what may change and has.

    Workers, folders, logging and callbacks that only show something may change; the length only where neither the
    learning-rate schedule nor an average of the weights over the last epochs depends on it. Any other callback may
    change the training (an average of the weights does), so it must be the same.

    Args:
        run: A run with ``config.yaml``; without one there is nothing to compare with.
        config: The parsed configuration of the present command.
    """
    if not run.config.is_file():
        return {}
    stored = run.settings()
    before, now = training_settings(stored), training_settings(config)
    free = () if _follows_length(config) else _LENGTH
    wrong = {key: change for key, change in _differences(before, now).items() if key not in free}
    if wrong:
        reason = f" ({_follows_length(config)})" if set(wrong) & set(_LENGTH) else ""
        raise ValueError(
            f"{run.path} was started with other settings: {_in_words(wrong)}{reason}. Continue it with the old ones "
            f"(they are in {run.config}), or give another --run_dir to train from scratch with the new ones. Nothing "
            "was changed."
        )
    return _differences(_flat(stored), _flat(config))


def changed_settings(run: RunDirectory, config: Mapping[str, Any]) -> str:
    """What shapes the training and differs from the configuration stored in ``run``, in words."""
    return _in_words(_differences(training_settings(run.settings()), training_settings(config)))


def _in_words(differences: Mapping[str, list[Any]]) -> str:
    shown = [f"{key} was {_said(old)}, now {_said(new)}" for key, (old, new) in differences.items()]
    more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return "; ".join([*shown[:_SHOWN], *more])


def history_line(step: int, changes: Mapping[str, list[Any]]) -> str:
    """One line of ``config_history.jsonl``: from which step on which settings had which new values."""
    changed = {key: {"before": before, "now": now} for key, (before, now) in changes.items()}
    return json.dumps({"step": step, "changed": changed}, default=str) + "\n"


def _settings(config: Mapping[str, Any], ignored: frozenset[str]) -> dict[str, Any]:
    published = _plain((config.get("data") or {}).get("class_path"), "class_path") in _PUBLISHED
    settings: dict[str, Any] = {}
    for key, value in _leaves(config):
        if key == "trainer.callbacks":
            value = [one for one in value or [] if not _only_shows(one)] or None
        if value is None or any(key == one or key.startswith(f"{one}.") for one in ignored):
            continue
        settings[key] = True if published and key in _PLACES else _plain(value, key)
    return settings


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any, key: Any = None) -> Any:
    """Spellings of one value made alike: 1 and 1.0, tuples and lists, the several paths of a class of this package."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v, k) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if str(key).endswith("class_path") and str(value).startswith("chaosgate."):
        return f"chaosgate.{str(value).rsplit('.', 1)[-1]}"
    return value


def _only_shows(callback: Any) -> bool:
    path = str(callback.get("class_path")) if isinstance(callback, Mapping) else str(callback)
    return path.startswith("chaosgate.run.") or path.rsplit(".", 1)[-1] in _ONLY_SHOWING


def _noise_words(noise: Mapping[str, Any]) -> list[str]:
    """Class, strength and stages of a gate."""
    gate = noise.get("gate")
    if not gate:
        return ["none"]
    if "class_path" not in gate:  # a gate for every stage
        return [word for stage, one in gate.items() for word in _noise_words({"gate": one, "stages": [stage]})]
    named = [f"{key}{value:g}" for key, value in strengths(gate).items() if key not in ("epsilon", "beta")]
    return [class_name(gate), *named, "+".join(stages_of(noise))]


def strengths(gate: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in the configuration of a gate that say how strong it is, by their names."""
    given = gate.get("init_args") or {}
    return {key: given[key] for key in _STRENGTHS if isinstance(given.get(key), int | float)}


def stages_of(noise: Mapping[str, Any]) -> list[str]:
    """Where the configured gates stand: one at some stages, or one for each of those that it is given for."""
    if "class_path" not in noise["gate"]:
        return list(noise["gate"])
    stages = noise.get("stages") or ["L4"]
    return [stages] if isinstance(stages, str) else list(stages)


def class_name(node: Mapping[str, Any]) -> str:
    """The last part of a ``class_path``; empty without one."""
    return str(node.get("class_path") or "").rsplit(".", 1)[-1]


def _follows_length(config: Mapping[str, Any]) -> str:
    """What depends on how long training will be; empty if nothing does."""
    callbacks = (config.get("trainer") or {}).get("callbacks") or []
    for one in [callbacks] if isinstance(callbacks, Mapping) else callbacks:
        if "Averag" in class_name(one) and not (one.get("init_args") or {}).get("decay"):  # SWA, not a moving average
            return "weights are averaged over a share of the whole length"
    schedule = (config.get("model") or {}).get("lr_scheduler") or {}
    known = (schedule.get("init_args") or {}).get("total_steps")
    scheduled = str(schedule.get("class_path", "")).endswith("WarmupCosine") and known is None
    return "the learning rate is scheduled over the whole length" if scheduled else ""


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    keys = sorted(before.keys() | now.keys())
    return {key: [before.get(key), now.get(key)] for key in keys if _plain(before.get(key)) != _plain(now.get(key))}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting by its dotted key, except how this command was started; the data's seed is that of the run."""
    started = ("ckpt_path", "labels", "resume", "run_dir", "weights_only", f"{_DATA}seed")
    return {key: value for key, value in _leaves(config) if key not in started}


def _said(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
