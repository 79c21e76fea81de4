"""Continuing a run: with the settings that it began with, or not at all.

An optimiser that is restored from a checkpoint keeps its learning rate, a gate its counters; a changed configuration
would be written down and not be followed. So the stored configuration is compared with the present one.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from chaosgate.run.directory import RunDirectory
from chaosgate.run.identity import training_settings

_LENGTH = tuple(f"trainer.{key}" for key in ("max_epochs", "max_steps", "max_time", "min_epochs", "min_steps"))
_CALLBACKS = "trainer.callbacks"  # may be added to watch a run; what they do to it is recorded, not judged
_SHOWN = 12  # differences in one message


def check_resume(run: RunDirectory, config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Refuse to continue a run whose training began with other settings; return what may change and has.

    Workers, folders, logging and callbacks may change; the length only where the learning-rate schedule does not depend
    on it.

    Args:
        run: A run with ``config.yaml``; without one there is nothing to compare with.
        config: The parsed configuration of the present command.
    """
    if not run.config.is_file():
        return {}
    stored = yaml.safe_load(run.config.read_text(encoding="utf-8")) or {}
    before, now = training_settings(stored), training_settings(config)
    free = (_CALLBACKS, *(() if _follows_length(config) else _LENGTH))
    wrong = {key: change for key, change in _differences(before, now).items() if not key.startswith(free)}
    if wrong:
        shown = [f"{key} was {_said(old)}, now {_said(new)}" for key, (old, new) in wrong.items()]
        more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
        reason = " (the learning rate is scheduled over the whole length)" if set(wrong) & set(_LENGTH) else ""
        raise ValueError(
            f"{run.path} was started with other settings: {'; '.join([*shown[:_SHOWN], *more])}{reason}. Continue it "
            f"with the old ones (they are in {run.config}), or give another --run_dir to train anew with the new ones. "
            "Nothing was changed."
        )
    return _differences(_flat(stored), _flat(config))


def history_line(step: int, changes: Mapping[str, list[Any]]) -> str:
    """One line of ``config_history.jsonl``: from which step on which settings had which new values."""
    changed = {key: {"before": before, "now": now} for key, (before, now) in changes.items()}
    return json.dumps({"step": step, "changed": changed}, default=str) + "\n"


def _follows_length(config: Mapping[str, Any]) -> bool:
    """Whether the learning rate depends on how long training will be."""
    schedule = (config.get("model") or {}).get("lr_scheduler") or {}
    known = (schedule.get("init_args") or {}).get("total_steps")
    return str(schedule.get("class_path", "")).endswith("WarmupCosine") and known is None


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    keys = sorted(before.keys() | now.keys())
    return {key: [before.get(key), now.get(key)] for key in keys if before.get(key) != now.get(key)}


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every setting of a configuration by its dotted key, except how this command was started."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        if prefix or key not in ("ckpt_path", "labels", "resume", "run_dir", "weights_only"):
            nested = isinstance(value, Mapping) and value
            found |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": _listed(value)}
    return {key: value for key, value in found.items() if key != "data.init_args.seed"}  # that of the run


def _listed(value: Any) -> Any:
    return [_listed(one) for one in value] if isinstance(value, list | tuple) else value


def _said(value: Any) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
