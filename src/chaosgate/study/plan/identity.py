"""Which training is it? Configuration parts put together, without what says only where or how fast.

Two studies that mean the same training must find the same directory, however they cut it into files; two that differ
must never. So parts are put together as the command line does it, and where it decides by looking into classes
(arguments that a new class shares with the old one survive), the old class stays in the result: trainings are rather
held to be different than mixed up.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from chaosgate.run.provenance import config_hash
from chaosgate.study.plan.config_parts import ConfigParts

_BEFORE = "before"  # key of the class that another one replaced
_DATA = "data.init_args."
# A training is the same training with other values of these, ...
_MACHINE = {f"{_DATA}{key}" for key in ("cache_dir", "eval_batch_size", "index_dir", "num_workers")} | {
    f"trainer.{key}"
    for key in ("enable_model_summary", "enable_progress_bar", "log_every_n_steps", "logger", "profiler")
}
# ... and of the folder of a set that is the same everywhere, ...
_FOLDERS = {f"{_DATA}{key}" for key in ("root", "clean", "val_folder", "val_labels")}
_PUBLISHED = ("ImageNet", "ImageNetC", "OxfordPets")
# ... and of these, which say what is tested.
_EVALUATION = {
    f"{_DATA}{key}"
    for key in ("corruptions", "severities", "corruption_jpeg", "corruption_table", "frost_textures", "cache_dir")
}


def compose(parts: ConfigParts) -> dict[str, Any]:
    """The parts as one nested configuration; later ones win."""
    whole: dict[str, Any] = {}
    for part in parts:
        for path, value in _assignments(part.content, ()):
            _assign(whole, path, value)
    return whole


def training_hash(parts: ConfigParts, seed: int) -> str:
    """Of all that shapes the trained network."""
    return config_hash([_identity(parts, _MACHINE | _EVALUATION), seed])


def test_hash(training: ConfigParts, test: ConfigParts, seed: int) -> str:
    """Of all that shapes the result of a test, except the checkpoint."""
    return config_hash([training_hash(training, seed), _identity((*training, *test), _MACHINE)])


def _identity(parts: ConfigParts, ignore: set[str]) -> dict[str, Any]:
    whole = compose(parts)
    class_path = str((whole.get("data") or {}).get("class_path"))
    if class_path.rsplit(".", 1)[-1] in _PUBLISHED:
        ignore = ignore | _FOLDERS
    return {key: value for key, value in _leaves(whole) if not _among(key, ignore)}


def _among(key: str, ignore: set[str]) -> bool:
    plain = key.replace(f".{_BEFORE}.", ".")
    return any(plain == one or plain.startswith(f"{one}.") for one in ignore)


def _assignments(content: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and values; dictionaries that are values themselves (``backbone_args``) are replaced as a whole."""
    for key, value in sorted(content.items(), key=lambda item: item[0] != "class_path"):  # a class before its arguments
        path = (*prefix, *str(key).split("."))
        section = isinstance(value, dict) and (
            len(path) == 1 or path[-1] == "init_args" or "class_path" in value or "init_args" in value
        )
        if section:
            yield from _assignments(value, path)
        else:
            yield path, value


def _assign(whole: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    node = whole
    for key in path[:-1]:
        if not isinstance(node.get(key), dict):
            node[key] = {}
        node = node[key]
    key = path[-1]
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)  # 1 and 1.0 set the same
    if key == "class_path" and node.get(key, value) != value:
        old = dict(node)
        node.clear()
        node |= {_BEFORE: old, key: value}
    elif key.endswith("+"):
        node[key] = [*node.get(key, []), value]
    else:
        node[key] = value


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
